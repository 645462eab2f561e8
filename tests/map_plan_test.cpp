// Launch plans of element-wise kernels.
#include "cuda/map_plan.h"

#include <gtest/gtest.h>

namespace gradus {
namespace {

TEST(MapPlan, MapsTakeFourPacksWhereOneWaveThenHasAll) {
  EXPECT_EQ(plan_map_packs(1, 256), 4);
  EXPECT_EQ(plan_map_packs(1 << 20, 256), 4);  // 128x64x32x32 in bf16: 1024 blocks
  EXPECT_EQ(plan_map_packs((1 << 20) + 1, 256), 1);
  EXPECT_EQ(plan_map_packs(1 << 21, 256), 1);
  EXPECT_EQ(plan_map_packs((1 << 19) + 1, 128), 1);
}

TEST(MapPlan, RepeatsFillTheCardAndCoverTheAxis) {
  EXPECT_EQ(plan_repeats(128, 784).count, 1);  // 256x128x56x56 in f32
  EXPECT_EQ(plan_repeats(128, 392).count, 4);  // and in bf16
  EXPECT_EQ(plan_repeats(64, 128).size, 32);
  EXPECT_EQ(plan_repeats(160, 1024).size, 80);
  for (const int64_t count : {16, 33, 127, 128, 129, 1000, 123457}) {
    for (const int64_t tiles : {64, 512, 100000}) {
      const Chunks chunks = plan_repeats(count, tiles);
      EXPECT_LE(chunks.size, 128);
      EXPECT_GE(chunks.count * chunks.size, count);
      EXPECT_LT((chunks.count - 1) * chunks.size, count);
    }
  }
}

}  // namespace
}  // namespace gradus
