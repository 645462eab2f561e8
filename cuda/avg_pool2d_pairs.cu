// avg_pool2d with windows of 2 x 2 side by side, each with the same divisor, at the speed of
// memory.
#include "cuda/avg_pool2d_pairs.h"

#include "cuda/pool_pairs.cuh"

namespace gradus {
namespace {

// math:  y = (sum of four) / divisor, for N / 2 windows from N neighbours in two rows
// grid:  1-D; a warp takes kRowUnits · 32 units
// bytes: fewest = actual: x read once, y written once
// needs: contiguous; q = w / 2, N divides w; x aligned to N elements, y to N / 2
// order: row-major within the window
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    avg_pool2d_forward_pairs(const __grid_constant__ Pairs g, const T* x, acc_t<T> divisor, T* y) {
  using A = acc_t<T>;
  const I start = warp_unit<I>(kRowUnits) + threadIdx.x % 32;
  Pack<T, N> top[kRowUnits], bottom[kRowUnits];
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const I unit = start + u * 32;
    if (unit >= static_cast<I>(g.units)) continue;
    const RowPlace<I> place(g, unit);
    const I row = place.plane * static_cast<I>(g.h) + 2 * place.i;
    const T* from = x + (row * static_cast<I>(g.w) + place.column * N);
    top[u] = load_pack<N>(from);
    bottom[u] = load_pack<N>(from + g.w);
  }
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const I unit = start + u * 32;
    if (unit >= static_cast<I>(g.units)) return;
    A means[N / 2];
#pragma unroll
    for (int o = 0; o < N / 2; ++o) {
      const A above = static_cast<A>(top[u][2 * o]) + static_cast<A>(top[u][2 * o + 1]);
      means[o] =
          ((above + static_cast<A>(bottom[u][2 * o])) + static_cast<A>(bottom[u][2 * o + 1])) /
          divisor;
    }
    store_pack(y + unit * (N / 2), narrow_pack<T>(means));
  }
}

// math:  dx = dy / divisor
// grid:  1-D; a warp takes kRowUnits · 32 units of N neighbours of dx, in the order of memory; here
//        `rows` is h
// bytes: fewest = actual from memory: dy is read for either row, once from the cache
// needs: as avg_pool2d_forward_pairs, of dx and dy
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    avg_pool2d_backward_pairs(const __grid_constant__ Pairs g, const T* dy, acc_t<T> divisor,
                              T* dx) {
  using A = acc_t<T>;
  const I start = warp_unit<I>(kRowUnits) + threadIdx.x % 32;
  Pack<T, N / 2> values[kRowUnits];
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const I unit = start + u * 32;
    values[u] = {};
    if (unit >= static_cast<I>(g.units)) continue;
    const RowPlace<I> place(g, unit);
    const I row = place.plane * static_cast<I>(g.p) + place.i / 2;
    if (static_cast<int>(place.i / 2) < g.p)
      values[u] = load_pack<N / 2>(dy + (row * static_cast<I>(g.q) + place.column * (N / 2)));
  }
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const I unit = start + u * 32;
    if (unit >= static_cast<I>(g.units)) return;
    A shares[N];
#pragma unroll
    for (int o = 0; o < N / 2; ++o)
      shares[2 * o] = shares[2 * o + 1] = static_cast<A>(values[u][o]) / divisor;
    store_pack(dx + unit * N, narrow_pack<T>(shares));
  }
}

// math:  y = (sum of four) / divisor, for N channels of one window
// grid:  1-D; a warp takes kPixelUnits · 32 units
// bytes: fewest = actual: x read once, y written once
// needs: channels-last; N divides the channels; x and y aligned to N elements
// order: row-major within the window
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    avg_pool2d_forward_pairs_pixel(const __grid_constant__ Pairs g, const T* x, acc_t<T> divisor,
                                   T* y) {
  using A = acc_t<T>;
  const I start = warp_unit<I>(kPixelUnits) + threadIdx.x % 32;
  Pack<T, N> taps[kPixelUnits][4];
#pragma unroll
  for (int u = 0; u < kPixelUnits; ++u) {
    const I unit = start + u * 32;
    if (unit >= static_cast<I>(g.units)) continue;
    const T* from = x + PixelPlace<I>(g, unit).template offset<N>(g);
    const I below = static_cast<I>(g.w) * static_cast<I>(g.channels);
    taps[u][0] = load_pack<N>(from);
    taps[u][1] = load_pack<N>(from + g.channels);
    taps[u][2] = load_pack<N>(from + below);
    taps[u][3] = load_pack<N>(from + (below + g.channels));
  }
#pragma unroll
  for (int u = 0; u < kPixelUnits; ++u) {
    const I unit = start + u * 32;
    if (unit >= static_cast<I>(g.units)) return;
    A means[N];
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const A above = static_cast<A>(taps[u][0][e]) + static_cast<A>(taps[u][1][e]);
      means[e] =
          ((above + static_cast<A>(taps[u][2][e])) + static_cast<A>(taps[u][3][e])) / divisor;
    }
    store_pack(y + unit * N, narrow_pack<T>(means));
  }
}

