// The plans of the CUDA reductions, walked on the host as the kernels walk them: every element goes
// to the right output once, by accesses that are aligned.
#include "cuda/reduce_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "core/tensor.h"
#include "cuda/reduce_column_packs.h"
#include "cuda/reduce_packs_plan.h"
#include "cuda/reduce_short_rows_plan.h"

namespace gradus {
namespace {

// What the kernels reduce: per output offset in y, the offsets in the t-th tensor.
template <int X>
std::map<int64_t, std::vector<int64_t>> walk(const ReducePlan<X>& plan, int64_t width, int t) {
  const int64_t pack = plan.packed ? width : 1;
  const bool by_columns = plan.mapping == ReduceMapping::columns;
  std::map<int64_t, std::vector<int64_t>> reduced;
  for (int64_t o = 0; o < plan.outputs; ++o) {
    const int64_t outer = o / plan.columns, column = o % plan.columns;
    const StridedOffsets<X + 1> at = plan.kept.offsets(outer);
    std::vector<int64_t>& terms = reduced[at.at[X] + column * plan.column[X]];
    for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
      const int64_t begin = chunk * plan.chunk_size;
      const int64_t end = std::min(begin + plan.chunk_size, plan.reduced.count);
      EXPECT_LT(begin, end) << "an empty chunk";
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first =
            at.at[t] + plan.reduced.offsets(i).at[t] + (column - column % pack) * plan.column[t];
        EXPECT_EQ(first % pack, 0) << "an unaligned pack";
        if (by_columns) {
          terms.push_back(first + column % pack * plan.column[t]);
        } else {
          for (int64_t j = 0; j < pack; ++j) terms.push_back(first + j);
        }
      }
    }
  }
  return reduced;
}

// Each thread finds by steps what the items' indices say.
template <int t, int X>
void expect_steps(const ReducePlan<X>& plan) {
  for (int64_t first = 0; first < std::min(plan.item_step, plan.reduced.count); ++first) {
    ItemWalk<true, t, X> walk(plan, first);
    for (int64_t i = first; i < plan.reduced.count; i += plan.item_step)
      ASSERT_EQ(walk.next(), plan.reduced.offsets(i).at[t]) << "item " << i;
  }
  EXPECT_TRUE(plan.steps || (plan.reduced.rank > 2 && !plan.packed));
}

template <int X>
void expect_walks(const ReducePlan<X>& plan, int t, const Tensor& x, const Tensor& y) {
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
  auto got = walk(plan, reduce_pack(size_of(x.dtype())), t);
  for (auto* sets : {&got, &want}) {
    for (auto& [at, terms] : *sets) std::sort(terms.begin(), terms.end());
  }
  ASSERT_EQ(got, want) << to_string(x) << " strides " << to_string(x.strides());
  if (plan.mapping == ReduceMapping::columns) {
    const int64_t packs = plan.kept.count * plan.column_slots;
    EXPECT_GE(plan.column_slots, plan.column_packs);
    EXPECT_GE(plan.tiles * plan.block_x, packs);
    EXPECT_LT((plan.tiles - 1) * plan.block_x, packs);
    EXPECT_EQ(kReduceThreads % plan.block_x, 0);
    for (const int64_t pack : {int64_t{0}, packs / 2, packs - 1}) {
      EXPECT_EQ(plan.column_divisor.quotient(static_cast<uint32_t>(pack)),
                pack / plan.column_slots);
    }
  } else {
    EXPECT_EQ(kReduceThreads % plan.lanes, 0);
    EXPECT_EQ(plan.lanes > 32, plan.mapping == ReduceMapping::block_per_output);
  }
}

