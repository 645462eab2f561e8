// Launch plans and strided plans: host code, tested without a GPU.
#include "cuda/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/device/strided_plan.h"
#include "tests/support/expect_error.h"

namespace gradus {
namespace {

TEST(Plan, BlocksStayWithinTheGrid) {
  EXPECT_EQ(stepping_blocks(0, 256), 1u);
  EXPECT_EQ(stepping_blocks(256, 256), 1u);
  EXPECT_EQ(stepping_blocks(257, 256), 2u);
  EXPECT_EQ(stepping_blocks(int64_t(1) << 60, 1), 1u << 20);
  EXPECT_EQ(exact_blocks(kMaxGridX, "op"), 2147483647u);
  EXPECT_ERROR(exact_blocks(kMaxGridX + 1, "op"), ErrorCode::invalid_argument,
               "op: needs 2147483648 blocks, more than the device's 2147483647");
}

TEST(Plan, ChunksCoverTheItems) {
  for (const int64_t items : {1, 5, 999, 1000, 1001, 123457}) {
    const Chunks chunks = plan_chunks(items, 100, 64, 8);
    EXPECT_LE(chunks.count, 64);
    EXPECT_EQ(chunks.size % 8, 0);
    EXPECT_GE(chunks.count * chunks.size, items);
    EXPECT_LT((chunks.count - 1) * chunks.size, items);
    EXPECT_GE(chunks.size, 100);
  }
  EXPECT_EQ(plan_chunks(0, 100, 64).count, 0);
}

TEST(Plan, PowersOfTwoAreRoundedUpTo) {
  const std::vector<std::pair<int64_t, int64_t>> rounded{{0, 1}, {1, 1}, {2, 2}, {3, 4}, {65, 128}};
  for (const auto& [value, power] : rounded) EXPECT_EQ(ceil_power_of_two(value), power);
  EXPECT_EQ(ceil_power_of_two((int64_t(1) << 40) - 1), int64_t(1) << 40);
}

TEST(Plan, PacksNeedAlignmentOfAll) {
  alignas(16) static float data[8];
  EXPECT_EQ(pack_width(4, {data}, {64}), 4);
  EXPECT_EQ(pack_width(4, {data, data + 2}, {64}), 2);
  EXPECT_EQ(pack_width(4, {data + 1}, {64}), 1);
  EXPECT_EQ(pack_width(4, {data}, {64, 6}), 2);
  EXPECT_EQ(pack_width(2, {data}, {7}), 1);
  EXPECT_EQ(pack_width(1, {data}, {}), 16);
}

TEST(Plan, FastDivisionIsExact) {
  const uint32_t top = (1u << 31) - 1;
  for (const uint32_t d : {1u, 2u, 3u, 5u, 7u, 10u, 64u, 641u, 65535u, 65536u, 65537u, 1000003u,
                           (1u << 30) - 1, 1u << 30, (1u << 30) + 1, top - 1, top}) {
    const FastDivisor divisor(d);
    for (const uint32_t i : {0u, 1u, d - 1, d, top / 3, top / d * d, top - 1, top}) {
      EXPECT_EQ(divisor.quotient(i), i / d) << i << " / " << d;
      const uint32_t before = i == 0 ? 0 : i - 1;
      EXPECT_EQ(divisor.quotient(before), before / d) << before << " / " << d;
    }
  }
}

// Every element is visited once and all tensors agree on which one it is.
template <int N>
void expect_walks(const Shape& shape, const std::array<Strides, N>& tensors) {
  const StridedPlan<N> plan(shape, tensors);
  ASSERT_EQ(plan.count, shape.numel());
  // By stepping through the indices: (offsets of all tensors), sorted.
  std::vector<std::array<int64_t, N>> expected, got;
  for (int64_t i = 0; i < plan.count; ++i) {
    std::array<int64_t, N> at{};
    int64_t rest = i;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      for (int t = 0; t < N; ++t) at[size_t(t)] += rest % shape[axis] * tensors[size_t(t)][axis];
      rest /= shape[axis];
    }
    expected.push_back(at);
    const StridedOffsets<N> offsets = plan.offsets(i);
    for (int t = 0; t < N; ++t) at[size_t(t)] = offsets.at[t];
    got.push_back(at);
  }
  std::sort(expected.begin(), expected.end());
  std::sort(got.begin(), got.end());
  EXPECT_EQ(got, expected);
}

TEST(StridedPlan, WalksEveryElementOnce) {
  const Shape image = {2, 3, 4, 5};
  const Strides nchw = strides_of(image);
  const Strides nhwc = strides_of(image, MemoryFormat::channels_last);
  expect_walks<1>(image, {nhwc});
  expect_walks<2>(image, {nchw, nhwc});
  expect_walks<2>(image, {nhwc, nchw});
  expect_walks<3>(image, {nchw, nhwc, {0, 1, 0, 0}});
  expect_walks<3>(image, {nhwc, {0, 0, 0, 0}, {60, 20, 5, 1}});
  expect_walks<2>({4, 1, 6}, {Strides{12, 99, 2}, Strides{6, 77, 1}});
  expect_walks<1>({}, {Strides{}});
  expect_walks<2>({0, 3}, {Strides{3, 1}, Strides{3, 1}});
  expect_walks<1>({2, 3, 2, 2, 3, 2, 2, 2}, {Strides{1, 2, 96, 6, 12, 48, 192, 384}});
}

TEST(StridedPlan, EqualLayoutsAreOneFlatRun) {
  const Shape image = {2, 3, 4, 5};
  const Strides nchw = strides_of(image);
  const Strides nhwc = strides_of(image, MemoryFormat::channels_last);
  EXPECT_TRUE((StridedPlan<2>(image, {nchw, nchw}).flat));
  EXPECT_TRUE((StridedPlan<3>(image, {nhwc, nhwc, nhwc}).flat));
  EXPECT_TRUE((StridedPlan<1>({}, {Strides{}}).flat));
  EXPECT_FALSE((StridedPlan<2>(image, {nchw, nhwc}).flat));
  EXPECT_FALSE((StridedPlan<2>({6}, {Strides{1}, Strides{2}}).flat));
  EXPECT_FALSE((StridedPlan<2>({6}, {Strides{1}, Strides{0}}).flat));
  EXPECT_EQ((StridedPlan<2>(image, {nchw, nhwc}).rank), 3);
  EXPECT_EQ((StridedPlan<2>(image, {nchw, {0, 1, 0, 0}}).rank), 3);
}

TEST(StridedPlan, LargeCountsUse64Bits) {
  const int64_t n = int64_t(1) << 33;
  const StridedPlan<2> plan({n, 3}, {Strides{3, 1}, Strides{1, n}});
  EXPECT_FALSE(plan.small);
  const StridedOffsets<2> last = plan.offsets(3 * n - 1);
  EXPECT_EQ(last.at[0], 3 * n - 1);
  EXPECT_EQ(last.at[1], n - 1 + 2 * n);
}

}  // namespace
}  // namespace gradus
