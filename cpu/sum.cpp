// Partial sums of fixed blocks, merged pairwise; large sums of few outputs are cut into slices that
// the threads share. Blocks and slices depend on the shape and strides only.
#include "core/ops/sum.h"

#include <vector>

#include "cpu/dispatch.h"
#include "cpu/loops.h"
#include "cpu/strided.h"

namespace gradus::GRADUS_ISA {
namespace {

constexpr int64_t kLanes = 32;       // running sums of a row
constexpr int64_t kRowBlock = 4096;  // elements of a row before sums are merged
constexpr int64_t kRows = 64;        // rows added to a line of columns before sums are merged
constexpr int64_t kColumns = 256;    // columns that one unit of work sums side by side
constexpr int64_t kSlices = 64;

// Offset of the index-th element of `shape`, counted with the last axis fastest.
int64_t offset_of(int64_t index, const Shape& shape, const Strides& strides) {
  int64_t offset = 0;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    offset += index % shape[axis] * strides[axis];
    index /= shape[axis];
  }
  return offset;
}

// x as a set of units (outputs that are summed together), each the sum over the same blocks.
struct Plan {
  Shape kept;  // kept axes but the columns
  Strides kept_x, kept_y;
  int64_t columns = 1, column_x = 0, column_y = 0;  // a kept axis that is innermost in x, if any
  Shape reduced;                                    // summed axes but the innermost of them
  Strides reduced_x;
  int64_t run = 1, run_x = 0;  // the innermost summed axis

  int64_t width, lines;     // columns of a unit, units along the columns
  int64_t block, segments;  // elements of a block along the run, blocks along it
  int64_t units, blocks, slices;

  Plan(const AnyView& x, const AnyView& y);
  int64_t outputs() const { return kept.numel() * columns; }
};

Plan::Plan(const AnyView& x, const AnyView& y) {
  const Rows<2> rows(x.shape, {x.strides, broadcast_strides(y.shape, y.strides, x.shape)});
  Shape extents = rows.outer;
  std::array<Strides, 2> steps = rows.outer_strides;
  extents.append(rows.inner);
  for (size_t t = 0; t < 2; ++t) steps[t].append(rows.inner_strides[t]);
  const int last = extents.rank() - 1;
  const bool by_columns = steps[1][last] != 0;
  bool has_run = false;
  for (int axis = last; axis >= 0; --axis) {
    if (axis == last && by_columns) {
      columns = extents[axis], column_x = steps[0][axis], column_y = steps[1][axis];
    } else if (steps[1][axis] == 0 && !has_run) {
      run = extents[axis], run_x = steps[0][axis];
      has_run = true;
    } else if (steps[1][axis] == 0) {
      reduced.append(extents[axis]);
      reduced_x.append(steps[0][axis]);
    } else {
      kept.append(extents[axis]);
      kept_x.append(steps[0][axis]);
      kept_y.append(steps[1][axis]);
    }
  }
  width = std::min(columns, kColumns);
  lines = (columns + width - 1) / width;
  block = by_columns ? kRows : kRowBlock;
  segments = (run + block - 1) / block;
  units = kept.numel() * lines;
  blocks = reduced.numel() * segments;
  const int64_t tiles = units * blocks * std::min(run, block) * width / kTile;
  slices = std::clamp<int64_t>(std::min(tiles, kSlices / units), 1, blocks);
}

// Pairwise merging of equal blocks: level l holds the sum of 2^l of them.
template <class A>
class Pairwise {
 public:
  explicit Pairwise(int64_t width) : width_(static_cast<size_t>(width)) {}

  // Takes the sums of one block; changes them.
  void push(A* sums) {
    size_t level = 0;
    for (uint64_t n = count_; n & 1u; n >>= 1) add(sums, level++);
    if (levels_.size() <= level * width_) levels_.resize((level + 1) * width_);
    std::copy(sums, sums + width_, levels_.begin() + static_cast<int64_t>(level * width_));
    ++count_;
  }

  void finish(A* sums) {
    std::fill(sums, sums + width_, A(0));
    size_t level = 0;
    for (uint64_t n = count_; n != 0; n >>= 1, ++level) {
      if (n & 1u) add(sums, level);
    }
  }

 private:
  void add(A* sums, size_t level) {
    const A* merged = levels_.data() + level * width_;
    for (size_t i = 0; i < width_; ++i) sums[i] += merged[i];
  }

  size_t width_;
  std::vector<A> levels_;
  uint64_t count_ = 0;
};

template <class T>
acc_t<T> sum_row(const T* x, int64_t step, int64_t count) {
  using A = acc_t<T>;
  if (count < kLanes) {
    A sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += load(x[i * step]);
    return sum;
  }
  A lanes[kLanes] = {};
  int64_t i = 0;
  if (step == 1) {
    for (; i + kLanes <= count; i += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) lanes[l] += load(x[i + l]);
    }
  } else {
    for (; i + kLanes <= count; i += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) lanes[l] += load(x[(i + l) * step]);
    }
  }
  for (int64_t l = 0; i < count; ++i, ++l) lanes[l] += load(x[i * step]);
  for (int64_t w = kLanes / 2; w > 0; w /= 2) {
    for (int64_t l = 0; l < w; ++l) lanes[l] += lanes[l + w];
  }
  return lanes[0];
}