// Every element of dx once, beside its x and its output, if packs fit at all; whether they do.
bool expect_packs(const Tensor& dx, const Tensor& x, const Tensor& y) {
  const auto packs = plan_backward_packs(dx.raw(), x.raw(), y.raw());
  if (!packs) return false;
  const int64_t width = reduce_pack(size_of(x.dtype()));
  std::map<int64_t, std::pair<int64_t, int64_t>> got, want;
  for (int64_t i = 0; i < x.numel() / width; ++i) {
    const StridedOffsets<3> at = packs->axes.offsets(static_cast<uint32_t>(i));
    EXPECT_TRUE(at.at[0] % width == 0 && at.at[1] % width == 0) << "an unaligned pack";
    EXPECT_TRUE(!packs->neighbours || at.at[2] % width == 0) << "unaligned outputs";
    for (int64_t j = 0; j < width; ++j)
      got[at.at[0] + j] = {at.at[1] + j, at.at[2] + (packs->neighbours ? j : 0)};
  }
  const StridedPlan<3> all(
      x.shape(), {dx.strides(), x.strides(), broadcast_strides(y.shape(), y.strides(), x.shape())});
  for (int64_t i = 0; i < x.numel(); ++i) {
    const StridedOffsets<3> at = all.offsets(i);
    want[at.at[0]] = {at.at[1], at.at[2]};
  }
  EXPECT_EQ(got, want) << to_string(x);
  return true;
}

// Each element of x, by its index, goes to the output with the same index on the kept axes.
void expect_covers(const Tensor& x, const std::vector<int>& axes) {
  Shape kept = x.shape();
  for (const int axis : axes) kept[axis] = 1;
  const Tensor y = Tensor::empty(kept, {.dtype = x.dtype()});
  expect_walks(plan_reduce(x.raw(), y.raw()), 0, x, y);
  const Tensor dx = empty_like(x);
  expect_steps<0>(plan_reduce(x.raw(), y.raw()));
  const ReducePlan<2> backward = plan_reduce_backward(dx.raw(), x.raw(), y.raw());
  expect_steps<0>(backward);
  expect_steps<1>(backward);
  if (backward.mapping == ReduceMapping::columns) {  // one turn for each thread
    EXPECT_EQ(backward.chunk_size, backward.item_step * detail::gradient_rows(backward.packed));
  }
  expect_walks(backward, 0, dx, y);
  expect_walks(backward, 1, x, y);
  expect_packs(dx, x, y);
}

