// How a reduction over any axes, and its gradient, are shared out among threads; pure host code.
// What decides the order of addition depends on the shape, strides, dtype and alignment of x only,
// never on the card.
#pragma once

#include <bit>

#include "core/host_device.h"
#include "core/view.h"
#include "cuda/device/strided_plan.h"
#include "cuda/plan.h"

namespace gradus {

inline constexpr int kReduceThreads = 256;

// Elements that are accessed at once: 16 bytes; f64 goes one by one, so that its kernels are few.
constexpr int reduce_pack(int64_t element) {
  return element == 8 ? 1 : static_cast<int>(16 / element);
}

enum class ReduceMapping : uint8_t {
  lanes_per_output,  // short sets along x: a warp or a part of one for each
  block_per_output,  // long sets along x, in chunks where there are few outputs
  columns,           // sets across x: each thread takes whole packs of neighbouring outputs
};

// How a walk over items leads through one tensor: `step` elements on, and `wrap` more where the
// walk, `inner` items on along the last of two axes, passes its `extent`. (One axis has no end.)
struct ItemStep {
  int64_t step = 0, wrap = 0;
  int inner = 0, extent = INT32_MAX;
};

// The merged axes of X tensors of one shape (x; for a gradient dx and x) fall into `kept` ones and
// `reduced` ones, and for `columns` one kept axis apart, along which neighbouring threads work.
// Output o lies at index o / columns of `kept` and at o % columns along the column axis. Where both
// are packed, `reduced` or the columns count packs.
template <int X>
struct ReducePlan {
  ReduceMapping mapping = ReduceMapping::lanes_per_output;
  bool packed = false;           // 16 bytes at a time
  StridedPlan<X + 1> kept;       // offsets in the X tensors and in y
  StridedPlan<X> reduced;        // offsets in the X tensors
  int64_t outputs = 1;           // elements of y
  int64_t columns = 1;           // extent of the column axis, in elements
  int64_t column_packs = 1;      // the same in packs,
  int64_t column_slots = 1;      // and with the idle places of threads beside them
  int64_t column[X + 1] = {};    // its strides
  int64_t chunks = 1;            // a set is cut into so many parts,
  int64_t chunk_size = 0;        // of so many items of `reduced` each (the last may be shorter)
  bool one_turn = false;         // columns, forward: all chunks are eight rows for each thread
  int lanes = kReduceThreads;    // sets along x: threads that share one, a power of two
  bool clustered = false;        // the chunks of an output are the blocks of a cluster,
  bool fills_card = false;       // and there are so many that they are a wave or more
  FastDivisor column_divisor;    // by column_slots, for indices that fit 31 bits
  int block_x = kReduceThreads;  // columns: threads side by side; others share the rows
  int64_t tiles = 1;             // columns: blocks side by side, over all kept axes
  int64_t item_step = 1;         // items from one of a thread to its next
  bool steps = false;            // by `by_item`, without division
  ItemStep by_item[X];
};

// The items i, i + plan.item_step, ... of a set in tensor t: adds and carries.
template <bool kAny, int t, int X>
class ItemWalk {
 public:
  GRADUS_HD ItemWalk(const ReducePlan<X>& plan, int64_t i) : plan_(plan), i_(i) {
    const StridedPlan<X>& items = plan.reduced;
    if (kAny && !plan.steps) {
      at_ = items.offsets(i).at[t];
    } else if (items.rank < 2) {
      at_ = i * items.strides[t][0];
    } else {
      const uint32_t outer = items.divisors[1].quotient(static_cast<uint32_t>(i));
      inner_ = static_cast<int>(i) - static_cast<int>(outer) * plan.by_item[t].extent;
      at_ = outer * items.strides[t][0] + inner_ * items.strides[t][1];
    }
  }
  // Where the item lies; the walk is at the next one then.
  GRADUS_HD int64_t next() {
    const int64_t at = at_;
    if (kAny && !plan_.steps) {
      i_ += plan_.item_step;
      at_ = plan_.reduced.offsets(i_).at[t];
      return at;
    }
    const ItemStep& by = plan_.by_item[t];
    at_ += by.step;
    inner_ += by.inner;
    if (inner_ >= by.extent) {
      inner_ -= by.extent;
      at_ += by.wrap;
    }
    return at;
  }

