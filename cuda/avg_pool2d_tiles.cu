// avg_pool2d with whole windows of one size side by side, each with the same divisor: strided ones
// whose stride is the kernel, and adaptive ones whose number divides the extent.
#include <bit>

#include "cuda/avg_pool2d_pairs.h"
#include "cuda/device/round.cuh"
#include "cuda/pool_pairs.cuh"

namespace gradus {
namespace {

// Rows, at most, that are added one to the other before their sum is added to that of the others.
constexpr int kChain = 256;

struct Tiles : Pairs {
  FastDivisor kernel_h, kernel_w;
};

// math:  y = (sum of the window) / divisor
// grid:  1-D; 2^log_lanes neighbouring threads per output; here `across` is q·2^log_lanes and
//        `rows` is p
// bytes: fewest = actual: x read once in accesses of N elements, y written once
// needs: contiguous; windows N·2^log_lanes wide; N divides x's width; x aligned to N elements
// order: the N places of an access separately, row by row in chains, then in their order, lanes
//        pairwise
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    avg_pool2d_forward_tiles(const __grid_constant__ Tiles g, const T* x, Average<T> average,
                             int log_lanes, T* y) {
  using A = acc_t<T>;
  const I unit = static_cast<I>(blockIdx.x) * kPairThreads + threadIdx.x;
  const bool present = unit < static_cast<I>(g.units);
  A sums[N] = {};
  if (present) {
    const RowPlace<I> place(g, unit);
    const int kh = static_cast<int>(g.kernel_h.divisor);
    const I row = place.plane * static_cast<I>(g.h) + place.i * static_cast<I>(kh);
    const T* from = x + (row * static_cast<I>(g.w) + place.column * N);
    for (int first = 0; first < kh; first += kChain) {
      A chain[N] = {};
#pragma unroll 8
      for (int r = first; r < min(kh, first + kChain); ++r) {
        const auto values = load_pack<N>(from + static_cast<I>(r) * static_cast<I>(g.w));
#pragma unroll
        for (int e = 0; e < N; ++e) chain[e] += static_cast<A>(values[e]);
      }
#pragma unroll
      for (int e = 0; e < N; ++e) sums[e] += chain[e];
    }
  }
#pragma unroll
  for (int e = 1; e < N; ++e) sums[0] += sums[e];
  for (int k = 0; k < log_lanes; ++k) sums[0] += __shfl_xor_sync(~0u, sums[0], 1 << k);
  const I at = unit >> log_lanes;
  if (present && at << log_lanes == unit) y[at] = static_cast<T>(average(sums[0]));
}

// math:  dx = dy / divisor, 0 beyond the last windows
// grid:  1-D; a warp takes kRowUnits · 32 units of N neighbours of dx, in the order of memory; here
//        `rows` is h
// bytes: fewest = actual from memory: dy is read for every element, once from the cache
// needs: contiguous; N divides w; dx aligned to N elements; Whole: N divides the windows' width
template <int N, bool Whole, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    avg_pool2d_backward_tiles(const __grid_constant__ Tiles g, const T* dy, Average<T> average,
                              T* dx) {
  using A = acc_t<T>;
  constexpr int kLoads = Whole ? 1 : N;  // a window's value stands for all N
  const I start = warp_unit<I>(kRowUnits) + threadIdx.x % 32;
  T values[kRowUnits][kLoads];
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const I unit = start + u * 32;
#pragma unroll
    for (int e = 0; e < kLoads; ++e) values[u][e] = T(0.0f);
    if (unit >= static_cast<I>(g.units)) continue;
    const RowPlace<I> place(g, unit);
    const I i = quotient_in(g.kernel_h, place.i);
    if (static_cast<int>(i) >= g.p) continue;
    const T* from = dy + (place.plane * static_cast<I>(g.p) + i) * static_cast<I>(g.q);
    int j = static_cast<int>(quotient_in(g.kernel_w, static_cast<I>(place.column * N)));
    int end = (j + 1) * static_cast<int>(g.kernel_w.divisor);  // of window j
#pragma unroll
    for (int e = 0; e < kLoads; ++e) {
      if (static_cast<int>(place.column) * N + e == end) {
        ++j;
        end += static_cast<int>(g.kernel_w.divisor);
      }
      if (j < g.q) values[u][e] = from[j];
    }
  }
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const I unit = start + u * 32;
    if (unit >= static_cast<I>(g.units)) return;
    A shares[N];
#pragma unroll
    for (int e = 0; e < N; ++e) shares[e] = average(static_cast<A>(values[u][e % kLoads]));
    store_pack(dx + unit * N, round_pack<T, N>(shares));
  }
}

