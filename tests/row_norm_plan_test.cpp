// Launch plans of layer and RMS normalization: host code, tested without a GPU.
#include "cuda/row_norm_plan.h"

#include <gtest/gtest.h>

namespace gradus {
namespace {

const RowNormCard kHopper = row_norm_card(9, 0, true);

struct Access {
  int64_t element;
  int width;
};
constexpr Access kAccesses[] = {{4, 4}, {4, 1}, {2, 8}, {2, 1}, {8, 2}, {8, 1}};

TEST(RowNormPlan, EveryElementOfARowHasAThread) {
  for (const Access& a : kAccesses) {
    for (const int64_t packs :
         {1,   2,   3,    5,    8,    9,    31,   32,   33,   64,   65,   100,  128,
          129, 257, 1000, 1024, 1025, 2048, 2049, 4096, 4097, 8192, 8193, 16384}) {
      const int64_t m = packs * a.width;
      SCOPED_TRACE(testing::Message() << m << " elements of " << a.element << " bytes");
      const RowNormPlan plans[] = {plan_row_norm_forward(1000, m, a.element, a.width, kHopper),
                                   plan_row_norm_backward(1000, m, a.element, a.width, kHopper)};
      for (const RowNormPlan& plan : plans) {
        if (plan.group == RowGroup::split) continue;
        EXPECT_LE(plan.shared_bytes, kHopper.shared_bytes);
        EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(plan.lanes)));
        EXPECT_LE(plan.threads(), 1024);
        EXPECT_EQ(plan.threads() % 32, 0);
        if (plan.group == RowGroup::cluster) {
          EXPECT_GE(int64_t{plan.packs} * plan.cluster, packs);
          EXPECT_EQ(plan.shared_bytes, plan.slots * plan.packs * a.width * a.element);
          continue;
        }
        EXPECT_GE(int64_t{plan.packs} * plan.lanes * plan.cluster, packs);
        EXPECT_LE(plan.lanes, plan.group == RowGroup::lanes ? 32 : 512);
        EXPECT_LE(plan.cluster, 8);
        // No more values in a thread's registers than the kernels are made for.
        const bool of_lane = &plan == plans && plan.group == RowGroup::lanes && a.element == 2;
        EXPECT_LE(plan.packs * a.width, a.element == 8 ? 8 : of_lane ? 32 : 16);
        // Room for the slots' sums of dgamma and dbeta.
        if (&plan != plans && plan.group != RowGroup::blocks) {
          EXPECT_LE(2 * plan.slots * m * (a.element == 8 ? 8 : 4), plan.shared_bytes);
        }
      }
    }
  }
}

TEST(RowNormPlan, EveryRowIsInARun) {
  for (const Access& a : kAccesses) {
    for (const int64_t m : {8, 1024, 4096, 16384, 40000}) {
      for (const int64_t rows : {int64_t(1), int64_t(2), int64_t(527), int64_t(8192),
                                 int64_t(65537), int64_t(1) << 32}) {
        for (const RowNormPlan& plan :
             {plan_row_norm_forward(rows, m, a.element, a.width, kHopper),
              plan_row_norm_backward(rows, m, a.element, a.width, kHopper)}) {
          if (plan.group == RowGroup::split) continue;
          EXPECT_GE(plan.runs, 1);
          EXPECT_LE(plan.runs, rows);  // none is empty
          EXPECT_LE(plan.blocks(), kMaxGridX);
        }
        // Parts of dgamma stay few whatever the rows are.
        EXPECT_LE(plan_row_norm_backward(rows, m, a.element, a.width, kHopper).runs, 4 * 132);
        const SplitRowsPlan split = plan_split_rows(rows, m, a.width);
        EXPECT_GE(split.runs * split.rows_per_run, rows);
        EXPECT_LT((split.runs - 1) * split.rows_per_run, rows);
        EXPECT_GE(split.chunks * SplitRowsPlan::kChunk, m);
        EXPECT_GE(split.tiles * SplitRowsPlan::kThreads * a.width, m);
      }
    }
  }
}

