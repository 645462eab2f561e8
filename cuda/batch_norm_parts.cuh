// What batch normalization on CUDA reduces a chunk of a channel to, and how: moments in the forward
// pass, sums in the backward pass. Each takes in what a thread has loaded together at once.
#pragma once

#include "core/dtype.h"
#include "core/ops/partial.h"
#include "cuda/device/l2_policy.cuh"
#include "cuda/device/norm.cuh"
#include "cuda/device/raw.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/shared.cuh"

namespace gradus {

// Stores that leave L2 before others where `streams`.
template <class T, int N>
__device__ __forceinline__ void store_result(T* to, const Raw<T, N>& raw, bool streams) {
  if (streams) {
    __stcs(reinterpret_cast<decltype(raw.word)*>(to), raw.word);
  } else {
    raw.store(to);
  }
}

template <class A>
__device__ __forceinline__ Moments<A> merge(const Moments<A>& a, const Moments<A>& b) {
  return MergeMoments{}(a, b);
}

template <class A>
__device__ __forceinline__ Moments<A> merge_warp(const Moments<A>& value) {
  return merge_lanes(value);
}

// Σ dy and Σ dy·(x - mean) of a chunk.
template <class A>
struct BatchNormSums {
  A dy = A(0);
  A dy_x = A(0);
};

template <class A>
__device__ __forceinline__ BatchNormSums<A> merge(const BatchNormSums<A>& a,
                                                  const BatchNormSums<A>& b) {
  return {a.dy + b.dy, a.dy_x + b.dy_x};
}

template <class A>
__device__ __forceinline__ BatchNormSums<A> merge_warp(const BatchNormSums<A>& value) {
  return {warp_sum(value.dy), warp_sum(value.dy_x)};
}

// The moments of values held in registers, in two passes.
template <class A, int N>
__device__ __forceinline__ Moments<A> moments_of(const A (&values)[N]) {
  A total = values[0];
#pragma unroll
  for (int i = 1; i < N; ++i) total += values[i];
  const A mean = total * (A(1) / A(N));
  A m2 = A(0);
#pragma unroll
  for (int i = 0; i < N; ++i) m2 += (values[i] - mean) * (values[i] - mean);
  return {A(N), mean, m2};
}

// Moments of x - pivot, with the channel's first element as the pivot: a mean far from 0 then costs
// no digits, and is rounded once, when the pivot is added back.
template <class T>
struct MomentsOf {
  using Element = T;
  using A = acc_t<T>;
  using Part = Moments<A>;
  static constexpr int kInputs = 1;
  static constexpr bool kEvaluates = false;
  template <int N>
  using Item = Raw<T, N>;

  const T* x;
  int64_t channel;  // from one channel's first element to the next one's

  __device__ __forceinline__ A pivot(int64_t c) const { return static_cast<A>(x[c * channel]); }
  template <int N, class Policy = L2Policy<Evict::normal>>
  __device__ __forceinline__ Raw<T, N> load(int64_t at, const Policy& policy = {}) const {
    Raw<T, N> in;
    policy.load(in, x + at);
    return in;
  }
  // The same by way of shared memory, where `held` has `size` packs of each input.
  template <int N>
  __device__ __forceinline__ void hold(Raw<T, N>* held, int i, int, int64_t at) const {
    copy_async_once<sizeof(T) * N>(shared_address(held + i), x + at);
  }
  template <int N>
  static __device__ __forceinline__ Raw<T, N> held(const Raw<T, N>* held, int i, int) {
    return held[i];
  }

  // Of one channel, by sums about the mean of the thread's first packs: the square of what that is
  // off by is at most the mean square of those packs, so of n times as many the difference of the
  // sums is no worse than 1 + n times rounded, and hardly at all where packs are alike. Sums of few
  // packs are added up, whose roundings are fewer than those of one long sum.
  struct Row {
    static constexpr int kLong = 128;  // elements
    A origin, centre = A(0), sum = A(0), square = A(0);
    int count = 0;
    Part before{};
    __device__ __forceinline__ Row(const MomentsOf& of, int64_t c) : origin(of.pivot(c)) {}
    template <int N, int U>
    __device__ __forceinline__ void take(const Raw<T, N> (&in)[U]) {
      if (count == 0) centre = mean_of(in);
      count += U * N;
      A s = A(0), q = A(0);
#pragma unroll
      for (int i = 0; i < U * N; ++i) {
        const A d = in[i / N][i % N] - centre;
        s += d;
        q += d * d;
      }
      sum += s;
      square += q;
    }
    // Pairwise, so that of equal values it is the value.
    template <int N, int U>
    static __device__ __forceinline__ A mean_of(const Raw<T, N> (&in)[U]) {
      A packs[U];
#pragma unroll
      for (int u = 0; u < U; ++u) {
        A values[N];
#pragma unroll
        for (int j = 0; j < N; ++j) values[j] = in[u][j] * (A(1) / A(U * N));
        packs[u] = fold_sum(values);
      }
      return fold_sum(packs);
    }
    // Sums that have become long end.
    __device__ __forceinline__ void settle() {
      if (count <= kLong) return;
      before = part();
      sum = square = A(0);
      count = 0;
    }
    __device__ __forceinline__ Part part() const {
      const A shift = count > 0 ? sum / static_cast<A>(count) : A(0);
      // Squares that overflow leave an infinite m2; an infinite element makes it NaN.
      const bool overflows = square - square != A(0) && sum - sum == A(0);
      const A m2 = overflows ? square : square - sum * shift;
      return merge(before,
                   Part{static_cast<A>(count), (centre - origin) + shift, m2 < A(0) ? A(0) : m2});
    }
  };

