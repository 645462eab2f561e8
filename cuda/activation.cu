// Activations on CUDA: maps (cuda/map.cuh), and maps that write or read a bit per element.
#include "core/ops/activation.h"

#include "cuda/device/activation_half.cuh"
#include "cuda/device/bits.cuh"
#include "cuda/map.cuh"

namespace gradus {
namespace {

// What elements of T are computed in.
template <class T>
using Real = std::conditional_t<sizeof(T) == 2, HalfReal, T>;

template <class A, class V>
__device__ __forceinline__ A to_acc(V value) {
  if constexpr (std::is_same_v<V, HalfReal>) {
    return value.v;
  } else {
    return value;
  }
}

template <class T, class F>
struct Value {
  F function;
  template <class A>
  __device__ A operator()(A x) const {
    return to_acc<A>(function.f(Real<T>(x)));
  }
};

template <class T, class F>
struct Gradient {
  F function;
  template <class A>
  __device__ A operator()(A x, A dy) const {
    return to_acc<A>(function.df(Real<T>(x), Real<T>(dy)));
  }
};

constexpr int kWarpPacks = 4;                 // packs of a lane
constexpr int kWarps = kElementThreads / 32;  // of a block
constexpr int kBlockPacks = kWarps * kWarpPacks * 32;

// The pack that starts at `first`, or what is left of the tensor there. Wide: 16-byte accesses.
template <bool Wide, int N, class T>
__device__ __forceinline__ Pack<T, N> load_upto(const T* x, int64_t first, int64_t count) {
  if (Wide && first + N <= count) return load_pack<N>(x + first);
  Pack<T, N> pack{};
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (first + j < count) pack[j] = x[first + j];
  }
  return pack;
}
template <bool Wide, int N, class T>
__device__ __forceinline__ void store_upto(T* y, int64_t first, int64_t count,
                                           const Pack<T, N>& pack) {
  if (Wide && first + N <= count) return store_pack(y + first, pack);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (first + j < count) y[first + j] = pack[j];
  }
}

// math:  y = f(x) and a bit passes(x) per element, in the order of memory
// grid:  1-D, one warp per kWarpPacks · 32 packs of 16 bytes: pack u·32 + lane for u = 0, 1, ...,
//        so that each access of the warp is one run
// bytes: fewest = actual: x read once, y and the mask written once; the N bits of neighbouring
//        lanes are joined to words by shuffles
// needs: Wide: x and y aligned to 16 bytes; mask to 4
template <bool Wide, class T, class F>
__global__ void __launch_bounds__(kElementThreads)
    activation_forward_mask(const T* x, T* y, uint8_t* mask, int64_t count, const F f) {
  constexpr int N = kFullPack<T>, kLanes = 32 / N;  // lanes whose bits make a word
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  const int64_t start = (warp * kWarpPacks * 32 + lane) * N;
  if (start - lane * N >= count) return;  // the whole warp
  Pack<T, N> values[kWarpPacks];
#pragma unroll
  for (int u = 0; u < kWarpPacks; ++u) values[u] = load_upto<Wide, N>(x, start + u * 32 * N, count);
#pragma unroll
  for (int u = 0; u < kWarpPacks; ++u) {
    const int64_t first = start + u * 32 * N;
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const Real<T> v(static_cast<acc_t<T>>(values[u][j]));
      const bool passes = f.passes(v) && first + j < count;
      bits |= static_cast<uint32_t>(passes) << j;
      values[u][j] = static_cast<T>(to_acc<acc_t<T>>(f.f(v)));
    }
    store_upto<Wide>(y, first, count, values[u]);
    bits = join_bits<N>(bits, lane);
    if (lane % kLanes == 0 && first < count) store_word(mask, first / 32, bits, mask_bytes(count));
  }
}

// math:  dx = df(bit, dy)
// grid, needs: as activation_forward_mask
// bytes: fewest = actual: dy and the mask read once, dx written once
template <bool Wide, class T, class F>
__global__ void __launch_bounds__(kElementThreads)
    activation_backward_mask(const uint8_t* mask, const T* dy, T* dx, int64_t count, const F f) {
  constexpr int N = kFullPack<T>;
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x) / 32;
  const int64_t start = (warp * kWarpPacks * 32 + threadIdx.x % 32) * N;
  Pack<T, N> values[kWarpPacks];
  uint32_t bits[kWarpPacks];
#pragma unroll
  for (int u = 0; u < kWarpPacks; ++u) {
    const int64_t first = start + u * 32 * N;
    values[u] = load_upto<Wide, N>(dy, first, count);
    bits[u] = first < count ? load_bits<N>(mask, first) : 0;
  }
#pragma unroll
  for (int u = 0; u < kWarpPacks; ++u) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const Real<T> upstream(static_cast<acc_t<T>>(values[u][j]));
      const bool passes = (bits[u] >> j) & 1u;
      values[u][j] = static_cast<T>(to_acc<acc_t<T>>(f.df(passes, upstream)));
    }
    store_upto<Wide>(dx, start + u * 32 * N, count, values[u]);
  }
}

template <class T>
unsigned mask_blocks(int64_t count) {
  return exact_blocks(ceil_div(ceil_div(count, kFullPack<T>), kBlockPacks), "activation");
}

template <class T>
bool is_wide(const T* a, const T* b) {
  return pack_width(sizeof(T), {a, b}, {}) == kFullPack<T>;
}

template <class T, class F>
void forward(Cuda& cuda, const ActivationForward& args, const F& f) {
  if constexpr (F::saves == Saves::mask) {
    const int64_t count = args.x.numel();
    if (args.mask) {
      if (count == 0) return;
      const T* x = args.x.as<T>();
      T* y = args.y.as<T>();
      const auto kernel = is_wide<T>(x, y) ? activation_forward_mask<true, T, F>
                                           : activation_forward_mask<false, T, F>;
      kernel<<<mask_blocks<T>(count), kElementThreads, 0, cuda.stream()>>>(
          x, y, args.mask.as<uint8_t>(), count, f);
      return;
    }
  }
  map_elements<T>(cuda, args.y, args.x, Value<T, F>{f});
}

template <class T, class F>
void backward(Cuda& cuda, const ActivationBackward& args, const F& f) {
  if constexpr (F::saves == Saves::mask) {
    const int64_t count = args.dx.numel();
    if (count == 0) return;
    const T* dy = args.dy.as<T>();
    T* dx = args.dx.as<T>();
    const auto kernel = is_wide<T>(dy, dx) ? activation_backward_mask<true, T, F>
                                           : activation_backward_mask<false, T, F>;
    kernel<<<mask_blocks<T>(count), kElementThreads, 0, cuda.stream()>>>(args.saved.as<uint8_t>(),
                                                                         dy, dx, count, f);
  } else {
    map_elements<T>(cuda, args.dx, args.saved, args.dy, Gradient<T, F>{f});
  }
}

}  // namespace

void run(Cuda& cuda, const ActivationForward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    visit_activation(args.activation, [&](const auto& f) { forward<T>(cuda, args, f); });
  });
}

void run(Cuda& cuda, const ActivationBackward& args) {
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    visit_activation(args.activation, [&](const auto& f) { backward<T>(cuda, args, f); });
  });
}

}  // namespace gradus
