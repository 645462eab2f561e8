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

#include <type_traits>

#include "core/view.h"
#include "cuda/context.h"
#include "cuda/device/stream.cuh"
#include "cuda/device/strided.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/map_plan.h"
#include "cuda/with_eviction.cuh"

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

// math:  y[i] = f(x[i]), all without gaps and in one order; the first block also takes the elements
//        that fill no pack
// grid:  1-D, kMapPacks packs of 16 bytes per thread, a block apart
// bytes: fewest = actual
// needs: y and x aligned to 16 bytes
template <class T, class F, Evict kEvict>
__global__ void __launch_bounds__(kMapThreads)
    map_flat(T* y, const T* x, int64_t count, const F f) {
  constexpr int N = kFullPack<T>;
  const int64_t packs = count / N, first = int64_t{blockIdx.x} * kMapBlock + threadIdx.x;
  const int left = static_cast<int>(min(packs - first, int64_t{kMapBlock}));
  const L2Policy<kEvict> policy;
  wait_for_previous_kernel();
  start_next_kernel();
  Pack<T, N> values[kMapPacks];
#pragma unroll
  for (int u = 0; u < kMapPacks; ++u) {
    if (u * kMapThreads >= left) continue;
    values[u] = policy.template load_pack<N>(x + first * N + u * kMapThreads * N);
  }
#pragma unroll
  for (int u = 0; u < kMapPacks; ++u) {
    if (u * kMapThreads >= left) break;
    acc_t<T> xs[N], results[N];
    widen_pack(xs, values[u]);
#pragma unroll
    for (int j = 0; j < N; ++j) results[j] = f(xs[j]);
    store_pack(y + first * N + u * kMapThreads * N, narrow_pack<T>(results));
  }
  const int64_t rest = packs * N + first;
  if (rest < count) y[rest] = static_cast<T>(f(static_cast<acc_t<T>>(x[rest])));
}

// The same for y[i] = f(a[i], b[i]), a pack of each at a time.
template <class T, class F>
__global__ void __launch_bounds__(kElementThreads)
    map_flat_pair(T* y, const T* a, const T* b, int64_t count, const F f) {
  constexpr int N = kFullPack<T>;
  using A = acc_t<T>;
  const int64_t packs = count / N;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kElementThreads;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  const int64_t rest = packs * N + i;
  for (; i < packs; i += step) {
    const Raw<T, N> left = load_raw<N>(a + i * N), right = load_raw<N>(b + i * N);
    A as[N], bs[N], results[N];
    left.unpack(as);
    right.unpack(bs);
#pragma unroll
    for (int j = 0; j < N; ++j) results[j] = f(as[j], bs[j]);
    store_pack(y + i * N, narrow_pack<T>(results));
  }
  if (rest < count) {
    y[rest] = static_cast<T>(f(static_cast<A>(a[rest]), static_cast<A>(b[rest])));
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
    const unsigned blocks = exact_blocks(ceil_div(ceil_div(plan.count, N), kMapBlock), "map");
    with_eviction<16>(cuda, x.nbytes(), [&](auto evict) {
      launch_overlapping(cuda, {.grid = blocks, .threads = kMapThreads}, map_flat<T, F, evict()>,
                         to, from, plan.count, f);
    });
  } else {
    for_each_element<<<stepping_blocks(plan.count, kElementThreads), kElementThreads, 0,
                       cuda.stream()>>>(plan, MapElement<T, F>{to, from, f});
  }
}

// y = f(a, b), element by element, by plan_map_pair(y, a, b). a and b broadcast to the shape of y
// (map_broadcast.cuh is the fast way there).
template <class T, class F>
void map_elements(Cuda& cuda, const StridedPlan<3>& plan, const AnyView& y, const AnyView& a,
                  const AnyView& b, const F& f) {
  if (plan.count == 0) return;
  T* to = y.as<T>();
  const T *left = a.as<T>(), *right = b.as<T>();
  constexpr int64_t N = kFullPack<T>;
  if (plan.flat && pack_width(sizeof(T), {to, left, right}, {}) == N) {
    const unsigned blocks = stepping_blocks(ceil_div(plan.count, N), kElementThreads);
    map_flat_pair<<<blocks, kElementThreads, 0, cuda.stream()>>>(to, left, right, plan.count, f);
  } else {
    for_each_element<<<stepping_blocks(plan.count, kElementThreads), kElementThreads, 0,
                       cuda.stream()>>>(plan, MapElementPair<T, F>{to, left, right, f});
  }
}

}  // namespace gradus