  // Of N channels, a row at a time.
  template <int N>
  struct Columns {
    A pivot[N], mean[N] = {}, m2[N] = {}, count = A(0);
    __device__ __forceinline__ Columns(const MomentsOf& of, int64_t c) {
#pragma unroll
      for (int j = 0; j < N; ++j) pivot[j] = of.pivot(c + j);
    }
    template <int U>
    __device__ __forceinline__ void take(const Raw<T, N> (&in)[U]) {
      const A total = count + A(U), share = A(U) / total, weight = count * share;
      count = total;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        A values[U];
#pragma unroll
        for (int u = 0; u < U; ++u) values[u] = in[u][j] - pivot[j];
        const Part part = moments_of(values);
        const A delta = part.mean - mean[j];
        mean[j] += delta * share;
        m2[j] += part.m2 + delta * (delta * weight);  // weight is 0 first: no inf·0
      }
    }
    __device__ __forceinline__ Part part(int j) const { return {count, mean[j], m2[j]}; }
  };

  template <int N, class State>
  __device__ __forceinline__ void write(int64_t, const Raw<T, N>&, const State&) const {}
};

template <class T, int N>
struct RawPair {
  Raw<T, N> x, dy;
};

// Evaluation's dx = gamma·rstd·dy, where it is wanted, is written on the way.
template <class T, bool kEvaluation>
struct SumsOf {
  using Element = T;
  using A = acc_t<T>;
  using Part = BatchNormSums<A>;
  static constexpr int kInputs = 2;
  static constexpr bool kEvaluates = kEvaluation;
  template <int N>
  using Item = RawPair<T, N>;

  const T* x;
  const T* dy;
  const A* mean;
  T* dx = nullptr;  // evaluation only, as the next two; may be null
  const A* rstd = nullptr;
  const A* gamma = nullptr;  // may be null: 1

  __device__ __forceinline__ A scale(int64_t c) const {
    if constexpr (!kEvaluates) return A(0);
    return rstd[c] * (gamma != nullptr ? gamma[c] : A(1));
  }
  template <int N, class Policy = L2Policy<Evict::normal>>
  __device__ __forceinline__ Item<N> load(int64_t at, const Policy& policy = {}) const {
    Item<N> in;
    policy.load(in.x, x + at);
    policy.load(in.dy, dy + at);
    return in;
  }
  template <int N>
  __device__ __forceinline__ void hold(Raw<T, N>* held, int i, int size, int64_t at) const {
    copy_async_once<sizeof(T) * N>(shared_address(held + i), x + at);
    copy_async_once<sizeof(T) * N>(shared_address(held + size + i), dy + at);
  }
  template <int N>
  static __device__ __forceinline__ Item<N> held(const Raw<T, N>* held, int i, int size) {
    return {held[i], held[size + i]};
  }

  struct Row {
    A mean, scale_;
    Part sums{};
    __device__ __forceinline__ Row(const SumsOf& of, int64_t c)
        : mean(of.mean[c]), scale_(of.scale(c)) {}
    template <int N, int U>
    __device__ __forceinline__ void take(const RawPair<T, N> (&in)[U]) {
      Part group{};
#pragma unroll
      for (int i = 0; i < U * N; ++i) {
        const A d = in[i / N].dy[i % N];
        group.dy += d;
        group.dy_x += d * (in[i / N].x[i % N] - mean);
      }
      sums = merge(sums, group);
    }
    __device__ __forceinline__ void settle() {}
    __device__ __forceinline__ Part part() const { return sums; }
    __device__ __forceinline__ A scale(int) const { return scale_; }
  };

  template <int N>
  struct Columns {
    A mean[N], scales[N];
    Part parts[N] = {};
    __device__ __forceinline__ Columns(const SumsOf& of, int64_t c) {
#pragma unroll
      for (int j = 0; j < N; ++j) mean[j] = of.mean[c + j], scales[j] = of.scale(c + j);
    }
    template <int U>
    __device__ __forceinline__ void take(const RawPair<T, N> (&in)[U]) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        Part group{};
#pragma unroll
        for (int u = 0; u < U; ++u) {
          const A d = in[u].dy[j];
          group.dy += d;
          group.dy_x += d * (in[u].x[j] - mean[j]);
        }
        parts[j] = merge(parts[j], group);
      }
    }
    __device__ __forceinline__ Part part(int j) const { return parts[j]; }
    __device__ __forceinline__ A scale(int j) const { return scales[j]; }
  };

  template <int N, class State>
  __device__ __forceinline__ void write(int64_t at, const RawPair<T, N>& in,
                                        const State& state) const {
    if constexpr (kEvaluates) {
      if (dx == nullptr) return;
      A out[N];
#pragma unroll
      for (int j = 0; j < N; ++j) out[j] = state.scale(j) * in.dy[j];
      round_raw<T, N>(out).store(dx + at);
    }
  }
};

}  // namespace gradus