// math:  as above
// grid:  1-D; a warp takes kRowUnits · 32 units of N channels of dx, in the order of memory; here
//        `columns` is w and `rows` is h
// bytes: as above
// needs: channels-last; N divides the channels; dx and dy aligned to N elements
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    avg_pool2d_backward_tiles_pixel(const __grid_constant__ Tiles g, const T* dy,
                                    Average<T> average, T* dx) {
  using A = acc_t<T>;
  const I start = warp_unit<I>(kRowUnits) + threadIdx.x % 32;
  Pack<T, N> values[kRowUnits];
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const I unit = start + u * 32;
    values[u] = {};
    if (unit >= static_cast<I>(g.units)) continue;
    const I pixel = quotient_in(g.across, unit), row = quotient_in(g.columns, pixel);
    const I channel = unit - pixel * static_cast<I>(g.across.divisor);
    const I image = quotient_in(g.rows, row);
    const I i = quotient_in(g.kernel_h, static_cast<I>(row - image * static_cast<I>(g.h)));
    const I j = quotient_in(g.kernel_w, static_cast<I>(pixel - row * static_cast<I>(g.w)));
    if (static_cast<int>(i) >= g.p || static_cast<int>(j) >= g.q) continue;
    const I from = (image * static_cast<I>(g.p) + i) * static_cast<I>(g.q) + j;
    values[u] = load_pack<N>(dy + (from * static_cast<I>(g.channels) + channel * N));
  }
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const I unit = start + u * 32;
    if (unit >= static_cast<I>(g.units)) return;
    A shares[N];
#pragma unroll
    for (int e = 0; e < N; ++e) shares[e] = average(static_cast<A>(values[u][e]));
    store_pack(dx + unit * N, round_pack<T, N>(shares));
  }
}

Tiles make_tiles(const Image& x, const Image& y, const Pair& kernel) {
  Tiles g;
  static_cast<Pairs&>(g) = make_pairs(x, y);
  g.kernel_h = FastDivisor(static_cast<uint32_t>(kernel[0]));
  g.kernel_w = FastDivisor(static_cast<uint32_t>(kernel[1]));
  return g;
}

template <class T>
bool is_aligned(const Image& image, int64_t count) {
  return reinterpret_cast<uintptr_t>(image.data) % (static_cast<size_t>(count) * sizeof(T)) == 0;
}

template <class T>
bool forward(Cuda& cuda, const AvgWindows& windows, const Pair& kernel, const Image& x,
             const Image& y, MemoryFormat format) {
  constexpr int N = kFullPack<T>;
  if (format == MemoryFormat::channels_last) return false;
  const auto lanes = static_cast<uint64_t>(kernel[1] / N);
  if (x.w % N != 0 || kernel[1] % N != 0 || lanes > 32 || !std::has_single_bit(lanes) ||
      !is_aligned<T>(x, N)) {
    return false;
  }
  Tiles g = make_tiles(x, y, kernel);
  g.across = FastDivisor(static_cast<uint32_t>(y.w * static_cast<int64_t>(lanes)));
  g.units = y.numel() * static_cast<int64_t>(lanes);
  visit_index_type(x, [&](auto type) {
    avg_pool2d_forward_tiles<N, typename decltype(type)::type>
        <<<pair_blocks(g.units, 1), kPairThreads, 0, cuda.stream()>>>(
            g, static_cast<const T*>(x.data), average_of<T>(windows), std::countr_zero(lanes),
            static_cast<T*>(y.data));
  });
  return true;
}

template <class T>
bool backward(Cuda& cuda, const AvgWindows& windows, const Pair& kernel, const Image& dx,
              const Image& dy, MemoryFormat format) {
  constexpr int N = kFullPack<T>;
  const bool pixels = format == MemoryFormat::channels_last;
  if (pixels ? !has_channel_packs<T>(dx, dy) : dx.w % N != 0 || !is_aligned<T>(dx, N)) return false;
  Tiles g = make_tiles(dx, dy, kernel);
  g.across = FastDivisor(static_cast<uint32_t>((pixels ? dx.channels : dx.w) / N));
  g.columns = FastDivisor(static_cast<uint32_t>(dx.w));
  g.rows = FastDivisor(static_cast<uint32_t>(dx.h));
  g.units = dx.numel() / N;
  visit_index_type(dx, [&](auto type) {
    using I = typename decltype(type)::type;
    const bool whole = kernel[1] % N == 0;
    const auto chosen = pixels  ? avg_pool2d_backward_tiles_pixel<N, I, T>
                        : whole ? avg_pool2d_backward_tiles<N, true, I, T>
                                : avg_pool2d_backward_tiles<N, false, I, T>;
    chosen<<<pair_blocks(g.units, kRowUnits), kPairThreads, 0, cuda.stream()>>>(
        g, static_cast<const T*>(dy.data), average_of<T>(windows), static_cast<T*>(dx.data));
  });
  return true;
}

}  // namespace

bool avg_pool2d_tiles_forward(Cuda& cuda, const AvgPool2dForward& args) {
  const Pair kernel = tile_of(args.windows);
  if (kernel[0] == 0) return false;
  return launch_images(args.x, args.y, args.name, [&](auto type, const auto&... of) {
    return forward<typename decltype(type)::type>(cuda, args.windows, kernel, of...);
  });
}

bool avg_pool2d_tiles_backward(Cuda& cuda, const AvgPool2dBackward& args) {
  const Pair kernel = tile_of(args.windows);
  if (kernel[0] == 0) return false;
  return launch_images(args.dx, args.dy, args.name, [&](auto type, const auto&... of) {
    return backward<typename decltype(type)::type>(cuda, args.windows, kernel, of...);
  });
}

}  // namespace gradus
