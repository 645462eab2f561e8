// Launch plans of cross-entropy: host code, tested without a GPU.
#include "cuda/cross_entropy_plan.h"

#include <gtest/gtest.h>

namespace gradus {
namespace {

constexpr int64_t kElements[] = {2, 4, 8};  // bytes

void expect_covers(const CrossEntropyPlan& plan, const ClassRows& shape) {
  EXPECT_EQ(plan.threads % 32, 0);
  EXPECT_EQ(plan.threads % plan.lanes, 0);
  EXPECT_EQ(plan.chunks.size % plan.groups(), 0);
  EXPECT_GE(plan.chunks.count * plan.chunks.size, shape.rows);
  EXPECT_LT((plan.chunks.count - 1) * plan.chunks.size, shape.rows);
  EXPECT_TRUE(plan.lanes == 1 || shape.inner == 1);
  if (plan.lanes == kCrossEntropyShortLanes) {
    EXPECT_LE(shape.c, 4 * plan.lanes);
  }
  if (plan.lanes > 32) {  // whose sums are the block's
    EXPECT_EQ(plan.threads, plan.lanes);
  }
  if (plan.width > 1) {  // a lane per class beside packs
    EXPECT_LE(2 * plan.width - 2, plan.lanes);
  }
}

TEST(CrossEntropyPlan, EveryRowHasItsLanes) {
  for (const int64_t element : kElements) {
    for (const int64_t rows : {1, 2, 3, 5, 64, 128, 256, 300, 512, 5000, 65536, 8388608}) {
      for (const int64_t c : {1, 2, 10, 16, 17, 100, 1000, 8192, 8193, 50257, 1 << 20}) {
        for (const int64_t inner : {1, 7, 64}) {
          SCOPED_TRACE(testing::Message() << rows << " x " << c << " by " << inner);
          const ClassRows shape{.rows = rows, .c = c, .inner = inner};
          const CrossEntropyPlan forward = plan_cross_entropy_forward(shape, element);
          expect_covers(forward, shape);
          EXPECT_LE(forward.threads, cross_entropy_most_threads(forward.lanes));
          EXPECT_LE(forward.chunks.count, 2048);
          for (const bool alike : {false, true}) {
            const CrossEntropyPlan backward = plan_cross_entropy_backward(shape, element, alike);
            expect_covers(backward, shape);
            EXPECT_EQ(backward.chunks.size, backward.groups());
            EXPECT_LE(backward.threads, kCrossEntropyThreads);
            if (!alike) {
              EXPECT_EQ(backward.width, 1);
            }
          }
        }
      }
    }
  }
}

TEST(CrossEntropyPlan, NoRows) {
  EXPECT_EQ(plan_cross_entropy_forward({.rows = 0, .c = 10}, 4).chunks.count, 0);
}

// One block where a second launch would take longer, many where there is something to share.
TEST(CrossEntropyPlan, FewRows) {
  const auto blocks = [](int64_t rows, int64_t c) {
    return plan_cross_entropy_forward({.rows = rows, .c = c}, 4).chunks.count;
  };
  EXPECT_EQ(blocks(128, 10), 1);
  EXPECT_EQ(blocks(512, 10), 1);
  EXPECT_EQ(blocks(16, 1000), 1);
  EXPECT_EQ(blocks(64, 1000), 32);
  EXPECT_EQ(blocks(256, 1000), 128);
  EXPECT_EQ(blocks(1024, 1000), 256);
  EXPECT_EQ(plan_cross_entropy_backward({.rows = 256, .c = 1000}, 4, true).chunks.count, 128);
}

TEST(CrossEntropyPlan, LongRowsHaveABlock) {
  const CrossEntropyPlan plan = plan_cross_entropy_forward({.rows = 4096, .c = 50257}, 2);
  EXPECT_EQ(plan.lanes, kCrossEntropyThreads);
  EXPECT_EQ(plan.width, 8);
  EXPECT_EQ(plan.chunks.count, 2048);
}

}  // namespace
}  // namespace gradus
