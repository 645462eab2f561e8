// Launch plans of layer and RMS normalization: host code, tested without a GPU.
#include "cuda/row_norm_plan.h"

#include <gtest/gtest.h>

namespace gradus {
namespace {

const int64_t kHopper = row_norm_shared_limit(9, 0);

struct Access {
  int64_t element;
  int width;
};
constexpr Access kAccesses[] = {{4, 4}, {4, 1}, {2, 8}, {2, 1}, {8, 2}, {8, 1}};

TEST(RowNormPlan, EveryElementOfARowHasAThread) {
  for (const Access& a : kAccesses) {
    for (const int64_t packs : {1,   2,   3,   5,   8,    9,    31,   32,   33,   64,   65,
                                100, 128, 129, 257, 1000, 1024, 1025, 2048, 2049, 4096, 4097}) {
      const int64_t m = packs * a.width;
      SCOPED_TRACE(testing::Message() << m << " elements of " << a.element << " bytes");
      const RowNormPlan plans[] = {plan_row_norm_forward(1000, m, a.element, a.width, kHopper),
                                   plan_row_norm_backward(1000, m, a.element, a.width, kHopper)};
      for (const RowNormPlan& plan : plans) {
        if (plan.split) continue;
        EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(plan.lanes)));
        EXPECT_LE(plan.shared_bytes, kHopper);
        EXPECT_LE(plan.threads(), 1024);
        EXPECT_EQ(plan.threads() % 32, 0);
        if (plan.packs == 0) continue;  // in shared memory
        EXPECT_GE(int64_t{plan.packs} * plan.lanes, packs);
        // A row beyond a warp has warps of its own.
        EXPECT_TRUE(plan.lanes <= 32 || plan.lanes % 32 == 0);
        // No more values in a thread's registers than the kernels are made for.
        EXPECT_LE(plan.packs * a.width, a.element == 8 ? 8 : 16);
      }
      EXPECT_FALSE(plans[0].split);
      EXPECT_LE(plans[1].threads(), 512);
    }
  }
}

TEST(RowNormPlan, EveryRowHasABlock) {
  for (const Access& a : kAccesses) {
    for (const int64_t m : {8, 1024, 4096, 40000}) {
      for (const int64_t rows : {int64_t(1), int64_t(2), int64_t(527), int64_t(8192),
                                 int64_t(65537), int64_t(1) << 33}) {
        const RowNormPlan forward = plan_row_norm_forward(rows, m, a.element, a.width, kHopper);
        if (!forward.split) {
          EXPECT_GE(forward.blocks * forward.rows_per_block, rows);
          EXPECT_LT((forward.blocks - 1) * forward.rows_per_block, rows);
          EXPECT_LE(forward.blocks, kMaxGridX);
        }
        const RowNormPlan backward = plan_row_norm_backward(rows, m, a.element, a.width, kHopper);
        if (!backward.split) {
          EXPECT_GE(backward.blocks, 1);
          EXPECT_LE(backward.blocks, std::max<int64_t>(1, rows));
          EXPECT_LE(backward.blocks, 8 * 132);  // parts of dgamma stay few whatever the rows
        }
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
  // 32768 x 4096 in f32 and bf16: a block per row, two blocks per multiprocessor in the backward.
  for (const Access& a : {Access{4, 4}, Access{2, 8}}) {
    const RowNormPlan forward = plan_row_norm_forward(32768, 4096, a.element, a.width, kHopper);
    EXPECT_EQ(forward.lanes, 256);
    EXPECT_EQ(forward.packs * a.width, 16);
    const RowNormPlan backward = plan_row_norm_backward(32768, 4096, a.element, a.width, kHopper);
    EXPECT_EQ(backward.lanes, 256);
    EXPECT_EQ(backward.blocks, 264);
    EXPECT_LE(2 * backward.shared_bytes, kHopper);
    // 8192 x 1024: two warps per row, four rows of a block at a time.
    const RowNormPlan small = plan_row_norm_backward(8192, 1024, a.element, a.width, kHopper);
    EXPECT_EQ(small.lanes, 64);
    EXPECT_EQ(small.slots, 4);
    EXPECT_EQ(small.blocks, 264);
  }
}

TEST(RowNormPlan, LongRowsAreKeptInSharedMemoryOrSplit) {
  EXPECT_EQ(plan_row_norm_forward(8, 16384, 4, 4, kHopper).packs, 4);
  EXPECT_EQ(plan_row_norm_forward(8, 16388, 4, 4, kHopper).packs, 0);
  EXPECT_FALSE(plan_row_norm_forward(8, 50000, 4, 4, kHopper).split);
  EXPECT_FALSE(plan_row_norm_forward(8, 100000, 2, 8, kHopper).split);
  EXPECT_TRUE(plan_row_norm_forward(8, 65536, 4, 4, kHopper).split);
  EXPECT_TRUE(plan_row_norm_forward(8, 50000, 4, 4, row_norm_shared_limit(8, 6)).split);
  EXPECT_FALSE(plan_row_norm_backward(8, 8192, 4, 4, kHopper).split);
  EXPECT_TRUE(plan_row_norm_backward(8, 8196, 4, 4, kHopper).split);
}

}  // namespace
}  // namespace gradus