 private:
  const ReducePlan<X>& plan_;
  int64_t i_, at_;
  int inner_ = 0;
};

namespace detail {

inline constexpr int64_t kShortSet = 32;  // items below which threads work on outputs of their own
inline constexpr int64_t kWarpItems = 256;          // items up to which a warp is enough for a set,
inline constexpr int64_t kManyWarpItems = 1024;     // or with many outputs; forward, with twice as
inline constexpr int64_t kManyOutputs = 4096;       // many, twice the items
inline constexpr int64_t kWantedBlocks = 4096;      // several waves of any current card,
inline constexpr int64_t kFewBlocks = 256;          // and one,
inline constexpr int64_t kFullBlocks = 512;         // or one of packs, four to a multiprocessor
inline constexpr int64_t kClusterChunks = 8;        // that a cluster merges
inline constexpr int64_t kLeastChunk = 1024;        // items that are worth a block: four per thread
inline constexpr int64_t kWantedThreads = 1 << 16;  // columns: enough to fill any of them
inline constexpr int64_t kLongestRun = 2048;        // items that one thread takes in a row
inline constexpr int kLeastRows = 8;                // columns: rows that are worth a thread,
constexpr int gradient_rows(bool packed) { return packed ? 2 : 4; }  // that one of a gradient has

// The merged axes, sorted into their roles.
template <int X>
struct ReduceAxes {
  Shape kept, reduced;
  std::array<Strides, X + 1> kept_strides;
  std::array<Strides, X> reduced_strides;
  int64_t columns = 1;
  int64_t column[X + 1] = {};
  bool by_columns = false;
};

template <int X>
ReduceAxes<X> sort_axes(const std::array<const AnyView*, X>& xs, const AnyView& y) {
  const Shape& shape = xs[0]->shape;
  std::array<Strides, X + 1> strides;
  for (int t = 0; t < X; ++t) strides[static_cast<size_t>(t)] = xs[static_cast<size_t>(t)]->strides;
  strides[X] = broadcast_strides(y.shape, y.strides, shape);
  const StridedPlan<X + 1> merged(shape, strides);
  const auto is_kept = [&](int axis) { return merged.strides[X][axis] != 0; };
  int column_axis = merged.rank - 1;
  const bool is_short = shape.numel() / y.numel() < kShortSet;
  while (is_short && column_axis >= 0 && !is_kept(column_axis)) --column_axis;
  ReduceAxes<X> axes;
  axes.by_columns = column_axis >= 0 && is_kept(column_axis);
  for (int axis = 0; axis < merged.rank; ++axis) {
    const int64_t extent = merged.extents[axis];
    if (axes.by_columns && axis == column_axis) {
      axes.columns = extent;
      for (int t = 0; t <= X; ++t) axes.column[t] = merged.strides[t][axis];
    } else if (is_kept(axis)) {
      axes.kept.append(extent);
      for (size_t t = 0; t <= X; ++t) axes.kept_strides[t].append(merged.strides[t][axis]);
    } else {
      axes.reduced.append(extent);
      for (size_t t = 0; t < X; ++t) axes.reduced_strides[t].append(merged.strides[t][axis]);
    }
  }
  return axes;
}

// Whether the tensors can be accessed in packs of `width` along the columns or along the innermost
// reduced axis; if so along the latter, that axis counts packs from here on. More reduced axes than
// two go one by one.
template <int X>
bool take_packs(ReduceAxes<X>& axes, const std::array<const AnyView*, X>& xs, int64_t width) {
  const int last = axes.reduced.rank() - 1;
  bool fits =
      axes.by_columns ? axes.columns % width == 0 : last >= 0 && axes.reduced[last] % width == 0;
  fits = fits && (last < 1 || (last == 1 && axes.reduced.numel() <= INT32_MAX));
  for (size_t t = 0; t < X; ++t) {
    fits = fits && pack_width(size_of(xs[t]->dtype), {xs[t]->data}, {}) == width;
    for (const int64_t stride : axes.kept_strides[t]) fits = fits && stride % width == 0;
    for (int axis = 0; axis <= last; ++axis) {
      const bool steps_in_packs = !axes.by_columns && axis == last;
      const int64_t stride = axes.reduced_strides[t][axis];
      fits = fits && (steps_in_packs ? stride == 1 : stride % width == 0);
    }
    if (axes.by_columns) fits = fits && axes.column[t] == 1;
  }
  if (fits && !axes.by_columns) {
    axes.reduced[last] /= width;
    for (Strides& strides : axes.reduced_strides) strides[last] = width;
  }
  return fits;
}

// Threads side by side for so many packs: a power of two.
inline int fitting_block(int64_t packs) {
  return static_cast<int>(
      std::min<uint64_t>(kReduceThreads, std::bit_ceil(static_cast<uint64_t>(packs))));
}

// Whether short rows of two reduced axes lie one behind the other in every tensor: then a block
// takes rows of one output only, with few idle threads, so that a warp's accesses are one run and
// do not end within a sector.
template <int X>
bool follow_each_other(const ReducePlan<X>& plan) {
  const int64_t slots = fitting_block(plan.column_packs);
  bool follow = plan.reduced.rank == 2 && slots <= 32 && plan.column_packs * 4 >= slots * 3;
  for (int t = 0; t < X; ++t) follow = follow && plan.reduced.strides[t][1] == plan.columns;
  return follow;
}

template <int X>
ReducePlan<X> plan_axes(const std::array<const AnyView*, X>& xs, const AnyView& y) {
  ReduceAxes<X> axes = sort_axes<X>(xs, y);
  ReducePlan<X> plan;
  const int64_t width = reduce_pack(size_of(xs[0]->dtype));
  // Gradients along x that fit packs have a plan of their own.
  plan.packed = width > 1 && (X == 1 || axes.by_columns) && take_packs<X>(axes, xs, width);
  plan.kept = StridedPlan<X + 1>(axes.kept, axes.kept_strides);
  plan.reduced = StridedPlan<X>(axes.reduced, axes.reduced_strides);
  plan.outputs = y.numel();
  plan.columns = axes.columns;
  std::copy(axes.column, axes.column + X + 1, plan.column);
  if (axes.by_columns) {
    plan.mapping = ReduceMapping::columns;
    plan.column_packs = axes.columns / (plan.packed ? width : 1);
    plan.column_slots = plan.column_packs;
    plan.block_x = fitting_block(plan.kept.count * plan.column_packs);
    if (plan.packed && follow_each_other(plan)) {
      plan.block_x = fitting_block(plan.column_packs);
      plan.column_slots = plan.block_x;
    }
    plan.column_divisor =
        FastDivisor(static_cast<uint32_t>(std::min<int64_t>(plan.column_slots, int64_t(1) << 31)));
  }
  return plan;
}

// Whether a set along x is more than a warp should take.
template <int X>
bool is_long(const ReducePlan<X>& plan) {
  const int64_t many =
      X == 1 && plan.outputs >= 2 * kManyOutputs ? 2 * kManyWarpItems : kManyWarpItems;
  return plan.reduced.count > (plan.outputs >= kManyOutputs ? many : kWarpItems);
}

// Threads that share a short set: a warp, or so few that each has four items, as long as there are
// enough of them.
template <int X>
int lanes_of(const ReducePlan<X>& plan) {
  const int64_t items = plan.reduced.count;
  auto lanes = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(items + 3) / 4));
  lanes = std::min<int64_t>(lanes, 32);
  while (lanes < 32 && lanes < items && plan.outputs * lanes < (1 << 16)) lanes *= 2;
  return static_cast<int>(lanes);
}