// sums[c] = Σ over `rows` of x, for `width` columns; step is 1 or a run-time number.
template <class T, class Step>
void sum_columns(acc_t<T>* sums, const T* x, int64_t row_step, int64_t rows, Step step,
                 int64_t width) {
  std::fill(sums, sums + width, acc_t<T>(0));
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T *x0 = x + r * row_step, *x1 = x0 + row_step, *x2 = x1 + row_step, *x3 = x2 + row_step;
    GRADUS_INDEPENDENT
    for (int64_t c = 0; c < width; ++c) {
      const int64_t i = c * step;
      sums[c] += (load(x0[i]) + load(x1[i])) + (load(x2[i]) + load(x3[i]));
    }
  }
  for (; r < rows; ++r) {
    GRADUS_INDEPENDENT
    for (int64_t c = 0; c < width; ++c) sums[c] += load(x[r * row_step + c * step]);
  }
}

// The sums of `width` columns over blocks [first, last).
template <class T>
void sum_unit(const Plan& plan, const T* x, int64_t width, int64_t first, int64_t last,
              acc_t<T>* sums) {
  using A = acc_t<T>;
  Pairwise<A> merged(width);
  for (int64_t b = first; b < last; ++b) {
    const int64_t begin = b % plan.segments * plan.block;
    const int64_t count = std::min(plan.block, plan.run - begin);
    const T* from =
        x + offset_of(b / plan.segments, plan.reduced, plan.reduced_x) + begin * plan.run_x;
    if (plan.block == kRowBlock) {
      *sums = sum_row(from, plan.run_x, count);
    } else if (plan.column_x == 1) {
      sum_columns(sums, from, plan.run_x, count, std::integral_constant<int64_t, 1>(), width);
    } else {
      sum_columns(sums, from, plan.run_x, count, plan.column_x, width);
    }
    if (last - first == 1) return;
    merged.push(sums);
  }
  merged.finish(sums);
}

template <class T, class To>
void sum_all(Cpu& cpu, const Plan& plan, const T* x, To* y, double scale) {
  using A = acc_t<T>;
  const int64_t outputs = plan.outputs();
  std::vector<A> partial(plan.slices > 1 ? static_cast<size_t>(plan.slices * outputs) : 0);
  const auto write = [&](int64_t outer, int64_t column, A sum) {
    const int64_t at = offset_of(outer, plan.kept, plan.kept_y) + column * plan.column_y;
    y[at] = static_cast<To>(static_cast<double>(sum) * scale);
  };
  const int64_t unit_work = plan.blocks * std::min(plan.run, plan.block) * plan.width;
  const int64_t grain = plan.slices > 1 ? 1 : std::max<int64_t>(1, kTile / unit_work);
  parallel_tiles(cpu, plan.units * plan.slices, grain, [&](int64_t begin, int64_t end) {
    A sums[kColumns];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t unit = i / plan.slices, slice = i % plan.slices;
      const int64_t outer = unit / plan.lines, column = unit % plan.lines * plan.width;
      const int64_t width = std::min(plan.width, plan.columns - column);
      sum_unit(plan, x + offset_of(outer, plan.kept, plan.kept_x) + column * plan.column_x, width,
               slice * plan.blocks / plan.slices, (slice + 1) * plan.blocks / plan.slices, sums);
      if (plan.slices == 1) {
        for (int64_t c = 0; c < width; ++c) write(outer, column + c, sums[c]);
      } else {
        std::copy(sums, sums + width,
                  partial.begin() + slice * outputs + outer * plan.columns + column);
      }
    }
  });
  if (plan.slices == 1) return;
  for (int64_t j = 0; j < outputs; ++j) {
    A sum = 0;
    for (int64_t s = 0; s < plan.slices; ++s) sum += partial[static_cast<size_t>(s * outputs + j)];
    write(j / plan.columns, j % plan.columns, sum);
  }
}

}  // namespace

void run(Cpu& cpu, const Sum& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto sum_into = [&]<class To>(To* y) {
      if (args.x.numel() == 0) {
        std::fill_n(y, args.y.numel(), static_cast<To>(0.0 * args.scale));
      } else {
        sum_all(cpu, Plan(args.x, args.y), args.x.as<T>(), y, args.scale);
      }
    };
    if (args.y.dtype == dtype_of<T>)
      sum_into(args.y.as<T>());
    else
      sum_into(args.y.as<acc_t<T>>());
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(Sum)
