// Any reduction of core/ops/reductions.h over any axes: parts of fixed blocks, merged pairwise;
// reductions to few outputs are cut into slices that the threads share.
#pragma once

#include <utility>

#include "core/ops/partial.h"
#include "cpu/lanes_math.h"
#include "cpu/reduce_plan.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {

template <class F, class V>
using PartOf = Partial<V, F::kFields>;

inline constexpr int64_t kGroup = 8;     // vectors that are described at once, from registers
inline constexpr int64_t kGather = 512;  // elements of a strided row that are copied at a time

// Pairwise merging of equal blocks: level l holds what 2^l of them give.
template <class F, class V>
class Pairwise {
 public:
  using Part = PartOf<F, V>;

  Pairwise(Cpu& cpu, int64_t width, int64_t blocks)
      : width_(width), levels_(cpu, blocks > 1 ? width * levels_of(blocks) : 0) {}

  // Takes the parts of one block; changes them.
  void push(Part* parts) {
    int64_t level = 0;
    for (uint64_t n = count_++; n & 1u; n >>= 1) merge(parts, level++);
    for (int64_t i = 0; i < width_; ++i) levels_.data()[level * width_ + i] = parts[i];
  }

  void finish(Part* parts) const {
    for (int64_t i = 0; i < width_; ++i) parts[i] = F::template identity<V>();
    int64_t level = 0;
    for (uint64_t n = count_; n != 0; n >>= 1, ++level) {
      if (n & 1u) merge(parts, level);
    }
  }

 private:
  static int64_t levels_of(int64_t blocks) {
    int64_t levels = 0;
    for (; blocks > 0; blocks /= 2) ++levels;
    return levels;
  }
  void merge(Part* parts, int64_t level) const {
    const Part* earlier = levels_.data() + level * width_;
    for (int64_t i = 0; i < width_; ++i) parts[i] = F::template merge<Math>(earlier[i], parts[i]);
  }

  int64_t width_;
  Workspace<Part> levels_;
  uint64_t count_ = 0;
};

// Merges `count` neighbouring elements into the lanes of `part`.
template <class F, class T, class V = Lanes<acc_t<T>>>
void take_row(PartOf<F, V>& part, const T* x, int64_t count) {
  constexpr int64_t lanes = kLaneCount<acc_t<T>>;
  int64_t i = 0;
  for (; i + kGroup * lanes <= count; i += kGroup * lanes) {
    V values[kGroup];
    for (int64_t u = 0; u < kGroup; ++u) values[u] = load(x + i + u * lanes);
    part = F::template merge<Math>(part, F::template of<Math>(values));
  }
  for (; i + lanes <= count; i += lanes) {
    const V value[1] = {load(x + i)};
    part = F::template merge<Math>(part, F::template of<Math>(value));
  }
  if (i == count) return;
  const V value[1] = {load(x + i, count - i)};
  const PartOf<F, V> merged = F::template merge<Math>(part, F::template of<Math>(value));
  for (int k = 0; k < F::kFields; ++k) {
    for (int64_t l = 0; l < count - i; ++l) part.v[k][l] = merged.v[k][l];
  }
}

template <class F, class T, class V = Lanes<acc_t<T>>>
void take_strided_row(PartOf<F, V>& part, const T* x, int64_t step, int64_t count) {
  if (step == 1) return take_row<F>(part, x, count);
  T copy[kGather];
  for (int64_t i = 0; i < count; i += kGather) {
    const int64_t length = std::min(kGather, count - i);
    for (int64_t j = 0; j < length; ++j) copy[j] = x[(i + j) * step];
    take_row<F>(part, copy, length);
  }
}

// Merges U rows of `width` neighbouring columns into parts; lanes beyond the width hold anything.
template <class F, int U, class T, class V = Lanes<acc_t<T>>>
void take_rows(PartOf<F, V>* parts, const T* const (&rows)[U], int64_t width) {
  constexpr int64_t lanes = kLaneCount<acc_t<T>>;
  int64_t c = 0;
  V values[U];
  for (; c + lanes <= width; c += lanes, ++parts) {
    for (int u = 0; u < U; ++u) values[u] = load(rows[u] + c);
    *parts = F::template merge<Math>(*parts, F::template of<Math>(values));
  }
  if (c == width) return;
  for (int u = 0; u < U; ++u) values[u] = load(rows[u] + c, width - c);
  *parts = F::template merge<Math>(*parts, F::template of<Math>(values));
}