// Makes the tile of a block narrower, down to a warp, and gives it more threads above each other as
// long as each has `least` rows or more; returns how many.
template <int X>
int64_t stack_rows(ReducePlan<X>& plan, int64_t least) {
  int64_t rows = kReduceThreads / plan.block_x;
  for (; plan.block_x > 32 && plan.reduced.count >= 2 * rows * least; rows *= 2) plan.block_x /= 2;
  return rows;
}

// How the threads of an output step through its items.
template <int X>
void set_steps(ReducePlan<X>& plan) {
  const StridedPlan<X>& items = plan.reduced;
  const bool columns = plan.mapping == ReduceMapping::columns;
  plan.item_step = columns ? kReduceThreads / plan.block_x : plan.lanes;
  plan.steps = items.rank < 2 || (items.rank == 2 && items.small);
  for (int t = 0; t < X && plan.steps; ++t) {
    const auto& strides = items.strides[t];
    ItemStep& by = plan.by_item[t];
    if (items.rank < 2) {
      by.step = plan.item_step * strides[0];
    } else {
      const int64_t extent = items.extents[1], inner = plan.item_step % extent;
      by = {.step = plan.item_step / extent * strides[0] + inner * strides[1],
            .wrap = strides[0] - extent * strides[1],
            .inner = static_cast<int>(inner),
            .extent = static_cast<int>(extent)};
    }
  }
}

