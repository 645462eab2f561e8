// The plan of the CUDA sum, walked on the host as the kernels walk it: every element is added once,
// into the right output, by accesses that are aligned.
#include "cuda/sum_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "core/tensor.h"

namespace gradus {
namespace {

// What the kernels of cuda/sum.cu would add up: per output offset in y, the offsets in x.
std::map<int64_t, std::vector<int64_t>> walk(const SumPlan& plan, int64_t width) {
  const int64_t pack = plan.packed ? width : 1;
  const bool by_columns = plan.mapping == SumMapping::columns;
  std::map<int64_t, std::vector<int64_t>> added;
  for (int64_t o = 0; o < plan.outputs; ++o) {
    const int64_t outer = o / plan.columns, column = o % plan.columns;
    const StridedOffsets<2> at = plan.kept.offsets(outer);
    std::vector<int64_t>& terms = added[at.at[1] + column * plan.column_y];
    for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
      const int64_t begin = chunk * plan.chunk_size;
      const int64_t end = std::min(begin + plan.chunk_size, plan.reduced.count);
      EXPECT_LT(begin, end) << "an empty chunk";
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first =
            at.at[0] + plan.reduced.offsets(i).at[0] + (column - column % pack) * plan.column_x;
        EXPECT_EQ(first % pack, 0) << "an unaligned pack";
        if (by_columns) {
          terms.push_back(first + column % pack * plan.column_x);
        } else {
          for (int64_t j = 0; j < pack; ++j) terms.push_back(first + j);
        }
      }
    }
  }
  return added;
}

// Each element of x, by its index, goes to the output with the same index on the kept axes.
void expect_covers(const Tensor& x, const std::vector<int>& axes) {
  Shape kept = x.shape();
  for (const int axis : axes) kept[axis] = 1;
  const Tensor y = Tensor::empty(kept, {.dtype = x.dtype()});
  const SumPlan plan = plan_sum(x.raw(), y.raw());
  std::map<int64_t, std::vector<int64_t>> want;
  const Strides to = broadcast_strides(y.shape(), y.strides(), x.shape());
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t rest = i, in_x = 0, in_y = 0;
    for (int axis = x.rank() - 1; axis >= 0; --axis) {
      in_x += rest % x.size(axis) * x.strides()[axis];
      in_y += rest % x.size(axis) * to[axis];
      rest /= x.size(axis);
    }
    want[in_y].push_back(in_x);
  }
  auto got = walk(plan, 16 / size_of(x.dtype()));
  for (auto* sums : {&got, &want}) {
    for (auto& [at, terms] : *sums) std::sort(terms.begin(), terms.end());
  }
  ASSERT_EQ(got, want) << to_string(x) << " strides " << to_string(x.strides());
  if (plan.mapping == SumMapping::columns) {
    const int64_t packs = plan.columns / (plan.packed ? 16 / size_of(x.dtype()) : 1);
    EXPECT_GE(plan.tiles * plan.block_x, packs);
    EXPECT_LT((plan.tiles - 1) * plan.block_x, packs);
    EXPECT_EQ(kSumThreads % plan.block_x, 0);
  }
}

TEST(SumPlan, CoversEveryElementOnce) {
  const Shape shapes[] = {{},       {1},       {7},       {2, 3, 4, 5}, {3, 1, 16, 2},
                          {5, 300}, {300, 5},  {2, 8, 8}, {4, 1, 6, 8}, {1, 33, 2, 9},
                          {64, 40}, {2048, 4}, {3, 4099}, {40, 3, 24}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      const Tensor x = Tensor::empty(shape, {.dtype = dtype});
      for (int mask = 0; mask < 1 << shape.rank(); ++mask) {
        std::vector<int> axes;
        for (int axis = 0; axis < shape.rank(); ++axis) {
          if (mask >> axis & 1) axes.push_back(axis);
        }
        expect_covers(x, axes);
        if (shape.rank() == 4) expect_covers(x.contiguous(MemoryFormat::channels_last), axes);
        if (shape.rank() == 2) expect_covers(x.transpose(0, 1), axes);
        if (shape.rank() == 2 && shape[1] > 2) expect_covers(x.slice(1, 1, 1000, 2), axes);
        if (shape.rank() == 3)
          expect_covers(x.unsqueeze(1).expand({shape[0], 3, shape[1], shape[2]}), axes);
      }
    }
  }
}

TEST(SumPlan, LargeSumsOfFewOutputsAreCutIntoChunks) {
  const auto plan_of = [](const Shape& shape, const Shape& kept) {
    AnyView x{.dtype = DType::f32, .given = true, .shape = shape, .strides = strides_of(shape)};
    AnyView y{.dtype = DType::f32, .given = true, .shape = kept, .strides = strides_of(kept)};
    return plan_sum(x, y);
  };
  const SumPlan all = plan_of({1 << 24}, {1});
  EXPECT_EQ(all.mapping, SumMapping::block_per_output);
  EXPECT_TRUE(all.packed);
  EXPECT_GE(all.chunks, 512);
  EXPECT_LE(all.chunks, 1024);
  const SumPlan channels = plan_of({256, 128, 56, 56}, {1, 128, 1, 1});
  EXPECT_EQ(channels.mapping, SumMapping::block_per_output);
  EXPECT_EQ(channels.chunks, 8);
  const SumPlan bias = plan_of({1 << 20, 32}, {1, 32});
  EXPECT_EQ(bias.mapping, SumMapping::columns);
  EXPECT_EQ(bias.block_x, 8);
  EXPECT_GE(bias.chunks, 512);
  const SumPlan across = plan_of({256, 128, 56, 56}, {256, 1, 56, 56});
  EXPECT_EQ(across.mapping, SumMapping::columns);
  EXPECT_EQ(across.chunks, 1);
  EXPECT_EQ(plan_of({1 << 20, 49}, {1 << 20, 1}).mapping, SumMapping::warp_per_output);
  EXPECT_EQ(plan_of({1 << 20, 7}, {1 << 20, 1}).mapping, SumMapping::columns);
}

}  // namespace
}  // namespace gradus
