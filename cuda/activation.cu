// Activations on CUDA: maps (cuda/map.cuh), and maps that write or read a bit per element.
#include "core/ops/activation.h"

#include "cuda/device/activation_half.cuh"
#include "cuda/device/bits.cuh"
#include "cuda/device/l2_policy.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/map.cuh"

namespace gradus {
namespace {

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

// The pack that starts at `first`, or what is left of the tensor there. Wide: the whole pack is
// there, and aligned.
template <bool Wide, int N, class T>
__device__ __forceinline__ Pack<T, N> load_upto(const T* x, int64_t first, int64_t count) {
  if constexpr (Wide) {
    return load_pack<N>(x + first);
  } else {
    Pack<T, N> pack{};
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (first + j < count) pack[j] = x[first + j];
    }
    return pack;
  }
}
template <bool Wide, int N, class T>
__device__ __forceinline__ void store_upto(T* y, int64_t first, int64_t count,
                                           const Pack<T, N>& pack) {
  if constexpr (Wide) {
    store_pack(y + first, pack);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (first + j < count) y[first + j] = pack[j];
    }
  }
}

// Writes y and returns the bits.
template <bool Wide, bool Large, class T, class F>
__device__ __forceinline__ uint32_t forward_mask_of_pack(const T* x, T* y, int64_t first,
                                                         int64_t count, const F& f) {
  constexpr int N = kFullPack<T>;
  Pack<T, N> values;
  if constexpr (Wide) {
    values = L2Policy<Large>().template load_pack<N>(x + first);
  } else {
    values = load_upto<false, N>(x, first, count);
  }
  uint32_t bits = 0;
  acc_t<T> results[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const Real<T> v(static_cast<acc_t<T>>(values[j]));
    const bool passes = f.passes(v) && (Wide || first + j < count);
    bits |= passes ? 1u << j : 0u;
    results[j] = to_acc<acc_t<T>>(f.f(v));
  }
  store_upto<Wide>(y, first, count, narrow_pack<T>(results));
  return bits;
}

// Forward with a mask: whether it overlaps the launch before, and threads of a block. Measured.
template <class T, bool Large>
inline constexpr bool kMaskOverlaps = Large && sizeof(T) == 2;
template <class T, bool Large>
inline constexpr int kMaskThreads = kMaskOverlaps<T, Large> ? 256 : 128;

// math:  y = f(x) and a bit passes(x) per element, in the order of memory
// grid:  1-D, one thread per pack of 16 bytes
// bytes: fewest = actual: x read once, y and the mask written once; the bits of neighbouring lanes
//        are joined to bytes by shuffles, and those of a block in shared memory where a warp has
//        less than the 32 bytes that memory moves at once. Large, x does not fit L2: as in
//        row_norm_forward_rows_straight
// needs: aligned: x, y and mask aligned to 16 bytes
template <class T, class F, bool Large>
__global__ void __launch_bounds__(kMaskThreads<T, Large>)
    activation_forward_mask(const T* x, T* y, uint8_t* mask, bool aligned, int64_t count,
                            const F f) {
  constexpr int N = kFullPack<T>, kBlock = kMaskThreads<T, Large> * N, kBytes = kBlock / 8;
  if constexpr (kMaskOverlaps<T, Large>) {
    wait_for_previous_kernel();
    start_next_kernel();
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t block = int64_t{blockIdx.x} * kBlock, first = block + thread * N;
  const bool whole = aligned && block + kBlock <= count;
  const uint32_t bits = whole ? forward_mask_of_pack<true, Large>(x, y, first, count, f)
                              : forward_mask_of_pack<false, Large>(x, y, first, count, f);
  if constexpr (N >= 8) {
    store_bits<N>(mask, first, bits, whole || first < count);
  } else {
    __shared__ __align__(16) uint8_t of_block[kBytes];
    store_bits<N>(of_block, thread * N, bits, true);
    __syncthreads();
    if (whole) {
      if (thread >= kBytes / 16) return;
      reinterpret_cast<uint4*>(mask + block / 8)[thread] =
          reinterpret_cast<const uint4*>(of_block)[thread];
    } else if (thread < kBytes && block + thread * 8 < count) {
      mask[block / 8 + thread] = of_block[thread];
    }
  }
}

template <bool Wide, class T, class F>
__device__ __forceinline__ void backward_mask_of_pack(const uint8_t* mask, const T* dy, T* dx,
                                                      int64_t first, int64_t count, const F& f) {
  constexpr int N = kFullPack<T>;
  const Pack<T, N> values = load_upto<Wide, N>(dy, first, count);
  const uint32_t bits = load_bits<N>(mask, first);
  acc_t<T> results[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const Real<T> upstream(static_cast<acc_t<T>>(values[j]));
    results[j] = to_acc<acc_t<T>>(f.df((bits >> j & 1u) != 0, upstream));
  }
  store_upto<Wide>(dx, first, count, narrow_pack<T>(results));
}

// math:  dx = df(bit, dy)
// grid:  1-D, one thread per pack of 16 bytes
// bytes: fewest = actual: dy and the mask read once, dx written once
// needs: aligned: dy and dx aligned to 16 bytes
template <class T, class F>
__global__ void __launch_bounds__(kElementThreads)
    activation_backward_mask(const uint8_t* mask, const T* dy, T* dx, bool aligned, int64_t count,
                             const F f) {
  constexpr int N = kFullPack<T>;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x) * N;
  if (first >= count) return;
  if (aligned && first + N <= count) {
    backward_mask_of_pack<true>(mask, dy, dx, first, count, f);
  } else {
    backward_mask_of_pack<false>(mask, dy, dx, first, count, f);
  }
}

// The blocks of a map with a bit per element.
template <class T>
unsigned mask_blocks(int64_t count, int64_t threads) {
  return exact_blocks(ceil_div(count, threads * kFullPack<T>), "activation");
}

template <class T>
bool is_aligned(std::initializer_list<const void*> tensors) {
  return pack_width(sizeof(T), tensors, {}) == kFullPack<T>;
}

template <bool Large, class T, class F>
void forward_mask(Cuda& cuda, const T* x, T* y, uint8_t* mask, int64_t count, const F& f) {
  constexpr int kThreads = kMaskThreads<T, Large>;
  const LaunchShape shape{.grid = mask_blocks<T>(count, kThreads), .threads = kThreads};
  const bool aligned = is_aligned<T>({x, y, mask});
  const auto kernel = activation_forward_mask<T, F, Large>;
  kMaskOverlaps<T, Large> ? launch_overlapping(cuda, shape, kernel, x, y, mask, aligned, count, f)
                          : launch_kernel(cuda, shape, kernel, x, y, mask, aligned, count, f);
}

template <class T, class F>
void forward(Cuda& cuda, const ActivationForward& args, const F& f) {
  if constexpr (F::saves == Saves::mask) {
    const int64_t count = args.x.numel();
    if (args.mask) {
      if (count == 0) return;
      const T* x = args.x.as<T>();
      T* y = args.y.as<T>();
      uint8_t* mask = args.mask.as<uint8_t>();
      args.x.nbytes() > cuda.info().l2_bytes ? forward_mask<true>(cuda, x, y, mask, count, f)
                                             : forward_mask<false>(cuda, x, y, mask, count, f);
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
    activation_backward_mask<<<mask_blocks<T>(count, kElementThreads), kElementThreads, 0,
                               cuda.stream()>>>(args.saved.as<uint8_t>(), dy, dx,
                                                is_aligned<T>({dy, dx}), count, f);
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
