// Activations on CUDA: maps (cuda/map.cuh), and maps that write or read a bit per element.
#include "core/ops/activation.h"

#include "cuda/device/activation_half.cuh"
#include "cuda/device/bits.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/map.cuh"
#include "cuda/with_eviction.cuh"

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
template <bool Wide, int N, Evict kEvict, class T>
__device__ __forceinline__ Pack<T, N> load_upto(const T* x, int64_t first, int64_t count) {
  if constexpr (Wide) {
    return L2Policy<kEvict>().template load_pack<N>(x + first);
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

// Maps a pack and returns its bits, none of elements that do not exist.
template <class T, int N, class F>
__device__ __forceinline__ uint32_t map_with_bits(Pack<T, N>& pack, const F& f, int64_t exist = N) {
  uint32_t bits = 0;
  acc_t<T> results[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const Real<T> v(static_cast<acc_t<T>>(pack[j]));
    bits |= f.passes(v) && j < exist ? 1u << j : 0u;
    results[j] = to_acc<acc_t<T>>(f.f(v));
  }
  pack = narrow_pack<T>(results);
  return bits;
}

// Packs of a block of a map with a bit per element. Half as many take up to a quarter longer where
// launches overlap.
inline constexpr int kMaskBlock = 256;
// Forward, packs of a thread, a warp apart: a warp's bits fill the 32 bytes that memory moves at
// once.
template <class T>
inline constexpr int kMaskPacks = 8 / kFullPack<T>;
template <class T>
inline constexpr int kMaskThreads = kMaskBlock / kMaskPacks<T>;

// math:  y = f(x) and a bit passes(x) per element, in the order of memory
// grid:  1-D, kMaskPacks packs of 16 bytes per thread
// bytes: fewest = actual: x read once, y and the mask written once; the bits of neighbouring lanes
//        are joined to words by shuffles. kEvict: last where x does not fit L2, as in
//        row_norm_forward_rows_straight; most_first where x and y do not fit it together, so that y
//        stays there, and as much of x as finds room beside it
// needs: aligned: x, y and mask aligned to 16 bytes
template <class T, class F, Evict kEvict>
__global__ void __launch_bounds__(kMaskThreads<T>)
    activation_forward_mask(const T* x, T* y, uint8_t* mask, bool aligned, int64_t count,
                            const F f) {
  constexpr int N = kFullPack<T>, K = kMaskPacks<T>, kStep = 32 * N, kOfWarp = K * kStep;
  constexpr int kLanes = 32 / N;  // whose bits are one word
  wait_for_previous_kernel();
  start_next_kernel();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t begin = int64_t{blockIdx.x} * kMaskBlock * N + warp * kOfWarp;
  const int64_t first = begin + lane * N;
  if (!aligned || begin + kOfWarp > count) {
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const int64_t at = first + i * kStep;
      Pack<T, N> pack = load_upto<false, N, kEvict>(x, at, count);
      const uint32_t bits = map_with_bits(pack, f, count - at);
      store_upto<false>(y, at, count, pack);
      store_bits<N>(mask, at, bits, at < count);
    }
    return;
  }
  const L2Policy<kEvict> policy;
  Pack<T, N> packs[K];
#pragma unroll
  for (int i = 0; i < K; ++i) packs[i] = policy.template load_pack<N>(x + first + i * kStep);
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < K; ++i) {
    const uint32_t bits = map_with_bits(packs[i], f) << (lane % kLanes * N);
    const uint32_t joined = join_bits<kLanes>(bits);
    if (lane % kLanes == i) word = joined;
    store_pack(y + first + i * kStep, packs[i]);
  }
  if (lane % kLanes < K) {
    reinterpret_cast<uint32_t*>(mask)[begin / 32 + lane % kLanes * N + lane / kLanes] = word;
  }
}

template <bool Wide, Evict kEvict, class T, class F>
__device__ __forceinline__ void backward_mask_of_pack(const uint8_t* mask, const T* dy, T* dx,
                                                      int64_t first, int64_t count, const F& f) {
  constexpr int N = kFullPack<T>;
  const Pack<T, N> values = load_upto<Wide, N, kEvict>(dy, first, count);
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
template <class T, class F, Evict kEvict>
__global__ void __launch_bounds__(kMaskBlock)
    activation_backward_mask(const uint8_t* mask, const T* dy, T* dx, bool aligned, int64_t count,
                             const F f) {
  constexpr int N = kFullPack<T>;
  const int64_t first = (int64_t{blockIdx.x} * kMaskBlock + threadIdx.x) * N;
  if (first >= count) return;
  if (aligned && first + N <= count) {
    backward_mask_of_pack<true, kEvict>(mask, dy, dx, first, count, f);
  } else {
    backward_mask_of_pack<false, kEvict>(mask, dy, dx, first, count, f);
  }
}

template <class T>
unsigned mask_blocks(int64_t count) {
  return exact_blocks(ceil_div(count, int64_t{kMaskBlock} * kFullPack<T>), "activation");
}

template <class T>
bool is_aligned(std::initializer_list<const void*> tensors) {
  return pack_width(sizeof(T), tensors, {}) == kFullPack<T>;
}

template <Evict kEvict, class T, class F>
void forward_mask(Cuda& cuda, const T* x, T* y, uint8_t* mask, int64_t count, const F& f) {
  launch_overlapping(cuda, {.grid = mask_blocks<T>(count), .threads = kMaskThreads<T>},
                     activation_forward_mask<T, F, kEvict>, x, y, mask, is_aligned<T>({x, y, mask}),
                     count, f);
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
      const int64_t bytes = args.x.nbytes();
      if (fits_l2(cuda, 2 * bytes)) return forward_mask<Evict::normal>(cuda, x, y, mask, count, f);
      if (fits_l2(cuda, bytes)) return forward_mask<Evict::most_first>(cuda, x, y, mask, count, f);
      return forward_mask<Evict::last>(cuda, x, y, mask, count, f);
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
    with_eviction<16>(cuda, args.dy.nbytes(), [&](auto evict) {
      activation_backward_mask<T, F, evict()>
          <<<mask_blocks<T>(count), kMaskBlock, 0, cuda.stream()>>>(
              args.saved.as<uint8_t>(), dy, dx, is_aligned<T>({dy, dx}), count, f);
    });
  } else {
    map_elements<T>(cuda, plan_map_pair(args.dx, args.saved, args.dy), args.dx, args.saved, args.dy,
                    Gradient<T, F>{f});
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
