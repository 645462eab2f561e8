// What the threads of a reduction take: items of a plan (cuda/reduce_plan.h), loaded and described.
#pragma once

#include "core/ops/partial.h"
#include "cuda/device/math.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/reduce_plan.h"

namespace gradus {

template <class F, class A>
using PartOf = Partial<A, F::kFields>;

// What values that are stored as T are described with.
template <class T>
using StoredMath = std::conditional_t<sizeof(T) == 2, DeviceHalfMath, DeviceMath>;

template <class F>
struct MergeParts {
  template <class Part>
  __device__ __forceinline__ Part operator()(const Part& a, const Part& b) const {
    return F::template merge<DeviceMath>(a, b);
  }
};

// U parts of as many elements each: at once, or pairwise.
template <class F, class A, int U>
__device__ __forceinline__ PartOf<F, A> join_parts(const PartOf<F, A> (&parts)[U]) {
  if constexpr (U == 1) {
    return parts[0];
  } else if constexpr (requires { F::template join<DeviceMath>(parts); }) {
    return F::template join<DeviceMath>(parts);
  } else {
    PartOf<F, A> pairs[U / 2];
#pragma unroll
    for (int i = 0; i < U / 2; ++i) {
      pairs[i] = F::template merge<DeviceMath>(parts[i], parts[i + U / 2]);
    }
    return join_parts<F, A>(pairs);
  }
}

// Where finished sets go, or the parts of their chunks.
template <class T>
struct ReduceOutput {
  using A = acc_t<T>;
  void* y = nullptr;
  bool wide = false;   // y is in acc_t
  A* stat0 = nullptr;  // may stay so
  A* stat1 = nullptr;
  double parameter = 0;
  A* partial = nullptr;  // [fields, chunks, outputs]; null for a single chunk