TEST(ReducePlans, CoversEveryElementOnce) {
  const Shape shapes[] = {
      {},        {1},       {7},          {2, 3, 4, 5},  {3, 1, 16, 2}, {5, 300},
      {300, 5},  {2, 8, 8}, {4, 1, 6, 8}, {1, 33, 2, 9}, {5, 3, 7, 16}, {64, 40},
      {2048, 4}, {3, 4099}, {40, 3, 24}};
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

AnyView view(const Shape& shape, DType dtype = DType::f32) {
  return {.dtype = dtype, .given = true, .shape = shape, .strides = strides_of(shape)};
}

TEST(ReducePlans, LargeSetsOfFewOutputsAreCutIntoChunks) {
  const auto plan_of = [](const Shape& shape, const Shape& kept) {
    return plan_reduce(view(shape), view(kept));
  };
  const ReducePlan<1> all = plan_of({1 << 24}, {1});
  EXPECT_EQ(all.mapping, ReduceMapping::block_per_output);
  EXPECT_TRUE(all.packed);
  EXPECT_EQ(all.chunks, 316);
  const ReducePlan<1> channels = plan_of({256, 128, 56, 56}, {1, 128, 1, 1});
  EXPECT_EQ(channels.mapping, ReduceMapping::block_per_output);
  EXPECT_EQ(channels.chunks, 16);  // of whole turns of a block
  const ReducePlan<1> bias = plan_of({1 << 20, 32}, {1, 32});
  EXPECT_EQ(bias.mapping, ReduceMapping::columns);
  EXPECT_EQ(bias.block_x, 8);
  EXPECT_EQ(bias.chunks, 256);
  // Whole turns of eight rows for each of 64 threads above each other; 256 blocks suffice.
  const ReducePlan<1> turns =
      plan_reduce(view({512 * 784, 32}, DType::bf16), view({1, 32}, DType::bf16));
  EXPECT_EQ(turns.block_x, 4);
  EXPECT_EQ(turns.chunk_size, 2048);
  EXPECT_EQ(turns.chunks, 196);
  EXPECT_FALSE(turns.one_turn);
  EXPECT_TRUE(plan_of({1 << 16, 32}, {1, 32}).one_turn);
  EXPECT_FALSE(plan_of({(1 << 16) - 1, 32}, {1, 32}).one_turn);
  EXPECT_EQ(plan_of({1 << 20, 49}, {1 << 20, 1}).mapping, ReduceMapping::lanes_per_output);
  EXPECT_EQ(plan_of({1 << 20, 7}, {1 << 20, 1}).mapping, ReduceMapping::columns);
  EXPECT_EQ(plan_of({32768, 4096}, {32768, 1}).mapping, ReduceMapping::lanes_per_output);
}

// As many blocks as four to a multiprocessor take, in clusters of up to eight, where the sets are
// long enough.
TEST(ReducePlans, ChunksOfFewHundredOutputsAreClusters) {
  const auto plan_of = [](int64_t outputs, int64_t items) {
    return plan_reduce(view({outputs, 4 * items}), view({outputs, 1}));
  };
  const auto expect = [](const ReducePlan<1>& plan, int64_t chunks, bool clusters, bool fills) {
    EXPECT_EQ(plan.mapping, ReduceMapping::block_per_output);
    EXPECT_EQ(plan.chunks, chunks) << plan.outputs << " outputs";
    EXPECT_EQ(fits_cluster(plan), clusters) << plan.outputs << " outputs";
    EXPECT_EQ(plan.fills_card, fills) << plan.outputs << " outputs";
  };
  expect(plan_reduce(view({128, 64, 32, 32}), view({1, 64, 1, 1})), 8, true, true);
  expect(plan_reduce(view({128, 64, 32, 32}, DType::bf16), view({1, 64, 1, 1}, DType::bf16)), 8,
         true, true);
  expect(plan_of(64, 4096), 4, true, false);
  expect(plan_reduce(view({64, 32767}), view({64, 1})), 4, true, false);  // not in packs
  expect(plan_of(16, 1 << 15), 16, false, false);
  expect(plan_of(32, 1 << 15), 8, true, false);
  expect(plan_of(128, 1 << 15), 4, true, true);
  expect(plan_of(256, 1 << 15), 2, true, true);
  expect(plan_of(512, 1 << 12), 1, false, true);
  // The kernel counts the items of a set in 32 bits.
  EXPECT_FALSE(fits_cluster(plan_reduce(view({2, int64_t{3} << 31}), view({2, 1}))));
}

TEST(ReducePlans, ShortSetsShareAWarp) {
  // Channels-last over the channels: 32 packs, 16 packs; four for each thread.
  const Shape rows{1 << 20, 128}, kept{1 << 20, 1};
  EXPECT_EQ(plan_reduce(view(rows), view(kept)).lanes, 8);
  EXPECT_EQ(plan_reduce(view(rows, DType::bf16), view(kept, DType::bf16)).lanes, 4);
  // Fewer of them have more threads each.
  EXPECT_EQ(plan_reduce(view({1024, 128}), view({1024, 1})).lanes, 32);
  EXPECT_EQ(plan_reduce(view({32768, 4096}), view({32768, 1})).lanes, 32);
}

// Packs of columns lie where the plan says, and nothing else is taken for them.
TEST(ReducePlans, PacksOfColumns) {
  const auto expect_places = [](const AnyView& x, const AnyView& y) {
    const ReducePlan<1> plan = plan_reduce(x, y);
    ASSERT_TRUE(ColumnPacks<1>::take(plan));
    const ColumnPacks<1> packs(plan);
    ASSERT_EQ(int64_t{packs.count} * 4, plan.outputs);
    for (uint32_t pack = 0; pack < packs.count; ++pack) {
      const int64_t outer = pack * 4 / plan.columns, column = pack * 4 % plan.columns;
      for (const uint32_t row : {0u, 1u, static_cast<uint32_t>(plan.reduced.count - 1)}) {
        ASSERT_EQ(packs.place<4>(0, pack, row),
                  plan.kept.offsets(outer).at[0] + column + plan.reduced.offsets(row).at[0]);
      }
    }
  };
  const AnyView y = view({5, 1, 8, 7});
  expect_places(view({5, 64, 8, 7}), y);
  AnyView slice = view({5, 64, 8, 7});  // of 100 channels, from rows of 12 * 7
  slice.strides[0] = 100 * 84;
  slice.strides[1] = 84;
  expect_places(slice, y);
  expect_places(view({64, 40}), view({1, 40}));

  slice.strides[2] = 8;  // columns 7 apart are not one axis
  EXPECT_FALSE(ColumnPacks<1>::take(plan_reduce(slice, y)));
  EXPECT_FALSE(ColumnPacks<1>::take(plan_reduce(view({5, 64, 3, 8}), view({1, 64, 1, 8}))));
  AnyView two_kept = view({5, 6, 64, 40});
  two_kept.strides[0] *= 2;
  EXPECT_FALSE(ColumnPacks<1>::take(plan_reduce(two_kept, view({5, 6, 1, 40}))));
  EXPECT_FALSE(ColumnPacks<1>::take(plan_reduce(view({5, 64, 7, 9}), view({5, 1, 7, 9}))));
  AnyView gaps = view({5, 1, 56});  // of outputs
  gaps.strides[0] = 60;
  EXPECT_FALSE(ColumnPacks<1>::take(plan_reduce(view({5, 64, 56}), gaps)));
}

TEST(ReducePlans, ColumnsHaveEnoughThreads) {
  // Up to eight threads share a pack of columns, each with eight rows or more; sixteen where that
  // makes all rows one turn.
  const Shape large{256, 128, 56, 56}, small{128, 64, 32, 32};
  const ReducePlan<1> f32 = plan_reduce(view(large), view({256, 1, 56, 56}));
  EXPECT_EQ(f32.mapping, ReduceMapping::columns);
  EXPECT_EQ(f32.block_x, 16);
  EXPECT_EQ(f32.tiles, 12544);
  EXPECT_EQ(f32.chunks, 1);
  EXPECT_TRUE(f32.one_turn);
  const ReducePlan<1> more = plan_reduce(view({256, 136, 56, 56}), view({256, 1, 56, 56}));
  EXPECT_EQ(more.block_x, 32);
  EXPECT_FALSE(more.one_turn);
  EXPECT_EQ(plan_reduce(view(small, DType::bf16), view({128, 1, 32, 32}, DType::bf16)).block_x, 32);
  EXPECT_TRUE(plan_reduce(view(small, DType::bf16), view({128, 1, 32, 32}, DType::bf16)).one_turn);
  EXPECT_FALSE(plan_reduce(view({128, 64, 31, 31}), view({128, 1, 31, 31})).one_turn);
  EXPECT_EQ(plan_reduce(view({128, 63, 32, 32}), view({128, 1, 32, 32})).block_x, 64);
  EXPECT_EQ(plan_reduce(view({128, 15, 32, 32}), view({128, 1, 32, 32})).block_x, 256);
  // A block holds a set whose rows are one turn of it.
  EXPECT_TRUE(holds_sets(f32, 4));
  EXPECT_FALSE(holds_sets(more, 4));
  const ReducePlan<1> chunks = plan_reduce(view({1 << 16, 32}), view({1, 32}));
  EXPECT_TRUE(takes_turns(chunks, 4));
  EXPECT_FALSE(holds_sets(chunks, 4));
  // Gradients: two rows for each thread, four where packs do not fit.
  const AnyView x = view(large, DType::bf16), y = view({256, 1, 56, 56}, DType::bf16);
  const ReducePlan<2> gradient = plan_reduce_backward(x, x, y);
  EXPECT_EQ(gradient.block_x, 32);
  EXPECT_EQ(gradient.chunk_size, 16);
  EXPECT_EQ(gradient.chunks, 8);
  const AnyView odd = view({256, 128, 55, 55}), sums = view({256, 1, 55, 55});
  EXPECT_EQ(plan_reduce_backward(odd, odd, sums).chunk_size, 32);
}

// Cards with clusters and cards without merge the chunks of a set along x in one order.
TEST(ReducePlans, OnlyColumnsMergeAcrossOutputs) {
  const ReducePlan<1> rows = plan_reduce(view({2000, 1 << 17}), view({2000, 1}));
  EXPECT_EQ(rows.mapping, ReduceMapping::block_per_output);
  EXPECT_EQ(rows.chunks, 2);
  EXPECT_FALSE(merges_across(rows));
  EXPECT_TRUE(merges_across(plan_reduce(view({1 << 16, 2000}), view({1, 2000}))));
  EXPECT_FALSE(merges_across(plan_reduce(view({1 << 16, 1024}), view({1, 1024}))));
}

TEST(ReducePlans, AxesThatDoNotMerge) {
  const Shape large{256, 128, 56, 56};
  // Over n and h: 14336 rows of 7 packs, a tile for each of 128 channels.
  const ReducePlan<1> columns =
      plan_reduce(view(large, DType::bf16), view({1, 128, 1, 56}, DType::bf16));
  EXPECT_EQ(columns.mapping, ReduceMapping::columns);
  EXPECT_TRUE(columns.packed);
  EXPECT_EQ(columns.block_x, 8);
  EXPECT_EQ(columns.tiles, 128);
  EXPECT_EQ(columns.chunks, 2);
  EXPECT_EQ(columns.chunk_size, 7168);
  const ReducePlan<1> wide = plan_reduce(view({8, 4, 56, 520}), view({1, 4, 1, 520}));
  EXPECT_EQ(wide.column_slots, 130);
  EXPECT_EQ(wide.block_x, 32);
  // Over c and w: 1792 packs per set, a warp for each of 14336 sets; fewer sets have a block each.
  EXPECT_EQ(plan_reduce(view(large), view({256, 1, 56, 1})).lanes, 32);
  EXPECT_EQ(plan_reduce(view({128, 128, 56, 56}), view({128, 1, 56, 1})).lanes, kReduceThreads);
}

TEST(ReducePlans, GradientsGoInTheOrderOfMemory) {
  const auto fits = [](const Tensor& x, const Shape& kept) {
    return expect_packs(empty_like(x), x, Tensor::empty(kept, {.dtype = x.dtype()}));
  };
  const Tensor x = Tensor::empty({3, 4, 5, 8}, {.dtype = DType::bf16});
  EXPECT_TRUE(fits(x, {3, 1, 5, 1}));
  EXPECT_TRUE(fits(x, {1, 1, 1, 1}));
  EXPECT_TRUE(fits(x, {3, 4, 5, 1}));
  EXPECT_TRUE(fits(x, {1, 4, 1, 8}));
  EXPECT_FALSE(fits(x, {3, 4, 1, 8}));  // across x, one axis
  EXPECT_FALSE(fits(x.slice(3, 0, 7), {3, 4, 5, 1}));
  EXPECT_FALSE(fits(x.slice(3, 1, 8), {3, 4, 5, 1}));
  EXPECT_FALSE(fits(Tensor::empty({2, 8}, {.dtype = DType::f64}), {2, 1}));
  EXPECT_FALSE(fits(Tensor::empty({2, 2, 2, 2, 2, 8}), {2, 1, 2, 1, 2, 1}));  // six axes
  // The outputs of a pack lie apart.
  EXPECT_FALSE(
      fits(Tensor::empty({2, 8, 3, 3}, {.format = MemoryFormat::channels_last}), {1, 8, 3, 3}));
}

TEST(ReducePlans, PacksHaveFewReducedAxes) {
  const auto is_packed = [](const Shape& x, const Shape& y) {
    return plan_reduce(view(x), view(y)).packed;
  };
  EXPECT_TRUE(is_packed({4, 64, 4, 64}, {4, 1, 4, 64}));   // columns, one
  EXPECT_TRUE(is_packed({4, 64, 4, 64}, {1, 64, 1, 64}));  // columns, two
  EXPECT_TRUE(is_packed({4, 4, 4, 64}, {1, 4, 1, 1}));     // along x, two
  EXPECT_FALSE(is_packed({4, 4, 4, 4, 64}, {1, 4, 1, 4, 1}));
}

// A view whose rows, or whose elements, do not begin at every pack's bounds goes one by one.
TEST(ReducePlans, PacksAreAligned) {
  const Tensor base = Tensor::empty({64, 66}), dx = Tensor::empty({64, 64});
  const Tensor along = Tensor::empty({64, 1}), across = Tensor::empty({1, 64});
  const Tensor whole = Tensor::empty({64, 64}), unaligned = Tensor::empty({64 * 64 + 1});
  EXPECT_TRUE(plan_reduce(whole.raw(), along.raw()).packed);
  EXPECT_TRUE(plan_reduce(whole.raw(), across.raw()).packed);
  EXPECT_TRUE(plan_backward_packs(dx.raw(), whole.raw(), along.raw()).has_value());
  const Tensor views[] = {base.slice(1, 0, 64),                        // rows 66 apart
                          unaligned.as_strided({64, 64}, {64, 1}, 1),  // from the second element on
                          Tensor::empty({64, 128}).slice(1, 0, 128, 2)};  // two apart
  for (const Tensor& x : views) {
    SCOPED_TRACE(to_string(x.strides()));
    EXPECT_FALSE(plan_reduce(x.raw(), along.raw()).packed);
    EXPECT_FALSE(plan_reduce(x.raw(), across.raw()).packed);
    EXPECT_FALSE(plan_reduce_backward(dx.raw(), x.raw(), across.raw()).packed);
    EXPECT_FALSE(plan_backward_packs(dx.raw(), x.raw(), along.raw()).has_value());
  }
}

TEST(ReducePlans, ShortRowsThatPacksDoNotDivideShareABlock) {
  const auto rows = [](const Shape& x, const Shape& y, DType dtype = DType::f32) {
    return plan_reduce_short_rows(plan_reduce(view(x, dtype), view(y, dtype)), size_of(dtype));
  };
  const ReduceShortRows plan = rows({256, 2048, 49}, {256, 2048, 1}, DType::bf16);
  EXPECT_EQ(plan.outputs, 256 * 2048);
  EXPECT_EQ(plan.lanes, 4);
  EXPECT_EQ(plan.rows, 192);  // three for each lane, of 20 KB at most
  EXPECT_EQ(plan.shared_bytes, 192 * 98 + 16);
  EXPECT_EQ(rows({4355, 49}, {4355, 1}).rows, 64);  // more would leave most of a card idle
  EXPECT_EQ(rows({3000, 49}, {3000, 1}).outputs, 0);
  EXPECT_EQ(rows({1 << 20, 48}, {1 << 20, 1}).outputs, 0);           // in packs
  EXPECT_EQ(rows({1 << 20, 513}, {1 << 20, 1}).outputs, 0);          // longer than 2 KB
  EXPECT_EQ(rows({256, 49, 2048}, {256, 1, 2048}).outputs, 0);       // across x
  EXPECT_EQ(rows({512, 49, 128, 49}, {512, 1, 128, 1}).outputs, 0);  // two axes
}

}  // namespace
}  // namespace gradus