template <class F, int U, class T, class V = Lanes<acc_t<T>>>
void take_strided_rows(PartOf<F, V>* parts, const T* x, int64_t row_step, int64_t step,
                       int64_t width) {
  const T* rows[U];
  T copy[U][kColumns];
  for (int u = 0; u < U; ++u) {
    rows[u] = x + u * row_step;
    if (step == 1) continue;
    for (int64_t c = 0; c < width; ++c) copy[u][c] = rows[u][c * step];
    rows[u] = copy[u];
  }
  take_rows<F, U>(parts, rows, width);
}

// The parts of `width` columns over blocks [first, last), in `lines` vectors; for rows, one vector
// whose lanes share the set.
template <class F, class T, class V = Lanes<acc_t<T>>>
void reduce_unit(Cpu& cpu, const ReducePlan& plan, const T* x, int64_t width, int64_t first,
                 int64_t last, PartOf<F, V>* parts) {
  constexpr int64_t lanes = kLaneCount<acc_t<T>>;
  const int64_t lines = plan.by_columns ? (width + lanes - 1) / lanes : 1;
  Pairwise<F, V> merged(cpu, lines, last - first);
  for (int64_t b = first; b < last; ++b) {
    const int64_t begin = b % plan.segments * plan.block;
    const int64_t count = std::min(plan.block, plan.run - begin);
    const T* from =
        x + offset_of(b / plan.segments, plan.reduced, plan.reduced_x) + begin * plan.run_x;
    for (int64_t i = 0; i < lines; ++i) parts[i] = F::template identity<V>();
    if (plan.by_columns) {
      int64_t r = 0;
      for (; r + kGroup <= count; r += kGroup) {
        take_strided_rows<F, kGroup>(parts, from + r * plan.run_x, plan.run_x, plan.column_x,
                                     width);
      }
      for (; r < count; ++r) {
        take_strided_rows<F, 1>(parts, from + r * plan.run_x, 0, plan.column_x, width);
      }
    } else {
      take_strided_row<F>(*parts, from, plan.run_x, count);
    }
    if (last - first == 1) return;
    merged.push(parts);
  }
  merged.finish(parts);
}

// One lane of a part.
template <class F, class A>
PartOf<F, A> lane_of(const PartOf<F, Lanes<A>>& part, int64_t lane) {
  PartOf<F, A> result;
  for (int k = 0; k < F::kFields; ++k) result.v[k] = part.v[k][lane];
  return result;
}

// All lanes of a part merged, halves folded onto each other.
template <class F, class A>
PartOf<F, A> merge_lanes(PartOf<F, Lanes<A>> part) {
  for (int64_t half = kLaneCount<A> / 2; half > 0; half /= 2) {
    PartOf<F, Lanes<A>> upper;
    for (int k = 0; k < F::kFields; ++k) {
      A values[2 * kLaneCount<A>] = {};
      store(values, part.v[k]);
      upper.v[k] = load(values + half);
    }
    part = F::template merge<Math>(part, upper);
  }
  return lane_of<F, A>(part, 0);
}

template <class A, int... I>
inline __attribute__((always_inline)) void interleave(Lanes<A> a, Lanes<A> b, Lanes<A>& low,
                                                      Lanes<A>& high,
                                                      std::integer_sequence<int, I...>) {
  constexpr int n = static_cast<int>(kLaneCount<A>);
  low = __builtin_shufflevector(a, b, (I / 2 + I % 2 * n)...);
  high = __builtin_shufflevector(a, b, (n / 2 + I / 2 + I % 2 * n)...);
}

