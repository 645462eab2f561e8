// Which accesses the kernels of 2 x 2 pooling choose: no GPU needed.
#include "cuda/pool_plan.h"

#include <gtest/gtest.h>

namespace gradus {
namespace {

// An image at an address that is `offset` bytes past an aligned one; never read.
Image image(const Shape& shape, DType dtype, uintptr_t offset = 0) {
  AnyView view;
  view.data = reinterpret_cast<void*>(uintptr_t(1024) + offset);
  view.dtype = dtype;
  view.given = true;
  view.shape = shape;
  view.strides = strides_of(shape);
  return Image(view, MemoryFormat::contiguous);
}

int width_of(int64_t w, int64_t q, DType dtype, uintptr_t x_offset = 0, uintptr_t y_offset = 0) {
  return pair_row_width(image({1, 2, 4, w}, dtype, x_offset), image({1, 2, 2, q}, dtype, y_offset),
                        size_of(dtype));
}

TEST(PoolPlan, TakesTheWidestAccessThatDividesTheRow) {
  EXPECT_EQ(width_of(56, 28, DType::f32), 4);
  EXPECT_EQ(width_of(56, 28, DType::bf16), 8);
  EXPECT_EQ(width_of(28, 14, DType::bf16), 4);
  EXPECT_EQ(width_of(14, 7, DType::f32), 2);
  EXPECT_EQ(width_of(14, 7, DType::f16), 2);
  EXPECT_EQ(width_of(6, 3, DType::f64), 2);
}

TEST(PoolPlan, RowsThatPairsDoNotCoverGoElementByElement) {
  EXPECT_EQ(width_of(7, 3, DType::f32), 1);  // floor
  EXPECT_EQ(width_of(7, 4, DType::f32), 1);  // ceil
}

TEST(PoolPlan, UnalignedViewsNarrowTheAccess) {
  EXPECT_EQ(width_of(56, 28, DType::f32, 8), 2);
  EXPECT_EQ(width_of(56, 28, DType::f32, 4), 1);
  EXPECT_EQ(width_of(56, 28, DType::f32, 0, 4), 2);
  EXPECT_EQ(width_of(56, 28, DType::bf16, 4, 2), 2);
}

}  // namespace
}  // namespace gradus