  template <class F>
  __device__ __forceinline__ void write(int64_t at, const PartOf<F, A>& part) const {
    const Reduced<A> result = F::template finish<DeviceMath>(part, parameter);
    if (wide) {
      static_cast<A*>(y)[at] = result.y;
    } else {
      static_cast<T*>(y)[at] = static_cast<T>(result.y);
    }
    if (stat0 != nullptr) stat0[at] = result.stat0;
    if (stat1 != nullptr) stat1[at] = result.stat1;
  }
  template <class F>
  __device__ __forceinline__ void write_partial(int64_t chunks, int64_t outputs, int64_t chunk,
                                                int64_t o, const PartOf<F, A>& part) const {
#pragma unroll
    for (int k = 0; k < F::kFields; ++k) partial[(k * chunks + chunk) * outputs + o] = part.v[k];
  }
};

template <class T>
inline constexpr int kReducePack = reduce_pack(sizeof(T));

// Whether items of N elements have any number of axes: packs have two at most (reduce_plan.h), so
// that no kernel that matters holds the long code of a general division.
template <int N>
inline constexpr bool kAnyAxes = N == 1;

// Where an output lies in each tensor.
template <int X>
__device__ __forceinline__ StridedOffsets<X> place_of(const StridedPlan<X>& kept, int64_t o) {
  if (kept.rank > 1) return kept.offsets(o);
  StridedOffsets<X> at;
#pragma unroll
  for (int t = 0; t < X; ++t) at.at[t] = o * kept.strides[t][0];
  return at;
}

// Loads the next items of a set: addresses first, so that U loads are under way.
template <int U, int N, class T, class Walk>
__device__ __forceinline__ void load_items(Pack<T, N> (&packs)[U], const T* x, Walk& walk) {
  int64_t at[U];
#pragma unroll
  for (int u = 0; u < U; ++u) at[u] = walk.next();
#pragma unroll
  for (int u = 0; u < U; ++u) packs[u] = load_pack_once<N>(x + at[u]);
}

// Merges U items into one part, in groups that fit the registers.
template <class F, int U, int N, class T, class Walk>
__device__ __forceinline__ void take_row(PartOf<F, acc_t<T>>& part, const T* x, Walk& walk) {
  using A = acc_t<T>;
  Pack<T, N> packs[U];
  load_items(packs, x, walk);
  constexpr int kGroup = U * N < 16 ? U * N : 16;
#pragma unroll
  for (int first = 0; first < U * N; first += kGroup) {
    A values[kGroup];
#pragma unroll
    for (int j = 0; j < kGroup; j += N) {
      A wide[N];
      widen_pack(wide, packs[(first + j) / N]);
#pragma unroll
      for (int k = 0; k < N; ++k) values[j + k] = wide[k];
    }
    part = F::template merge<DeviceMath>(part, F::template of<StoredMath<T>>(values));
  }
}

// 16-bit columns that share a word.
template <int N>
inline constexpr int kPairOf = N < 2 ? N : 2;

// Column j of U rows of N neighbouring ones.
template <int U, int N, class T>
__device__ __forceinline__ void column_values(acc_t<T> (&values)[U], const Pack<T, N> (&packs)[U],
                                              int j) {
  constexpr int kPair = kPairOf<N>;
#pragma unroll
  for (int u = 0; u < U; ++u) {
    Pack<T, kPair> pair;
    memcpy(&pair, &packs[u][j - j % kPair], sizeof pair);
    acc_t<T> wide[kPair];
    widen_pack(wide, pair);
    values[u] = wide[j % kPair];
  }
}

// Merges U rows of N neighbouring columns into their parts.
template <class F, int U, int N, class T, class Walk>
__device__ __forceinline__ void take_rows(PartOf<F, acc_t<T>> (&parts)[N], const T* x, Walk& walk) {
  using A = acc_t<T>;
  Pack<T, N> packs[U];
  load_items(packs, x, walk);
  if constexpr (requires { F::kOfCount; }) {
    // All columns have as many elements: the compiler keeps one register for them and works once.
#pragma unroll
    for (int j = 1; j < N; ++j) {
#pragma unroll
      for (int k = 0; k < F::kOfCount; ++k) parts[j].v[k] = parts[0].v[k];
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    A values[U];
    column_values(values, packs, j);
    parts[j] = F::template merge<DeviceMath>(parts[j], F::template of<StoredMath<T>>(values));
  }
}

// The share of this thread in the sets along x.
struct RowUnit {
  int lanes, lane;
  bool is_inside;  // threads beyond the last output have nothing to do, but stay for the shuffles
  int64_t output, chunk, begin, end;

  template <int X>
  __device__ __forceinline__ explicit RowUnit(const ReducePlan<X>& plan)
      : lanes(plan.lanes), lane(static_cast<int>(threadIdx.x) & (lanes - 1)) {
    const int64_t unit =
        int64_t{blockIdx.x} * (kReduceThreads / lanes) + static_cast<int>(threadIdx.x) / lanes;
    output = plan.chunks == 1 ? unit : unit / plan.chunks;
    chunk = unit - output * plan.chunks;
    is_inside = output < plan.outputs;
    if (!is_inside) output = 0;
    begin = is_inside ? chunk * plan.chunk_size : 0;
    end = is_inside ? min(begin + plan.chunk_size, plan.reduced.count) : 0;
  }
};

// Where the columns of a pack of `width` lie.
template <int X>
struct ColumnUnit {
  bool is_inside;
  int64_t outer, column;  // column counts elements

  __device__ __forceinline__ ColumnUnit(const ReducePlan<X>& plan, int64_t pack, int width) {
    outer = pack <= INT32_MAX
                ? static_cast<int64_t>(plan.column_divisor.quotient(static_cast<uint32_t>(pack)))
                : pack / plan.column_slots;
    column = (pack - outer * plan.column_slots) * width;
    is_inside = outer < plan.kept.count && column < plan.columns;
  }
};

// Stores the parts of neighbouring columns, the first of them in slot i, from a field on.
template <class F, int kFirst = 0, class A, int kSlots, int kColumns>
__device__ __forceinline__ void store_parts(A (&slots)[F::kFields][kSlots], int i,
                                            const PartOf<F, A> (&parts)[kColumns]) {
  constexpr int kWide = kColumns < kFullPack<A> ? kColumns : kFullPack<A>;
#pragma unroll
  for (int k = kFirst; k < F::kFields; ++k) {
#pragma unroll
    for (int j = 0; j < kColumns; j += kWide) {
      Pack<A, kWide> pack;
#pragma unroll
      for (int h = 0; h < kWide; ++h) pack[h] = parts[j + h].v[k];
      store_pack(&slots[k][i + j], pack);
    }
  }
}

// Merges the parts of one column that threads above each other left in `slots`, the column's
// `rows` next ones by each of `groups` threads: pairwise in the end. The first group has the
// result.
template <class F, class A, int kSlots>
__device__ __forceinline__ PartOf<F, A> merge_column(A (&slots)[F::kFields][kSlots], int at,
                                                     int width, int rows, int group, int groups) {
  const auto load = [&](int slot) {
    PartOf<F, A> part;
#pragma unroll
    for (int k = 0; k < F::kFields; ++k) part.v[k] = slots[k][slot];
    return part;
  };
  const int first = group * rows * width + at;
  PartOf<F, A> part = load(first);
  for (int row = 1; row < rows; ++row) {
    part = F::template merge<DeviceMath>(part, load(first + row * width));
  }
  for (int half = groups / 2; half > 0; half /= 2) {
    __syncthreads();
    if (group >= half && group < 2 * half) {
#pragma unroll
      for (int k = 0; k < F::kFields; ++k) slots[k][group * width + at] = part.v[k];
    }
    __syncthreads();
    if (group < half) {
      part = F::template merge<DeviceMath>(part, load((group + half) * width + at));
    }
  }
  return part;
}

}  // namespace gradus
