// Launch plans of element-wise kernels.
#include "cuda/map_plan.h"

#include <gtest/gtest.h>

#include "core/tensor.h"
#include "cuda/device/pack_axes.h"

namespace gradus {
namespace {

TEST(MapPlan, PackAxesWalkAsThePlan) {
  const Shape shapes[] = {{}, {7}, {5, 7}, {3, 5, 7}, {4, 1, 9}, {2, 3, 4, 5}};
  for (const Shape& shape : shapes) {
    const Strides y = strides_of(shape);
    for (int mask = 0; mask < 1 << shape.rank(); ++mask) {
      Strides x = y;
      for (int axis = 0; axis < shape.rank(); ++axis) x[axis] = mask >> axis & 1 ? 0 : 3 * x[axis];
      const StridedPlan<2> plan(shape, {y, x});
      ASSERT_TRUE(PackAxes<2>::take(plan));
      const PackAxes<2> axes(plan);
      for (int64_t i = 0; i < plan.count; ++i) {
        const StridedOffsets<2> got = axes.offsets(static_cast<uint32_t>(i)),
                                want = plan.offsets(i);
        ASSERT_EQ(got.at[0], want.at[0]) << to_string(shape) << " mask " << mask;
        ASSERT_EQ(got.at[1], want.at[1]) << to_string(shape) << " mask " << mask;
      }
    }
  }
}

Tensor floats(const Shape& shape, MemoryFormat format = MemoryFormat::contiguous) {
  return Tensor::empty(shape, {.dtype = DType::f32, .format = format});
}

// Element i of the walk is number (i / repeat) % period, wherever a plan is made.
void expect_broadcast(const Tensor& y, const Tensor& b, uint32_t repeat, uint32_t period) {
  const StridedPlan<3> plan = plan_map_pair(y.raw(), y.raw(), b.raw());
  EXPECT_TRUE(walks_flat(plan, 0));
  const auto by = plan_broadcast(plan, 2);
  ASSERT_TRUE(by.has_value()) << to_string(y.shape()) << to_string(b.shape());
  EXPECT_EQ(by->repeat.divisor, repeat);
  EXPECT_EQ(by->period.divisor, period);
  for (int64_t i = 0; i < plan.count; ++i) {
    const uint32_t run = by->repeat.quotient(static_cast<uint32_t>(i));
    ASSERT_EQ(run - by->period.quotient(run) * period, plan.offsets(i).at[2]) << i;
  }
}

TEST(MapPlan, BroadcastsAreARepeatAndAPeriod) {
  const auto last = MemoryFormat::channels_last;
  expect_broadcast(floats({2, 3, 7, 7}), floats({3, 1, 1}), 49, 3);
  expect_broadcast(floats({2, 3, 7, 7}, last), floats({3, 1, 1}), 1, 3);
  expect_broadcast(floats({2, 3, 4, 5}), floats({4, 5}), 1, 20);
  expect_broadcast(floats({2, 3, 4, 5}), floats({3, 4, 1}), 5, 12);
  expect_broadcast(floats({2, 3, 4, 5}), floats({2, 1, 1, 1}), 60, 2);
  expect_broadcast(floats({2, 3, 4, 5}), floats({1}), 1, 1);
  expect_broadcast(floats({5, 7}), floats({5, 1}), 7, 5);
  expect_broadcast(floats({1, 1}), floats({}), 1, 1);
  // Views of the shape of y.
  expect_broadcast(floats({5, 7}), floats({1}).expand({5, 7}), 1, 1);
  expect_broadcast(floats({5, 7}), floats({5, 1}).expand({5, 7}), 7, 5);
  expect_broadcast(floats({2, 3, 7, 7}, last), floats({3, 1, 1}).expand({2, 3, 7, 7}), 1, 3);
}

TEST(MapPlan, OtherBroadcastsHaveNone) {
  const Tensor y = floats({2, 3, 4, 5});
  for (const Tensor& b : {floats({2, 1, 4, 1}), floats({3, 1, 5}),
                          floats({4, 10}).slice(1, 0, 10, 2), floats({5, 4}).transpose(0, 1)}) {
    EXPECT_FALSE(plan_broadcast(plan_map_pair(y.raw(), y.raw(), b.raw()), 2)) << to_string(b);
  }
  // Empty walks along the axis that repeats, and along the one that does not.
  for (const Shape& shape : {Shape{2, 0}, Shape{0, 3}}) {
    const Tensor empty = floats(shape), b = floats({shape[0], 1});
    EXPECT_FALSE(plan_broadcast(plan_map_pair(empty.raw(), empty.raw(), b.raw()), 2));
  }
  const Tensor gaps = floats({2, 3, 4, 6}).slice(3, 0, 5);
  EXPECT_FALSE(walks_flat(plan_map_pair(gaps.raw(), gaps.raw(), y.raw()), 0));
  EXPECT_TRUE(walks_flat(plan_map_pair(y.raw(), gaps.raw(), y.raw()), 0));
}

TEST(MapPlan, PacksOfABroadcastAreOneElementARunOrEach) {
  const auto spread = [](uint32_t repeat, uint32_t period, uintptr_t at, int64_t element) {
    return plan_spread({FastDivisor(repeat), FastDivisor(period)},
                       reinterpret_cast<const void*>(at), element);
  };
  EXPECT_EQ(spread(56 * 56, 128, 2, 2), Spread::one);
  EXPECT_EQ(spread(49, 128, 16, 2), Spread::each);
  EXPECT_EQ(spread(4, 128, 16, 2), Spread::each);
  EXPECT_EQ(spread(4, 128, 16, 4), Spread::one);
  EXPECT_EQ(spread(1, 128, 16, 2), Spread::run);
  EXPECT_EQ(spread(1, 128, 2, 2), Spread::each);
  EXPECT_EQ(spread(1, 12, 16, 2), Spread::each);
  EXPECT_EQ(spread(1, 12, 16, 4), Spread::run);
  EXPECT_EQ(spread(1, 1, 2, 2), Spread::one);
}

}  // namespace
}  // namespace gradus
