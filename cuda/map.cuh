// Element-wise kernels of one or two operands and their launchers.
//
//   struct Twice {
//     template <class A>
//     __device__ A operator()(A x) const { return x + x; }
//   };
//   map_elements<T>(cuda, y, x, Twice{});
//
// The function gets its operands in acc_t and its result is rounded to T. y may be an operand.
#pragma once

#include "core/view.h"
#include "cuda/context.h"
#include "cuda/device/strided.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/plan.h"

namespace gradus {

template <class T, class F>
struct MapElement {
  T* y;
  const T* x;
  F f;
  __device__ void operator()(const StridedOffsets<2>& at) const {
    y[at.at[0]] = static_cast<T>(f(static_cast<acc_t<T>>(x[at.at[1]])));
  }
};

template <class T, class F>
struct MapElementPair {
  T* y;
  const T* a;
  const T* b;
  F f;
  __device__ void operator()(const StridedOffsets<3>& at) const {
    y[at.at[0]] =
        static_cast<T>(f(static_cast<acc_t<T>>(a[at.at[1]]), static_cast<acc_t<T>>(b[at.at[2]])));
  }
};

// y[i] = f(x[i]), all without gaps and in one order, 16 bytes per thread; the first block also
// takes the elements that fill no pack. grid:  1-D, any number of blocks bytes: fewest = actual
// needs: y and x aligned to 16 bytes
template <class T, class F>
__global__ void __launch_bounds__(kElementThreads)
    map_flat(T* y, const T* x, int64_t count, const F f) {
  constexpr int N = kFullPack<T>;
  const int64_t packs = count / N;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = first; i < packs; i += step) {
    const Pack<T, N> from = load_pack<N>(x + i * N);
    Pack<T, N> to;
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = static_cast<T>(f(static_cast<acc_t<T>>(from[j])));
    store_pack(y + i * N, to);
  }
  const int64_t rest = packs * N + first;
  if (rest < count) y[rest] = static_cast<T>(f(static_cast<acc_t<T>>(x[rest])));
}

// y[i] = f(a[i], b[i]) in the same way; an operand that repeats is one element for all i.
template <class T, class F>
__global__ void __launch_bounds__(kElementThreads)
    map_flat_pair(T* y, const T* a, const T* b, bool a_repeats, bool b_repeats, int64_t count,
                  const F f) {
  constexpr int N = kFullPack<T>;
  using A = acc_t<T>;
  const int64_t packs = count / N;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  Pack<T, N> left, right;
  const T a_first = a_repeats ? a[0] : T(), b_first = b_repeats ? b[0] : T();
#pragma unroll
  for (int j = 0; j < N; ++j) {
    left[j] = a_first;
    right[j] = b_first;
  }
  for (int64_t i = first; i < packs; i += step) {
    if (!a_repeats) left = load_pack<N>(a + i * N);
    if (!b_repeats) right = load_pack<N>(b + i * N);
    Pack<T, N> to;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      to[j] = static_cast<T>(f(static_cast<A>(left[j]), static_cast<A>(right[j])));
    }
    store_pack(y + i * N, to);
  }
  const int64_t rest = packs * N + first;
  if (rest < count) {
    y[rest] = static_cast<T>(f(static_cast<A>(a_repeats ? a_first : a[rest]),
                               static_cast<A>(b_repeats ? b_first : b[rest])));
  }
}

// y = f(x), element by element. x: the shape of y, any strides.
template <class T, class F>
void map_elements(Cuda& cuda, const AnyView& y, const AnyView& x, const F& f) {
  const StridedPlan<2> plan(y.shape, {y.strides, x.strides});
  if (plan.count == 0) return;
  T* to = y.as<T>();
  const T* from = x.as<T>();
  constexpr int64_t N = kFullPack<T>;
  if (plan.flat && pack_width(sizeof(T), {to, from}, {}) == N) {
    map_flat<<<stepping_blocks(ceil_div(plan.count, N), kElementThreads), kElementThreads, 0,
               cuda.stream()>>>(to, from, plan.count, f);
  } else {
    for_each_element<<<stepping_blocks(plan.count, kElementThreads), kElementThreads, 0,
                       cuda.stream()>>>(plan, MapElement<T, F>{to, from, f});
  }
}

// y = f(a, b), element by element. a and b broadcast to the shape of y.
template <class T, class F>
void map_elements(Cuda& cuda, const AnyView& y, const AnyView& a, const AnyView& b, const F& f) {
  const StridedPlan<3> plan(y.shape, {y.strides, broadcast_strides(a.shape, a.strides, y.shape),
                                      broadcast_strides(b.shape, b.strides, y.shape)});
  if (plan.count == 0) return;
  T* to = y.as<T>();
  const T *left = a.as<T>(), *right = b.as<T>();
  constexpr int64_t N = kFullPack<T>;
  // After merging, one axis that y walks in steps of 1, and each operand in steps of 1 or 0.
  bool flat = plan.rank <= 1;
  bool repeats[3] = {};
  for (int t = 0; t < 3 && plan.rank == 1; ++t) {
    repeats[t] = plan.strides[t][0] == 0;
    flat = flat && (repeats[t] || plan.strides[t][0] == 1);
  }
  const bool aligned =
      pack_width(sizeof(T), {to, repeats[1] ? to : left, repeats[2] ? to : right}, {}) == N;
  if (flat && aligned) {
    map_flat_pair<<<stepping_blocks(ceil_div(plan.count, N), kElementThreads), kElementThreads, 0,
                    cuda.stream()>>>(to, left, right, repeats[1], repeats[2], plan.count, f);
  } else {
    for_each_element<<<stepping_blocks(plan.count, kElementThreads), kElementThreads, 0,
                       cuda.stream()>>>(plan, MapElementPair<T, F>{to, left, right, f});
  }
}

}  // namespace gradus
