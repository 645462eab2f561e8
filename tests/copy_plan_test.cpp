// Copies in packs: every element of y is written once, with the element of x that belongs there.
#include "cuda/copy_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "core/tensor.h"
#include "cuda/device/pack_axes.h"

namespace gradus {
namespace {

constexpr MemoryFormat kLast = MemoryFormat::channels_last;

Tensor halves(const Shape& shape, MemoryFormat format = MemoryFormat::contiguous) {
  return Tensor::empty(shape, {.dtype = DType::f16, .format = format});
}

// y and x, broadcast to the shape of y, as a copy sees them.
struct Pair {
  AnyView y, x;
  StridedPlan<2> plan;

  Pair(const Tensor& to, const Tensor& from)
      : y(to.raw()),
        x(from.raw()),
        plan(y.shape, {y.strides, broadcast_strides(x.shape, x.strides, y.shape)}) {}
  std::optional<StridedPlan<2>> packs() const {
    return plan_packs(plan, y.data, x.data, size_of(y.dtype));
  }
  std::optional<RepeatedRows> rows() const {
    const auto by_packs = packs();
    return by_packs ? plan_repeated_rows(*by_packs) : std::nullopt;
  }
};

// The place in x that each place in y is written from.
using Places = std::map<int64_t, int64_t>;

// Axis by axis, from the shapes and strides alone.
Places places_of(const Pair& pair) {
  const Strides x = broadcast_strides(pair.x.shape, pair.x.strides, pair.y.shape);
  Places places;
  for (int64_t i = 0; i < pair.y.shape.numel(); ++i) {
    int64_t rest = i, at_y = 0, at_x = 0;
    for (int axis = pair.y.shape.rank() - 1; axis >= 0; --axis) {
      const int64_t at = rest % pair.y.shape[axis];
      rest /= pair.y.shape[axis];
      at_y += at * pair.y.strides[axis];
      at_x += at * x[axis];
    }
    places[at_y] = at_x;
  }
  return places;
}

// What the kernel does, a thread for each pack, `rows` times each.
void expect_copies(const Pair& pair, const StridedPlan<2>& packs, int rows, int64_t row) {
  ASSERT_TRUE(PackAxes<2>::take(packs));
  const PackAxes<2> axes(packs);
  const int64_t width = 16 / size_of(pair.y.dtype);
  const bool repeats = pair.plan.strides[1][pair.plan.rank - 1] == 0;
  Places written;
  for (int64_t i = 0; i < packs.count; ++i) {
    const StridedOffsets<2> at = axes.offsets(static_cast<uint32_t>(i));
    for (int r = 0; r < rows; ++r) {
      ASSERT_EQ((at.at[0] + r * row) % width, 0);
      for (int64_t j = 0; j < width; ++j) {
        const int64_t to = at.at[0] + r * row + j, from = at.at[1] + (repeats ? 0 : j);
        ASSERT_TRUE(written.emplace(to, from).second) << "written twice: " << to;
      }
    }
  }
  EXPECT_TRUE(written == places_of(pair));
}

// `row` is the stride in y of the axis that is to be taken.
void expect_rows(const Tensor& y, const Tensor& x, int64_t row) {
  SCOPED_TRACE(to_string(y.shape()) + " of " + to_string(x.shape()));
  const Pair pair(y, x);
  const auto rows = pair.rows();
  ASSERT_TRUE(rows.has_value());
  EXPECT_EQ(rows->row, row);
  EXPECT_EQ(rows->packs.count * kCopyRows, pair.packs()->count);
  expect_copies(pair, rows->packs, kCopyRows, rows->row);
}

// Packs that are stored once each.
void expect_packs_only(const Tensor& y, const Tensor& x) {
  SCOPED_TRACE(to_string(y.shape()) + " of " + to_string(x.shape()));
  const Pair pair(y, x);
  const auto packs = pair.packs();
  ASSERT_TRUE(packs.has_value());
  EXPECT_FALSE(pair.rows());
  expect_copies(pair, *packs, 1, 0);
}

TEST(CopyPlan, RowsThatXRepeatsAreReadOnceForFourStores) {
  expect_rows(halves({8, 3, 64}), halves({1, 3, 64}), 3 * 64);  // the first axis
  expect_rows(halves({3, 8, 64}), halves({3, 1, 64}), 64);      // in the middle
  expect_rows(halves({2, 12, 5, 64}), halves({2, 1, 5, 64}), 5 * 64);
  // An extent that becomes 1, alone and between axes that merge then.
  expect_rows(halves({4, 64}), halves({1, 64}), 64);
  expect_rows(halves({3, 4, 64}), halves({3, 1, 64}), 64);
  expect_rows(halves({4, 3, 64}), halves({1, 3, 64}), 3 * 64);
  // Of two axes the inner one, unless its extent does not fit.
  expect_rows(halves({4, 3, 8, 64}), halves({1, 3, 1, 64}), 64);
  expect_rows(halves({4, 3, 6, 64}), halves({1, 3, 1, 64}), 3 * 6 * 64);
  // The run of packs may be one along which x repeats a pack.
  expect_rows(halves({4, 3, 64, 8}), halves({1, 3, 1, 8}), 3 * 64 * 8);
  // Two neighbours, which are one.
  expect_rows(halves({3, 2, 2, 64}), halves({3, 1, 1, 64}), 64);
}

TEST(CopyPlan, RowsOfOtherLayoutsToo) {
  // y permuted: its own order is walked, and its own innermost axis has the packs.
  expect_rows(halves({8, 3, 64}).transpose(0, 1), halves({3, 1, 64}), 3 * 64);
  expect_rows(halves({3, 8, 64}).permute({2, 0, 1}), halves({3, 1, 64}).permute({2, 0, 1}), 64);
  // Gaps in y, between rows and between groups of them; x with gaps.
  expect_rows(halves({3, 8, 72}).slice(2, 0, 64), halves({3, 1, 64}), 72);
  expect_rows(halves({3, 9, 64}).slice(1, 0, 8), halves({3, 1, 64}), 64);
  expect_rows(halves({3, 8, 64}), halves({3, 1, 80}).slice(2, 8, 72), 64);
  // Channels-last: over the pixels, and over the images.
  expect_rows(halves({2, 64, 4, 6}, kLast), halves({2, 64, 1, 1}, kLast), 64);
  expect_rows(halves({4, 64, 3, 5}, kLast), halves({1, 64, 3, 5}, kLast), 64 * 3 * 5);
}

TEST(CopyPlan, RowsOfEveryElementSize) {
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
    const int64_t run = kCopyRun * 16 / size_of(dtype);
    const TensorOptions options{.dtype = dtype};
    expect_rows(Tensor::empty({3, 8, run}, options), Tensor::empty({3, 1, run}, options), run);
    const int64_t shorter = run - 16 / size_of(dtype);
    expect_packs_only(Tensor::empty({3, 8, shorter}, options),
                      Tensor::empty({3, 1, shorter}, options));
  }
}

TEST(CopyPlan, OtherPacksAreStoredOnce) {
  expect_packs_only(halves({3, 6, 64}), halves({3, 1, 64}));  // six is not a multiple of four
  expect_packs_only(halves({3, 2, 64}), halves({3, 1, 64}));  // two is less
  expect_packs_only(halves({3, 8, 56}), halves({3, 1, 56}));  // runs of seven packs
  expect_packs_only(halves({3, 64, 8}), halves({3, 1, 8}));   // along the innermost axis of packs
  expect_packs_only(halves({64, 8}), halves({1, 8}));         // which is the only one here
  expect_packs_only(halves({3, 4, 64}), halves({3, 4, 1}));   // x repeats elements, not rows
  expect_packs_only(halves({2, 3, 64}), halves({3, 2, 64}).transpose(0, 1));  // x steps along all
  expect_packs_only(halves({4, 8, 64}), halves({4, 8, 128}).slice(2, 0, 64));
}

TEST(CopyPlan, WhatCannotBeAccessedInPacksHasNone) {
  const Tensor y = halves({3, 8, 64}), x = halves({3, 1, 64});
  const auto packs = [](const Tensor& to, const Tensor& from) {
    return Pair(to, from).packs().has_value();
  };
  ASSERT_TRUE(packs(y, x));
  EXPECT_FALSE(packs(halves({3, 8, 72}).slice(2, 1, 65), x));       // y not aligned
  EXPECT_FALSE(packs(y, halves({3, 1, 72}).slice(2, 1, 65)));       // x not aligned
  EXPECT_FALSE(packs(halves({3, 8, 68}).slice(2, 0, 64), x));       // rows of y not aligned
  EXPECT_FALSE(packs(y, halves({3, 1, 68}).slice(2, 0, 64)));       // rows of x not aligned
  EXPECT_FALSE(packs(y.slice(2, 0, 60), x.slice(2, 0, 60)));        // half a pack at the end
  EXPECT_FALSE(packs(halves({3, 8, 128}).slice(2, 0, 128, 2), x));  // every other element
  EXPECT_FALSE(packs(y, halves({3, 1, 128}).slice(2, 0, 128, 2)));
  EXPECT_FALSE(packs(halves({}), halves({})));
  // One element for a pack may lie anywhere.
  expect_packs_only(y, halves({3, 1, 3}).slice(2, 1, 2));
}

}  // namespace
}  // namespace gradus