// Cuts the sets into chunks of a multiple of `multiple` items, counts blocks and sets steps.
template <int X>
void set_chunks(ReducePlan<X>& plan, int64_t least, int64_t most, int64_t multiple = 1) {
  const Chunks chunks =
      plan_chunks(plan.reduced.count, least, std::max<int64_t>(most, 1), multiple);
  plan.chunks = chunks.count;
  plan.chunk_size = chunks.size;
  plan.tiles = ceil_div(plan.kept.count * plan.column_slots, plan.block_x);
  set_steps(plan);
}

}  // namespace detail

// Whether packs of `width` neighbouring elements of the t-th tensor can be accessed at once
// wherever the plan leads; `pointers` are its first elements and those of others like it.
template <int N>
bool steps_in_packs(const StridedPlan<N>& plan, int t, int64_t width,
                    std::initializer_list<const void*> pointers) {
  bool fits = true;
  for (int axis = 0; axis < plan.rank; ++axis) fits = fits && plan.strides[t][axis] % width == 0;
  for (const void* pointer : pointers)
    fits = fits && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  return fits;
}

// Whether a block merges the chunks of 32 outputs, else a warp those of one: loads of a warp then
// lie side by side, but few outputs would meet few multiprocessors. Chunks of rows, which are a
// cluster on cards that have them, merge in one order on all cards.
inline bool merges_across(const ReducePlan<1>& plan) {
  return plan.mapping == ReduceMapping::columns && plan.outputs > 1024;
}

// Whether a cluster can merge the chunks of an output, on cards that have them.
inline bool fits_cluster(const ReducePlan<1>& plan) {
  return plan.mapping == ReduceMapping::block_per_output && plan.chunks > 1 &&
         plan.chunks <= detail::kClusterChunks;
}

// x and y as in core/ops/sum.h; x is not empty.
inline ReducePlan<1> plan_reduce(const AnyView& x, const AnyView& y) {
  ReducePlan<1> plan = detail::plan_axes<1>({&x}, y);
  const int64_t items = plan.reduced.count;
  if (plan.mapping == ReduceMapping::columns) {
    // First several threads per column, then several blocks, in whole turns of eight rows.
    int64_t rows = detail::stack_rows(plan, detail::kLeastRows);
    // Half a warp of packs side by side where each thread then has all of its rows in one turn.
    if (plan.packed && plan.block_x == 32 && items == 2 * rows * detail::kLeastRows) {
      plan.block_x /= 2;
      rows *= 2;
    }
    const int64_t packs = plan.kept.count * plan.column_slots;
    const int64_t most = std::max(detail::kWantedThreads / (packs * rows),
                                  ceil_div(items, rows * detail::kLongestRun));
    const int64_t turn = rows * detail::kLeastRows;
    detail::set_chunks(plan, turn, most, turn);
    plan.one_turn = plan.packed && plan.chunk_size == turn && items % turn == 0;
    return plan;
  }
  if (detail::is_long(plan)) {
    plan.mapping = ReduceMapping::block_per_output;
    const int64_t wanted = std::clamp(plan.outputs * items / (12 * detail::kLeastChunk),
                                      detail::kFewBlocks, detail::kWantedBlocks);
    const int64_t blocks = plan.packed ? detail::kFullBlocks : detail::kFewBlocks;
    const int64_t most =
        std::max({wanted / plan.outputs, std::min(blocks / plan.outputs, detail::kClusterChunks),
                  ceil_div(items, kReduceThreads * detail::kLongestRun)});
    detail::set_chunks(plan, most > 1 ? detail::kLeastChunk : items, most, detail::kLeastChunk);
    plan.fills_card = plan.packed && plan.outputs * plan.chunks >= detail::kFullBlocks;
  } else {
    plan.lanes = detail::lanes_of(plan);
    detail::set_chunks(plan, items, 1);
  }
  return plan;
}

// x and dx of one shape, y of the reduced one. Chunks are but shares of element-wise work.
inline ReducePlan<2> plan_reduce_backward(const AnyView& dx, const AnyView& x, const AnyView& y) {
  ReducePlan<2> plan = detail::plan_axes<2>({&dx, &x}, y);
  const int64_t items = plan.reduced.count;
  int64_t size = items;
  if (plan.mapping == ReduceMapping::columns) {
    const int rows = detail::gradient_rows(plan.packed);
    size = detail::stack_rows(plan, rows) * rows;
  } else if (detail::is_long(plan)) {
    plan.mapping = ReduceMapping::block_per_output;
    size = (plan.outputs * items >= (1 << 23) ? 16 : 8) * kReduceThreads;
  } else {
    plan.lanes = detail::lanes_of(plan);
  }
  detail::set_chunks(plan, size, items);
  return plan;
}

}  // namespace gradus
