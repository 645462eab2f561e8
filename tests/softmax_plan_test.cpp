// Launch plans of softmax: host code, tested without a GPU.
#include "cuda/softmax_plan.h"

#include <gtest/gtest.h>

namespace gradus {
namespace {

constexpr int64_t kElements[] = {4, 2, 8};  // bytes

SoftmaxPlan plan_of(const SoftmaxGeometry& g, int64_t element, bool is_aligned = true,
                    bool has_clusters = true, int most_items = 8) {
  const auto* base = reinterpret_cast<const char*>(uintptr_t{1} << 20);
  return plan_softmax(g, element, most_items, has_clusters,
                      {base, base + (is_aligned ? 0 : element)});
}

// Every item of every set has one thread and one place in its registers, whatever the shape.
TEST(SoftmaxPlan, EveryValueHasAThread) {
  for (const int64_t element : kElements) {
    for (const int64_t inner : {1, 2, 3, 7, 8, 49, 64, 3136}) {
      for (const int64_t c :
           {1,    2,    3,    4,    5,    8,    9,    16,    17,    31,    32,
            33,   64,   65,   100,  128,  129,  256,  257,   512,   513,   1000,
            1024, 1025, 2048, 2049, 4096, 4097, 8192, 16384, 32768, 65536, 100003}) {
        for (int variant = 0; variant < 8; ++variant) {
          const bool is_aligned = variant % 2 == 0, has_clusters = variant / 2 % 2 == 0;
          const int most_items = variant / 4 == 0 ? 8 : 4;
          const SoftmaxGeometry g{.outer = 5, .c = c, .inner = inner};
          const SoftmaxPlan plan = plan_of(g, element, is_aligned, has_clusters, most_items);
          SCOPED_TRACE(testing::Message() << c << " by " << inner << ", " << element << " bytes");
          EXPECT_EQ(plan.columns, inner > 1);
          EXPECT_EQ(plan.sets(), g.outer * g.inner);
          EXPECT_EQ(plan.items * (plan.columns ? 1 : plan.width), c);
          EXPECT_LE(plan.chunk_items, int64_t{plan.lanes} * plan.per_thread);
          EXPECT_GE(plan.chunks * plan.chunk_items, plan.items);
          EXPECT_LT((plan.chunks - 1) * plan.chunk_items, plan.items);
          EXPECT_GE(plan.blocks * plan.side, plan.units * plan.chunks);
          EXPECT_EQ(plan.threads % 32, 0);
          EXPECT_LE(plan.threads, 1024);
          EXPECT_GE(plan.threads, plan.lanes * plan.side);
          EXPECT_LE(plan.per_thread, plan.width == 1 ? 8 : plan.columns ? most_items : 4);
          EXPECT_TRUE(plan.chunks == 1 || plan.per_thread == 4);
          if (plan.in_cluster) {
            EXPECT_TRUE(has_clusters && !plan.columns && plan.side == 1);
            EXPECT_LE(plan.chunks, 8);
            EXPECT_GT(plan.threads, 32);
          }
          if (plan.columns) {
            EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(plan.side)));
            EXPECT_GE(plan.per_thread, 4);
          } else {
            EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(plan.lanes)));
            EXPECT_EQ(plan.threads, plan.lanes * plan.side);
            EXPECT_TRUE(plan.lanes <= 32 || plan.side == 1);
          }
        }
      }
    }
  }
}

TEST(SoftmaxPlan, ChannelsAtEachPixel) {
  const SoftmaxGeometry g{.outer = 256, .c = 128, .inner = 56 * 56};
  for (const int64_t element : {4, 2}) {
    const SoftmaxPlan plan = plan_of(g, element);
    EXPECT_EQ(plan.width * element, 16);
    EXPECT_EQ(plan.chunks, 1);  // read once
    EXPECT_EQ(plan.threads, element == 4 ? 256 : 128);
    EXPECT_EQ(plan.per_thread, 8);
    EXPECT_EQ(plan.lanes, 16);
    EXPECT_EQ(plan.side, plan.threads / 16);  // at least 128 bytes of a row at a time
  }
}