// All lanes of part l merged into lane l, for kLaneCount parts at once and in the order that
// merge_lanes() has. Changes them.
template <class F, class A>
PartOf<F, Lanes<A>> merge_lanes_of_each(PartOf<F, Lanes<A>>* parts) {
  constexpr int n = static_cast<int>(kLaneCount<A>);
  for (int pairs = n / 2; pairs > 0; pairs /= 2) {
    for (int i = 0; i < pairs; ++i) {
      PartOf<F, Lanes<A>> low, high;
      for (int k = 0; k < F::kFields; ++k) {
        interleave<A>(parts[i].v[k], parts[i + pairs].v[k], low.v[k], high.v[k],
                      std::make_integer_sequence<int, n>());
      }
      parts[i] = F::template merge<Math>(low, high);
    }
  }
  return parts[0];
}

// Outputs [begin, end) whose sets are single rows.
template <class F, class T, class Write>
void reduce_rows(const ReducePlan& plan, const T* x, int64_t begin, int64_t end,
                 const Write& write) {
  using A = acc_t<T>;
  constexpr int64_t lanes = kLaneCount<A>;
  PartOf<F, Lanes<A>> parts[lanes];
  for (int64_t o = begin; o < end; o += lanes) {
    const int64_t count = std::min(lanes, end - o);
    for (int64_t r = 0; r < lanes; ++r) parts[r] = F::template identity<Lanes<A>>();
    for (int64_t r = 0; r < count; ++r) {
      take_strided_row<F>(parts[r], x + offset_of(o + r, plan.kept, plan.kept_x), plan.run_x,
                          plan.run);
    }
    const PartOf<F, Lanes<A>> merged = merge_lanes_of_each<F, A>(parts);
    for (int64_t r = 0; r < count; ++r) {
      write(offset_of(o + r, plan.kept, plan.kept_y), lane_of<F, A>(merged, r));
    }
  }
}

// Calls write(offset in y, part) for every output. x is not empty.
template <class F, class T, class Write>
void reduce_all(Cpu& cpu, const ReducePlan& plan, const T* x, const Write& write) {
  using A = acc_t<T>;
  using Part = PartOf<F, A>;
  constexpr int64_t lanes = kLaneCount<A>;
  const int64_t outputs = plan.outputs();
  const Workspace<Part> partial(cpu, plan.slices > 1 ? plan.slices * outputs : 0);
  const auto offset_in_y = [&](int64_t outer, int64_t column) {
    return offset_of(outer, plan.kept, plan.kept_y) + column * plan.column_y;
  };
  const int64_t unit_work = plan.blocks * std::min(plan.run, plan.block) * plan.width;
  const int64_t grain = plan.slices > 1 ? 1 : std::max<int64_t>(1, kTile / unit_work);
  parallel_tiles(cpu, plan.units * plan.slices, grain, [&](int64_t begin, int64_t end) {
    if (!plan.by_columns && plan.blocks == 1) return reduce_rows<F>(plan, x, begin, end, write);
    PartOf<F, Lanes<A>> parts[kColumns / lanes];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t unit = i / plan.slices, slice = i % plan.slices;
      const int64_t outer = unit / plan.lines, column = unit % plan.lines * plan.width;
      const int64_t width = std::min(plan.width, plan.columns - column);
      reduce_unit<F>(
          cpu, plan, x + offset_of(outer, plan.kept, plan.kept_x) + column * plan.column_x, width,
          slice * plan.blocks / plan.slices, (slice + 1) * plan.blocks / plan.slices, parts);
      const int64_t to = offset_in_y(outer, column);
      for (int64_t c = 0; c < width; ++c) {
        const Part part = plan.by_columns ? lane_of<F, A>(parts[c / lanes], c % lanes)
                                          : merge_lanes<F, A>(parts[0]);
        if (plan.slices == 1) {
          write(to + c * plan.column_y, part);
        } else {
          partial.data()[slice * outputs + outer * plan.columns + column + c] = part;
        }
      }
    }
  });
  if (plan.slices == 1) return;
  for (int64_t j = 0; j < outputs; ++j) {
    Part part = partial.data()[j];
    for (int64_t s = 1; s < plan.slices; ++s) {
      part = F::template merge<Math>(part, partial.data()[s * outputs + j]);
    }
    write(offset_in_y(j / plan.columns, j % plan.columns), part);
  }
}

}  // namespace gradus::GRADUS_ISA