TEST(RowNormPlan, TheShapesThatAreMeasured) {
  for (const Access& a : {Access{4, 4}, Access{2, 8}}) {
    // 32768 x 4096: eight warps per row, in f32 sixteen in the forward; two blocks per
    // multiprocessor in the backward.
    const RowNormPlan forward = plan_row_norm_forward(32768, 4096, a.element, a.width, kHopper);
    EXPECT_EQ(forward.group, RowGroup::warps);
    EXPECT_EQ(forward.lanes, a.element == 2 ? 256 : 512);
    EXPECT_EQ(forward.packs, 2);
    const RowNormPlan backward = plan_row_norm_backward(32768, 4096, a.element, a.width, kHopper);
    EXPECT_EQ(backward.lanes, 256);
    EXPECT_EQ(backward.runs, 264);
    EXPECT_LE(2 * backward.shared_bytes, kHopper.shared_bytes);
    EXPECT_EQ(backward.stages, a.element == 2 ? 4 : 2);
    // 8192 x 1024: four rows of a block at a time, of two warps each or in f32 of four, one run per
    // place.
    const RowNormPlan small = plan_row_norm_backward(8192, 1024, a.element, a.width, kHopper);
    EXPECT_EQ(small.lanes, a.element == 2 ? 64 : 128);
    EXPECT_EQ(small.packs, 2);
    EXPECT_EQ(small.slots, 4);
    EXPECT_EQ(small.runs, a.element == 2 ? 256 : 128);
    EXPECT_EQ(small.stages, 2);
    // In 16 bits four rows per block.
    const RowNormPlan small_y = plan_row_norm_forward(8192, 1024, a.element, a.width, kHopper);
    EXPECT_EQ(small_y.lanes, a.element == 2 ? 128 : 64);
    EXPECT_EQ(small_y.packs, a.element == 2 ? 1 : 4);
    EXPECT_EQ(small_y.runs, a.element == 2 ? 2048 : 8192);
    EXPECT_TRUE(small_y.straight);
    EXPECT_TRUE(forward.straight);
    EXPECT_EQ(forward.runs, a.element == 2 ? 16384 : 32768);  // of two rows or one
    // Samples of 64 x 32 x 32: a cluster of eight blocks holds one.
    const RowNormPlan sample = plan_row_norm_backward(256, 65536, a.element, a.width, kHopper);
    EXPECT_EQ(sample.group, RowGroup::blocks);
    EXPECT_EQ(sample.cluster, 8);
    EXPECT_EQ(sample.runs, 14);
    const RowNormPlan sample_y = plan_row_norm_forward(256, 65536, a.element, a.width, kHopper);
    EXPECT_EQ(sample_y.group, RowGroup::cluster);
    EXPECT_EQ(sample_y.slots, a.element == 2 ? 4 : 2);
    EXPECT_EQ(sample_y.shared_bytes, 64 * 1024);
  }
}

// Without bounds: 16-bit rows that fill their threads, as many as fill their blocks.
TEST(RowNormPlan, WholeRowsNeedNoBounds) {
  const auto whole = [](int64_t rows, int64_t m, const Access& a) {
    return plan_row_norm_forward(rows, m, a.element, a.width, kHopper).whole;
  };
  const Access half{2, 8};
  // Straight ones overlap the kernel before, however many there are.
  EXPECT_TRUE(plan_row_norm_forward(1 << 20, 4096, 2, 8, kHopper).overlaps);
  for (const int64_t m : {1024, 2048, 4096}) {
    const int64_t rows = m == 1024 ? 4 : 2;  // of a block
    EXPECT_TRUE(whole(rows, m, half)) << m;
    EXPECT_TRUE(whole(8192, m, half)) << m;
    EXPECT_FALSE(whole(8191, m, half)) << m;
    EXPECT_FALSE(whole(1, m, half)) << m;
    EXPECT_FALSE(whole(8192, m - 8, half)) << m;
    EXPECT_FALSE(whole(8192, m + 8, half)) << m;
    EXPECT_FALSE(whole(8192, m, {2, 1})) << m;
    EXPECT_FALSE(whole(8192, m, {4, 4})) << m;
  }
  EXPECT_FALSE(whole(8190, 1024, half));
  EXPECT_FALSE(whole(8192, 512, half));   // part of a warp's
  EXPECT_FALSE(whole(8192, 8192, half));  // a cluster's
}

TEST(RowNormPlan, LongRowsAreSharedOrSplit) {
  const auto forward = [](int64_t m, const RowNormCard& card) {
    return plan_row_norm_forward(8, m, 4, 4, card);
  };
  EXPECT_EQ(forward(4096, kHopper).group, RowGroup::warps);
  EXPECT_EQ(forward(4100, kHopper).group, RowGroup::cluster);
  EXPECT_EQ(forward(8196, kHopper).cluster, 8);
  EXPECT_EQ(forward(147456, kHopper).group, RowGroup::cluster);  // 72 KB in each of eight blocks
  EXPECT_EQ(forward(147460, kHopper).group, RowGroup::split);
  EXPECT_EQ(plan_row_norm_forward(8, 4096, 2, 8, kHopper).group, RowGroup::warps);
  EXPECT_EQ(plan_row_norm_forward(8, 200000, 2, 8, kHopper).group, RowGroup::cluster);
  // Without clusters a block's shared memory is the limit.
  EXPECT_EQ(forward(8196, row_norm_card(8, 0, false)).group, RowGroup::cluster);
  EXPECT_EQ(forward(8196, row_norm_card(8, 0, false)).cluster, 1);
  EXPECT_EQ(forward(40000, row_norm_card(8, 0, false)).group, RowGroup::cluster);
  EXPECT_EQ(forward(40000, row_norm_card(8, 6, false)).group, RowGroup::split);
  const auto backward = [](int64_t m, const RowNormCard& card) {
    return plan_row_norm_backward(8, m, 4, 4, card).group;
  };
  EXPECT_EQ(backward(65536, kHopper), RowGroup::blocks);
  EXPECT_EQ(backward(65540, kHopper), RowGroup::split);
  EXPECT_EQ(backward(8196, row_norm_card(8, 0, false)), RowGroup::split);
  EXPECT_EQ(backward(8192, row_norm_card(8, 6, false)), RowGroup::split);
}

}  // namespace
}  // namespace gradus