bool is_pairs(const AvgWindows& windows) { return tile_of(windows) == Pair(2); }

template <class T>
acc_t<T> divisor_of(const AvgWindows& windows) {
  return static_cast<acc_t<T>>(windows.divisor != 0 ? windows.divisor : 4);
}

template <class T>
bool forward(Cuda& cuda, const AvgWindows& windows, const Image& x, const Image& y,
             MemoryFormat format) {
  Pairs g = make_pairs(x, y);
  const T* from = static_cast<const T*>(x.data);
  T* to = static_cast<T*>(y.data);
  const acc_t<T> divisor = divisor_of<T>(windows);
  if (format == MemoryFormat::channels_last) {
    constexpr int N = kFullPack<T>;
    if (!has_channel_packs<T>(x, y)) return false;
    g.across = FastDivisor(static_cast<uint32_t>(x.channels / N));
    g.units = y.numel() / N;
    visit_index_type(x, [&](auto type) {
      avg_pool2d_forward_pairs_pixel<N, typename decltype(type)::type>
          <<<pair_blocks(g.units, kPixelUnits), kPairThreads, 0, cuda.stream()>>>(g, from, divisor,
                                                                                  to);
    });
    return true;
  }
  bool launched = false;
  visit_row_pack<T>(x, y, [&](auto width) {
    constexpr int N = decltype(width)::value;
    if constexpr (N > 1) {
      g.across = FastDivisor(static_cast<uint32_t>(x.w / N));
      g.units = x.n * x.channels * y.h * (x.w / N);
      visit_index_type(x, [&](auto type) {
        avg_pool2d_forward_pairs<N, typename decltype(type)::type>
            <<<pair_blocks(g.units, kRowUnits), kPairThreads, 0, cuda.stream()>>>(g, from, divisor,
                                                                                  to);
      });
      launched = true;
    }
  });
  return launched;
}

template <class T>
bool backward(Cuda& cuda, const AvgWindows& windows, const Image& dx, const Image& dy) {
  Pairs g = make_pairs(dx, dy);
  const T* from = static_cast<const T*>(dy.data);
  T* to = static_cast<T*>(dx.data);
  const acc_t<T> divisor = divisor_of<T>(windows);
  g.rows = FastDivisor(static_cast<uint32_t>(dx.h));
  bool launched = false;
  visit_row_pack<T>(dx, dy, [&](auto width) {
    constexpr int N = decltype(width)::value;
    if constexpr (N > 1) {
      g.across = FastDivisor(static_cast<uint32_t>(dx.w / N));
      g.units = dx.numel() / N;
      visit_index_type(dx, [&](auto type) {
        avg_pool2d_backward_pairs<N, typename decltype(type)::type>
            <<<pair_blocks(g.units, kRowUnits), kPairThreads, 0, cuda.stream()>>>(g, from, divisor,
                                                                                  to);
      });
      launched = true;
    }
  });
  return launched;
}

}  // namespace

bool avg_pool2d_pairs_forward(Cuda& cuda, const AvgPool2dForward& args) {
  if (!is_pairs(args.windows)) return false;
  const MemoryFormat format = format_of(args.x, args.name);
  bool launched = false;
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launched = forward<T>(cuda, args.windows, Image(args.x, format), Image(args.y, format), format);
  });
  return launched;
}

bool avg_pool2d_pairs_backward(Cuda& cuda, const AvgPool2dBackward& args) {
  const MemoryFormat format = format_of(args.dx, args.name);
  if (!is_pairs(args.windows) || format == MemoryFormat::channels_last) return false;
  bool launched = false;
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launched = backward<T>(cuda, args.windows, Image(args.dx, format), Image(args.dy, format));
  });
  return launched;
}

}  // namespace gradus
