// avg_pool2d with windows of 2 x 2 side by side, each with the same divisor, at the speed of
// memory.
#include "cuda/avg_pool2d_pairs.h"

#include "cuda/device/round.cuh"
#include "cuda/pool_pairs.cuh"

namespace gradus {
namespace {

// math:  y = (sum of four) / divisor, for N / 2 windows (at least one) from their columns in two
//        rows
// grid:  1-D; a warp takes kRowUnits · 32 units
// bytes: fewest = actual: x read once, y written once
// needs: contiguous; where N > 1: q = w / 2, N divides w; x aligned to N elements, y to N / 2
// order: row-major within the window
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    avg_pool2d_forward_pairs(const __grid_constant__ Pairs g, const T* x, Average<T> average,
                             T* y) {
  using A = acc_t<T>;
  constexpr int kColumns = kPairColumns<N>, kOutputs = kColumns / 2;
  const I start = warp_unit<I>(kRowUnits) + threadIdx.x % 32;
  Pack<T, kColumns> top[kRowUnits], bottom[kRowUnits];
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const RowPlace<I> place(g, unit_upto<I>(g, start + u * 32));
    const I row = place.plane * static_cast<I>(g.h) + 2 * place.i;
    const T* from = x + (row * static_cast<I>(g.w) + place.column * kColumns);
    top[u] = load_columns<N>(from, 1);
    bottom[u] = load_columns<N>(from + g.w, 1);
  }
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const I unit = start + u * 32;
    if (unit >= static_cast<I>(g.units)) return;
    A means[kOutputs];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const A above = static_cast<A>(top[u][2 * o]) + static_cast<A>(top[u][2 * o + 1]);
      means[o] = average((above + static_cast<A>(bottom[u][2 * o])) +
                         static_cast<A>(bottom[u][2 * o + 1]));
    }
    store_pack(y + unit * kOutputs, round_pack<T, kOutputs>(means));
  }
}

// math:  dx = dy / divisor
// grid:  1-D; a warp takes kRowUnits · 32 units of N neighbours of dx, in the order of memory; here
//        `rows` is h
// bytes: fewest = actual from memory: dy is read for either row, once from the cache
// needs: as avg_pool2d_forward_pairs, of dx and dy
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    avg_pool2d_backward_pairs(const __grid_constant__ Pairs g, const T* dy, Average<T> average,
                              T* dx) {
  using A = acc_t<T>;
  const I start = warp_unit<I>(kRowUnits) + threadIdx.x % 32;
  Pack<T, N / 2> values[kRowUnits];
  bool covered[kRowUnits];
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const RowPlace<I> place(g, unit_upto<I>(g, start + u * 32));
    const int i = static_cast<int>(place.i) / 2, window = min(i, g.p - 1);
    const I row = place.plane * static_cast<I>(g.p) + window;
    covered[u] = i == window;
    values[u] = load_pack<N / 2>(dy + (row * static_cast<I>(g.q) + place.column * (N / 2)));
  }
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const I unit = start + u * 32;
    if (unit >= static_cast<I>(g.units)) return;
    A shares[N];
#pragma unroll
    for (int o = 0; o < N / 2; ++o) {
      const A share = average(static_cast<A>(values[u][o]));
      shares[2 * o] = shares[2 * o + 1] = covered[u] ? share : A(0);
    }
    store_pack(dx + unit * N, round_pack<T, N>(shares));
  }
}

// math:  as above
// grid:  1-D; a warp takes kRowUnits · 32 columns of two rows of dx, as ColumnPlace counts them
// bytes: as above, in accesses of one element: dy for two columns, once from the cache
// needs: contiguous
template <class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    avg_pool2d_backward_pairs_any(const __grid_constant__ Pairs g, const T* dy, Average<T> average,
                                  T* dx) {
  using A = acc_t<T>;
  const I start = warp_unit<I>(kRowUnits) + threadIdx.x % 32;
  ColumnPlace<I> places[kRowUnits];
  T values[kRowUnits];
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const ColumnPlace<I> place(g, unit_upto<I>(g, start + u * 32));
    values[u] = dy[place.from];
    places[u] = place;
  }
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    if (start + u * 32 >= static_cast<I>(g.units)) return;
    const ColumnPlace<I>& place = places[u];
    const A mean = average(static_cast<A>(values[u]));
    const T share = static_cast<T>(place.covered ? mean : A(0));
    dx[place.to] = share;
    if (place.has_lower) dx[place.to + g.w] = share;
  }
}

// math:  y = (sum of four) / divisor, for N channels of one window
// grid:  1-D; a warp takes kPixelUnits · 32 units
// bytes: fewest = actual: x read once, y written once
// needs: channels-last; N divides the channels; x and y aligned to N elements
// order: row-major within the window
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    avg_pool2d_forward_pairs_pixel(const __grid_constant__ Pairs g, const T* x, Average<T> average,
                                   T* y) {
  using A = acc_t<T>;
  const I start = warp_unit<I>(kPixelUnits) + threadIdx.x % 32;
  Pack<T, N> taps[kPixelUnits][4];
#pragma unroll
  for (int u = 0; u < kPixelUnits; ++u) {
    const T* from = x + PixelPlace<I>(g, unit_upto<I>(g, start + u * 32)).template offset<N>(g);
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
      means[e] = average((above + static_cast<A>(taps[u][2][e])) + static_cast<A>(taps[u][3][e]));
    }
    store_pack(y + unit * N, round_pack<T, N>(means));
  }
}

