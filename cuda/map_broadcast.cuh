// Element-wise kernels of two operands of which one broadcasts to the other's shape.
#pragma once

#include "cuda/device/quotient.cuh"
#include "cuda/map.cuh"

namespace gradus {

// The elements of a broadcast operand for the N neighbours of the walk from `first` on.
template <Spread kSpread, int N, class T>
__device__ __forceinline__ void load_broadcast(acc_t<T> (&values)[N], const T* x,
                                               const Broadcast& by, int64_t first) {
  using A = acc_t<T>;
  const int64_t run = quotient(by.repeat, first), period = by.period.divisor;
  int64_t at = run - quotient(by.period, run) * period;
  if constexpr (kSpread == Spread::run) {
    load_raw<N>(x + at).unpack(values);
  } else if constexpr (kSpread == Spread::one) {
    const A value = static_cast<A>(x[at]);
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = value;
  } else {
    const int64_t repeat = by.repeat.divisor;
    int64_t taken = first - run * repeat;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      values[j] = static_cast<A>(x[at]);
      if (++taken < repeat) continue;
      taken = 0;
      at = at + 1 < period ? at + 1 : 0;
    }
  }
}

// math:  y[i] = f(x[i], b[(i / repeat) % period]), or with the operands `swapped`
// grid:  1-D, any number of blocks; a pack of 16 bytes per thread and step
// bytes: fewest = actual: x and y once, b from the caches
// needs: x and y flat in one order and aligned to 16 bytes; b is not written
template <Spread kSpread, class T, class F>
__global__ void __launch_bounds__(kElementThreads)
    map_broadcast_pair(T* y, const T* x, const T* b, const __grid_constant__ Broadcast by,
                       bool swapped, int64_t count, const F f) {
  constexpr int N = kFullPack<T>;
  using A = acc_t<T>;
  const auto apply = [&](A whole, A part) {
    return f(swapped ? part : whole, swapped ? whole : part);
  };
  const int64_t packs = count / N;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kElementThreads;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  const int64_t rest = packs * N + i;
  for (; i < packs; i += step) {
    const Raw<T, N> pack = load_raw<N>(x + i * N);
    A xs[N], bs[N], results[N];
    load_broadcast<kSpread>(bs, b, by, i * N);
    pack.unpack(xs);
#pragma unroll
    for (int j = 0; j < N; ++j) results[j] = apply(xs[j], bs[j]);
    store_pack(y + i * N, narrow_pack<T>(results));
  }
  if (rest < count) {
    A last[1];
    load_broadcast<Spread::one>(last, b, by, rest);
    y[rest] = static_cast<T>(apply(static_cast<A>(x[rest]), last[0]));
  }
}

// y = f(a, b), by plan_map_pair(y, a, b), where y and one operand are flat in one order and the
// other is a Broadcast; false, and nothing is launched, elsewhere and where all three are flat.
template <class T, class F>
bool map_broadcast(Cuda& cuda, const StridedPlan<3>& plan, const AnyView& y, const AnyView& a,
                   const AnyView& b, const F& f) {
  if (plan.flat || !walks_flat(plan, 0)) return false;
  const bool swapped = !walks_flat(plan, 1);
  if (swapped && !walks_flat(plan, 2)) return false;
  const AnyView &whole = swapped ? b : a, &part = swapped ? a : b;
  const std::optional<Broadcast> by = plan_broadcast(plan, swapped ? 1 : 2);
  if (!by || pack_width(sizeof(T), {y.data, whole.data}, {}) != kFullPack<T>) return false;
  const unsigned blocks = stepping_blocks(ceil_div(plan.count, kFullPack<T>), kElementThreads);
  const auto launch = [&](auto kernel) {
    kernel<<<blocks, kElementThreads, 0, cuda.stream()>>>(y.as<T>(), whole.as<T>(), part.as<T>(),
                                                          *by, swapped, plan.count, f);
  };
  switch (plan_spread(*by, part.data, sizeof(T))) {
    case Spread::one:
      launch(map_broadcast_pair<Spread::one, T, F>);
      break;
    case Spread::run:
      launch(map_broadcast_pair<Spread::run, T, F>);
      break;
    default:
      launch(map_broadcast_pair<Spread::each, T, F>);
  }
  return true;
}

}  // namespace gradus