// Blocks of whole warps hold every item of their columns in shared memory.
TEST(SoftmaxPlan, StagedColumns) {
  const void* aligned = reinterpret_cast<const void*>(uintptr_t{1} << 20);
  for (int64_t c = 1; c <= 600; ++c) {
    SCOPED_TRACE(c);
    const SoftmaxGeometry g{.outer = 3, .c = c, .inner = 56};
    const SoftmaxPlan plan = plan_softmax_staged_columns(g, {aligned});
    EXPECT_EQ(plan.blocks, c < 16 || c > 512 ? 0 : 3);
    if (plan.blocks == 0) continue;
    EXPECT_EQ(plan.sets(), g.outer * g.inner);
    EXPECT_GE(plan.lanes * kSoftmaxStagedItems, c);
    EXPECT_EQ(plan.threads % 32, 0);
    EXPECT_LE(plan.threads, 512);
    EXPECT_LE(plan.threads * kSoftmaxStagedItems * 16, 64 * 1024);
    EXPECT_GE(plan.blocks * plan.side, plan.units);
  }
  const SoftmaxGeometry pixels{.outer = 3, .c = 64, .inner = 49};
  EXPECT_EQ(plan_softmax_staged_columns(pixels, {aligned}).blocks, 0);
  const void* unaligned = reinterpret_cast<const void*>((uintptr_t{1} << 20) + 8);
  EXPECT_EQ(plan_softmax_staged_columns({.outer = 3, .c = 64, .inner = 56}, {unaligned}).blocks, 0);
}

// Long columns side by side are spread over the card, but never in pieces of less than 32 bytes.
TEST(SoftmaxPlan, FewLongColumns) {
  const SoftmaxPlan few = plan_of({.outer = 1, .c = 4000, .inner = 512}, 2);
  EXPECT_EQ(few.side * few.width * 2, 32);
  EXPECT_EQ(few.chunks, 1);
  EXPECT_EQ(few.blocks, 32);
  EXPECT_EQ(plan_of({.outer = 8, .c = 1000, .inner = 256}, 4).side, 4);
}

// From memory only once, as long as a block or a cluster can hold a row.
TEST(SoftmaxPlan, LongRowsStayOnChip) {
  const auto rows_of = [](int64_t c, int64_t element, bool has_clusters) {
    return plan_of({.outer = 8, .c = c, .inner = 1}, element, true, has_clusters);
  };
  for (const int64_t element : {4, 2}) {
    for (const int64_t c : {1024, 4096, 32000, 131072}) {
      const SoftmaxPlan plan = rows_of(c, element, true);
      EXPECT_TRUE(plan.chunks == 1 || plan.in_cluster) << c;
      EXPECT_EQ(plan.chunks == 1, c <= 4096) << c;
      EXPECT_FALSE(rows_of(c, element, false).in_cluster);
    }
    EXPECT_FALSE(rows_of(1 << 20, element, true).in_cluster);
  }
}

// A cluster's shared memory takes kSoftmaxRingRows of them, and few rows get larger clusters.
TEST(SoftmaxPlan, RingOfRows) {
  constexpr int64_t kHopper = 227 * 1024;
  const void* aligned = reinterpret_cast<const void*>(uintptr_t{1} << 20);
  for (const int64_t element : {4, 2}) {
    for (const int64_t rows : {1, 9, 4096}) {
      for (const int64_t packs : {2048, 2049, 4096, 4097, 10000, 32768, 32769}) {
        SCOPED_TRACE(testing::Message() << rows << " rows of " << packs << " packs");
        const SoftmaxGeometry g{.outer = rows, .c = packs * 16 / element, .inner = 1};
        const SoftmaxRing plan = plan_softmax_ring(g, element, kHopper, {aligned});
        EXPECT_EQ(plan.rows, packs > 2048 && packs <= 32768 ? rows : 0);
        if (plan.rows == 0) continue;
        EXPECT_EQ(plan.packs, packs);
        EXPECT_LE(plan.cluster, 8);
        EXPECT_GE(plan.cluster * plan.chunk, packs);
        EXPECT_LT((plan.cluster - 1) * plan.chunk, packs);  // none without a part
        EXPECT_LE(kSoftmaxRingRows * plan.chunk * 16, 200 * 1024);
        EXPECT_TRUE(rows > 1 || plan.cluster > 4);
      }
    }
  }
  const SoftmaxGeometry odd{.outer = 9, .c = 40001, .inner = 1};
  EXPECT_EQ(plan_softmax_ring(odd, 4, kHopper, {aligned}).rows, 0);
  const SoftmaxGeometry rows{.outer = 9, .c = 40000, .inner = 1};
  EXPECT_EQ(plan_softmax_ring(rows, 8, kHopper, {aligned}).rows, 0);
  // Blocks that may have less take less.
  const SoftmaxRing small = plan_softmax_ring(rows, 2, 99 * 1024, {aligned});
  EXPECT_EQ(small.cluster, 6);
  EXPECT_LE(kSoftmaxRingRows * small.chunk * 16, 95 * 1024);
  EXPECT_EQ(plan_softmax_ring(rows, 4, 20 * 1024, {aligned}).rows, 0);
}

