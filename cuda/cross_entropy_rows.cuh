// A row of logits as a group of Lanes lanes goes through it, for both directions of cross-entropy.
#pragma once

#include "cuda/cross_entropy_plan.h"
#include "cuda/device/raw.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/labels.cuh"
#include "cuda/softmax_values.cuh"

namespace gradus {

// Over the lanes of a row: up to a warp, or the whole block.
template <int Lanes, class A, class Op>
__device__ __forceinline__ A reduce_group(A value, Op op, A identity) {
  if constexpr (Lanes <= kWarp) {
    return warp_reduce<Lanes>(value, op);
  } else {
    return block_reduce(value, op, identity);
  }
}

// Classes of one row that a lane adds up one by one, so that long sums keep their digits.
inline constexpr int64_t kClassChain = 256;

// The targets t·w of a row, as core/ops/cross_entropy.h has them.
template <class A>
struct Targets {
  LabelView labels;
  const A* weight;  // null for 1
  int64_t ignore_index;
  A share;  // e/c
  A rest;   // 1 - e

  __device__ A weight_at(int64_t k) const { return weight == nullptr ? A(1) : weight[k]; }
  __device__ bool is_ignored(int64_t label) const { return label == ignore_index; }
  // Whether the label is neither a class nor ignored.
  __device__ bool is_wrong(int64_t label, int64_t c) const {
    return !is_ignored(label) && (label < 0 || label >= c);
  }
  // (1 - e)·w[label]; NaN for a wrong label.
  __device__ A direct(int64_t label, int64_t c) const {
    return is_wrong(label, c) ? A(NAN) : rest * weight_at(label);
  }
  // Σ_k e/c·w_k, by all lanes of a row.
  template <int Lanes>
  __device__ A smoothed(int64_t c, int lane) const {
    if (share == A(0) || weight == nullptr) return share * static_cast<A>(c);
    A total = 0;
    for (int64_t first = lane; first < c; first += kClassChain * Lanes) {
      A chain = 0;
      const int64_t end = min(first + kClassChain * Lanes, c);
      for (int64_t k = first; k < end; k += Lanes) chain += share * weight[k];
      total += chain;
    }
    return reduce_group<Lanes>(total, SumOp{}, A(0));
  }
};

template <class A, class Args>
Targets<A> targets_of(const Args& args, const ClassRows& shape) {
  return {.labels = {args.labels.data, args.labels.dtype},
          .weight = args.weight.template as<A>(),
          .ignore_index = args.ignore_index,
          .share = static_cast<A>(args.label_smoothing / static_cast<double>(shape.c)),
          .rest = static_cast<A>(1 - args.label_smoothing)};
}

// Packs that a lane loads before it uses the first. Short rows are held at once.
template <int Lanes>
inline constexpr int kTurnPacks = Lanes == 1 ? 8 : 4;

// Packs of N classes of a row: the first begins at class `first`, each begins Lanes·N classes after
// the one before it; there are those u with u·Lanes < left.
template <int Lanes, int N, int U, class T>
struct Turn {
  Raw<T, N> raw[U];
  int64_t first;
  int left;

  __device__ __forceinline__ bool has(int u) const { return u * Lanes < left; }
  __device__ __forceinline__ int64_t place(int u) const { return first + u * Lanes * N; }
  // The largest of them and `max`.
  __device__ __forceinline__ acc_t<T> largest(acc_t<T> max) const {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (!has(u)) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) max = SoftmaxMax{}(max, raw[u][j]);
    }
    return max;
  }
};

// The classes of a row as its lanes share them out: packs of N from the first 16-byte boundary on,
// turn by turn, and those before and after, fewer than N each, one per lane.
template <int Lanes, int N, class T>
class RowTurns {
 public:
  static constexpr int U = kTurnPacks<Lanes>;
  // Packs of a row from a lane's first one in a turn to its first one in the next; likewise chains.
  static constexpr int64_t kTurn = U * Lanes;
  static constexpr int64_t kRun = kClassChain / (U * N) * kTurn;

  // For Lanes = 1 the classes lie `inner` apart, for more side by side.
  __device__ RowTurns(const T* row, const ClassRows& shape)
      : row_(row), step_(Lanes == 1 ? shape.inner : 1), c_(shape.c) {
    if constexpr (N > 1) {
      const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
      head_ = min((N - past) % N, c_);
    }
    count_ = (c_ - head_) / N;
  }
  __device__ int64_t count() const { return count_; }
  // The turn whose first pack is `i`; `reads`: or none of its values.
  __device__ __forceinline__ Turn<Lanes, N, U, T> turn(int64_t i, bool reads = true) const {
    Turn<Lanes, N, U, T> turn;
    turn.first = head_ + i * N;
    turn.left = static_cast<int>(min(count_ - i, kTurn));
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (turn.has(u) && reads) turn.raw[u].load(row_ + turn.place(u) * step_);
    }
    return turn;
  }
  // A lane's class beside the packs.
  __device__ __forceinline__ Turn<Lanes, 1, 1, T> edge(int lane, bool reads = true) const {
    static_assert(N == 1 || 2 * N - 2 <= Lanes);
    Turn<Lanes, 1, 1, T> turn;
    turn.first = lane < head_ ? lane : lane + count_ * N;
    turn.left = turn.first < c_ ? 1 : 0;
    if (turn.has(0) && reads) turn.raw[0].load(row_ + turn.first);
    return turn;
  }

 private:
  const T* row_;
  int64_t step_, c_, head_ = 0, count_;
};

// Where a row begins.
template <int Lanes>
__device__ __forceinline__ int64_t row_begin(const ClassRows& shape, int64_t row) {
  return Lanes == 1 ? row_offset(shape, row) : row * shape.c;
}

// Calls f(constant lanes, constant width) for the plan; T: of the logits.
template <class T, class F>
void with_lanes(const CrossEntropyPlan& plan, F&& f) {
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, kFullPack<T>> full;
  constexpr std::integral_constant<int, kWarp> warp;
  if (plan.lanes == 1) return f(one, one);
  if (plan.lanes == kCrossEntropyShortLanes) {
    return f(std::integral_constant<int, kCrossEntropyShortLanes>(), one);
  }
  if (plan.width == 1) return f(warp, one);
  if (plan.lanes == kWarp) return f(warp, full);
  f(std::integral_constant<int, kCrossEntropyThreads>(), full);
}

}  // namespace gradus