// math:  dx = dy / divisor, 0 beyond the last windows
// grid:  1-D; a warp takes kPixelUnits · 32 units of N channels of a window
// bytes: fewest = actual: dy read once, dx written once
// needs: channels-last; N divides the channels; dx and dy aligned to N elements
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    avg_pool2d_backward_pairs_pixel(const __grid_constant__ Pairs g, const T* dy,
                                    Average<T> average, T* dx) {
  using A = acc_t<T>;
  const I start = warp_unit<I>(kPixelUnits) + threadIdx.x % 32;
  Pack<T, N> values[kPixelUnits];
#pragma unroll
  for (int u = 0; u < kPixelUnits; ++u) {
    values[u] = load_pack<N>(dy + unit_upto<I>(g, start + u * 32) * N);
  }
#pragma unroll
  for (int u = 0; u < kPixelUnits; ++u) {
    const I unit = start + u * 32;
    if (unit >= static_cast<I>(g.units)) return;
    A shares[N];
#pragma unroll
    for (int e = 0; e < N; ++e) shares[e] = average(static_cast<A>(values[u][e]));
    const Pack<T, N> share = round_pack<T, N>(shares);
    const PixelPlace<I> place(g, unit);
    T* to = dx + place.template offset<N>(g);
    // The last windows also clear the row and the column that none reaches.
    const int i = static_cast<int>(place.i), j = static_cast<int>(place.j);
    const int down = i == g.p - 1 ? g.h - 2 * i : 2, along = j == g.q - 1 ? g.w - 2 * j : 2;
    for (int r = 0; r < down; ++r) {
      for (int s = 0; s < along; ++s) {
        const I pixel = static_cast<I>(r) * static_cast<I>(g.w) + static_cast<I>(s);
        store_pack(to + pixel * static_cast<I>(g.channels), r < 2 && s < 2 ? share : Pack<T, N>{});
      }
    }
  }
}

bool is_pairs(const AvgWindows& windows) { return tile_of(windows) == Pair(2); }

template <class T>
bool forward(Cuda& cuda, const AvgWindows& windows, const Image& x, const Image& y,
             MemoryFormat format) {
  Pairs g = make_pairs(x, y);
  const T* from = static_cast<const T*>(x.data);
  T* to = static_cast<T*>(y.data);
  const Average<T> average = average_of<T>(windows);
  if (format == MemoryFormat::channels_last) {
    constexpr int N = kFullPack<T>;
    if (!has_channel_packs<T>(x, y)) return false;
    g.across = FastDivisor(static_cast<uint32_t>(x.channels / N));
    g.units = y.numel() / N;
    visit_index_type(x, [&](auto type) {
      avg_pool2d_forward_pairs_pixel<N, typename decltype(type)::type>
          <<<pair_blocks(g.units, kPixelUnits), kPairThreads, 0, cuda.stream()>>>(g, from, average,
                                                                                  to);
    });
    return true;
  }
  visit_row_pack<T>(x, y, [&](auto width) {
    constexpr int N = decltype(width)::value;
    count_row_units<N>(g, y);
    visit_index_type(x, [&](auto type) {
      avg_pool2d_forward_pairs<N, typename decltype(type)::type>
          <<<pair_blocks(g.units, kRowUnits), kPairThreads, 0, cuda.stream()>>>(g, from, average,
                                                                                to);
    });
  });
  return true;
}

template <class T>
bool backward(Cuda& cuda, const AvgWindows& windows, const Image& dx, const Image& dy,
              MemoryFormat format) {
  Pairs g = make_pairs(dx, dy);
  const T* from = static_cast<const T*>(dy.data);
  T* to = static_cast<T*>(dx.data);
  const Average<T> average = average_of<T>(windows);
  if (format == MemoryFormat::channels_last) {
    constexpr int N = kFullPack<T>;
    // Wider types have time to read a window once per element, in the order of memory.
    if (sizeof(T) > 2 || !has_channel_packs<T>(dx, dy)) return false;
    g.across = FastDivisor(static_cast<uint32_t>(dx.channels / N));
    g.units = dy.numel() / N;
    visit_index_type(dx, [&](auto type) {
      avg_pool2d_backward_pairs_pixel<N, typename decltype(type)::type>
          <<<pair_blocks(g.units, kPixelUnits), kPairThreads, 0, cuda.stream()>>>(g, from, average,
                                                                                  to);
    });
    return true;
  }
  visit_row_pack<T>(dx, dy, [&](auto width) {
    constexpr int N = decltype(width)::value;
    count_gradient_units<N>(g, dx);
    visit_index_type(dx, [&](auto type) {
      using I = typename decltype(type)::type;
      const auto launch = [&](auto kernel) {
        kernel<<<pair_blocks(g.units, kRowUnits), kPairThreads, 0, cuda.stream()>>>(g, from,
                                                                                    average, to);
      };
      if constexpr (N > 1) {
        launch(avg_pool2d_backward_pairs<N, I, T>);
      } else {
        launch(avg_pool2d_backward_pairs_any<I, T>);
      }
    });
  });
  return true;
}

}  // namespace

bool avg_pool2d_pairs_forward(Cuda& cuda, const AvgPool2dForward& args) {
  if (!is_pairs(args.windows)) return false;
  return launch_images(args.x, args.y, args.name, [&](auto type, const auto&... of) {
    return forward<typename decltype(type)::type>(cuda, args.windows, of...);
  });
}

bool avg_pool2d_pairs_backward(Cuda& cuda, const AvgPool2dBackward& args) {
  if (!is_pairs(args.windows)) return false;
  return launch_images(args.dx, args.dy, args.name, [&](auto type, const auto&... of) {
    return backward<typename decltype(type)::type>(cuda, args.windows, of...);
  });
}

}  // namespace gradus