TEST(SoftmaxPlan, RowsInRegisters) {
  const auto lanes = [](int64_t c, bool is_aligned = true) {
    const SoftmaxPlan plan = plan_of({.outer = 9, .c = c, .inner = 1}, 2, is_aligned);
    if (!plan.has_rows_in_registers()) return 0;
    EXPECT_GE(int64_t{plan.lanes} * kSoftmaxRowPacks, plan.items);
    return plan.lanes;
  };
  EXPECT_EQ(lanes(512), 0);  // less than a warp
  EXPECT_EQ(lanes(520), 32);
  EXPECT_EQ(lanes(1024), 32);
  EXPECT_EQ(lanes(1032), 64);
  EXPECT_EQ(lanes(4096), 128);
  EXPECT_EQ(lanes(16384), 512);
  EXPECT_EQ(lanes(16392), 0);
  EXPECT_EQ(lanes(1001), 0);  // not of whole packs
  EXPECT_EQ(lanes(1024, false), 0);
  EXPECT_FALSE(plan_of({.outer = 9, .c = 1024, .inner = 8}, 2).has_rows_in_registers());
}

TEST(SoftmaxPlan, ShortRows) {
  const void* aligned = reinterpret_cast<const void*>(uintptr_t{1} << 20);
  for (const int64_t element : kElements) {
    for (int64_t c = 1; c <= 300; ++c) {
      SCOPED_TRACE(testing::Message() << c << " of " << element << " bytes");
      const SoftmaxGeometry g{.outer = 1000001, .c = c, .inner = 1};
      const SoftmaxShortRows plan = plan_softmax_short_rows(g, element, {aligned});
      if (c > 128 || c * element % 16 == 0) {
        EXPECT_EQ(plan.outer, 0);
        continue;
      }
      EXPECT_EQ(plan.outer, g.outer);
      EXPECT_LE(plan.per_lane, 16);
      EXPECT_GE(plan.per_lane * plan.lanes, c);
      EXPECT_LE(plan.lanes, 8);
      EXPECT_EQ(plan.rows % (kSoftmaxThreads / plan.lanes), 0);
      EXPECT_EQ(plan.rows * c * element % 16, 0);          // every block starts at a boundary
      EXPECT_LE(2 * plan.rows * c * element, 100 * 1024);  // shared memory, backward
      EXPECT_GE(plan.blocks() * plan.rows, g.outer);
    }
  }
  const void* unaligned = reinterpret_cast<const void*>((uintptr_t{1} << 20) + 8);
  EXPECT_EQ(
      plan_softmax_short_rows({.outer = 9, .c = 10, .inner = 1}, 4, {aligned, unaligned}).outer, 0);
  EXPECT_EQ(plan_softmax_short_rows({.outer = 9, .c = 10, .inner = 2}, 4, {aligned}).outer, 0);
}

// No access is wider than the alignment of any of the tensors, or the rows, allow.
TEST(SoftmaxPlan, UnalignedIsNarrow) {
  EXPECT_EQ(plan_of({.outer = 8, .c = 1024, .inner = 1}, 4, false).width, 1);
  EXPECT_EQ(plan_of({.outer = 8, .c = 1023, .inner = 1}, 4).width, 1);
  EXPECT_EQ(plan_of({.outer = 8, .c = 64, .inner = 49}, 2).width, 1);
  EXPECT_EQ(plan_of({.outer = 8, .c = 63, .inner = 64}, 2).width, 8);
}

}  // namespace
}  // namespace gradus
