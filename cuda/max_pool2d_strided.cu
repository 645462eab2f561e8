// max_pool2d with windows of 3 x 3 at stride 2 and padding 1, as networks for large images have it:
// for contiguous tensors both passes, with 16 bytes of a row in a thread; for channels-last ones
// the backward pass, with 16 bytes of the channels of 2 x 2 pixels.
#include "cuda/max_pool2d_pairs.h"

#include "cuda/device/round.cuh"
#include "cuda/pool_pairs.cuh"

namespace gradus {
namespace {

// A maximum so far, of windows that begin at tap `first`; taps that are not there are -inf.
template <class A>
__device__ __forceinline__ Winner<A> lowest_winner(uint32_t first) {
  Winner<A> winner(A(-INFINITY));
  winner.tap = first;
  return winner;
}

// math    y = max of the window, index = 3r + s of the first maximum, or of the first NaN
// grid    1-D; a thread takes N neighbours of y: here `across` is q / N
// bytes   fewest = actual from memory: rows between two windows again from the cache
// needs   contiguous; w = 2q, N divides q; x aligned to 2N elements, y and index to N
// order   window elements in row-major order
// Measured at 8x64x112x112: 89 % of a copy in f32 and, in the same time, 46 % in bf16; element by
// element 40 and 20 %.
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_forward_3x3_stride_2(const __grid_constant__ Pairs g, const T* __restrict__ x,
                                    T* __restrict__ y, uint8_t* __restrict__ index) {
  using A = acc_t<T>;
  const I unit = static_cast<I>(blockIdx.x) * kPairThreads + threadIdx.x;
  if (unit >= static_cast<I>(g.units)) return;
  const RowPlace<I> place(g, unit);
  const int top = 2 * static_cast<int>(place.i) - 1, column = static_cast<int>(place.column) * N;
  A rows[3][2 * N + 1];
#pragma unroll
  for (int r = 0; r < 3; ++r) {
    const int h = top + r;
#pragma unroll
    for (int e = 0; e <= 2 * N; ++e) rows[r][e] = A(-INFINITY);
    if (h < 0 || h >= g.h) continue;
    const T* from =
        x + ((place.plane * static_cast<I>(g.h) + h) * static_cast<I>(g.w) + 2 * column);
    const auto values = load_pack<2 * N>(from);
    if (column > 0) rows[r][0] = static_cast<A>(from[-1]);
#pragma unroll
    for (int e = 0; e < 2 * N; ++e) rows[r][e + 1] = static_cast<A>(values[e]);
  }
  A best[N];
  Pack<uint8_t, N> taken;
#pragma unroll
  for (int o = 0; o < N; ++o) {
    auto winner = lowest_winner<A>((top < 0 ? 3 : 0) + (o == 0 && column == 0 ? 1 : 0));
#pragma unroll
    for (uint32_t tap = 0; tap < 9; ++tap) winner.compete(rows[tap / 3][2 * o + tap % 3], tap);
    best[o] = winner.value;
    taken[o] = static_cast<uint8_t>(winner.tap);
  }
  store_pack(y + unit * N, narrow_pack<T>(best));
  if (index != nullptr) store_pack(index + unit * N, taken);
}

// dy and the taken taps of windows j, ..., j + N of one row of windows; where there is no window,
// its tap is none.
template <int N, class T>
struct TakenRow {
  acc_t<T> values[N + 1];
  uint32_t taps[N + 1];

  __device__ __forceinline__ TakenRow(const T* dy, const uint8_t* index, bool exists, bool next) {
    Pack<T, N> some{};
    Pack<uint8_t, N> some_taps = repeat_pack<N>(uint8_t(255));
    if (exists) {
      some = load_pack<N>(dy);
      some_taps = load_pack<N>(index);
    }
    const T last = exists && next ? dy[N] : T(0.0f);
#pragma unroll
    for (int e = 0; e < N; ++e) values[e] = static_cast<acc_t<T>>(some[e]), taps[e] = some_taps[e];
    values[N] = static_cast<acc_t<T>>(last);
    taps[N] = exists && next ? index[N] : 255;
  }
  // What tap (r, s) of window j + e passes to its element.
  __device__ __forceinline__ acc_t<T> from(int e, int r, int s) const {
    return taps[e] == static_cast<uint32_t>(3 * r + s) ? values[e] : acc_t<T>(0);
  }
};

// math    dx = Σ dy over the windows that took the element
// grid    1-D; a thread takes rows 2i and 2i + 1 of 2N neighbours of dx: `across` is w / 2N, `rows`
//         ceil(h / 2)
// bytes   fewest = actual from memory: dy and the index again for the row above, from the cache
// needs   contiguous; w = 2q, N divides q; dx aligned to 2N elements, dy and index to N
// order   windows in row-major order
// Measured at 64x128x112x112: 98 % of a copy in f32 and 96 % in bf16; element by element 14 and 7
// %.
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_backward_3x3_stride_2(const __grid_constant__ Pairs g, const T* __restrict__ dy,
                                     const uint8_t* __restrict__ index, T* __restrict__ dx) {
  using A = acc_t<T>;
  const I unit = static_cast<I>(blockIdx.x) * kPairThreads + threadIdx.x;
  if (unit >= static_cast<I>(g.units)) return;
  const RowPlace<I> place(g, unit);
  const int i = static_cast<int>(place.i), j = static_cast<int>(place.column) * N;
  const I from = (place.plane * static_cast<I>(g.p) + place.i) * static_cast<I>(g.q) + j;
  const bool next = j + N < g.q;
  const TakenRow<N, T> above(dy + from, index + from, i < g.p, next);
  const TakenRow<N, T> below(dy + from + g.q, index + from + g.q, i + 1 < g.p, next);
  A even[2 * N], odd[2 * N];
#pragma unroll
  for (int e = 0; e < N; ++e) {
    even[2 * e] = above.from(e, 1, 1);
    even[2 * e + 1] = above.from(e, 1, 2) + above.from(e + 1, 1, 0);
    odd[2 * e] = above.from(e, 2, 1) + below.from(e, 0, 1);
    odd[2 * e + 1] = above.from(e, 2, 2) + above.from(e + 1, 2, 0);
    odd[2 * e + 1] = (odd[2 * e + 1] + below.from(e, 0, 2)) + below.from(e + 1, 0, 0);
  }
  T* to = dx + ((place.plane * static_cast<I>(g.h) + 2 * place.i) * static_cast<I>(g.w) + 2 * j);
  store_pack(to, round_pack<T, 2 * N>(even));
  if (2 * i + 1 < g.h) store_pack(to + g.w, round_pack<T, 2 * N>(odd));
}

// dy and the taken taps of N channels of a window, if there is one.
template <int N, class T>
struct TakenPixel {
  Pack<T, N> values{};
  Pack<uint8_t, N> taps = repeat_pack<N>(uint8_t(255));

  __device__ __forceinline__ TakenPixel(const T* dy, const uint8_t* index, bool exists) {
    if (!exists) return;
    values = load_pack<N>(dy);
    taps = load_pack<N>(index);
  }
  // What tap (r, s) passes to its element of channel e.
  __device__ __forceinline__ acc_t<T> from(int e, int r, int s) const {
    return taps[e] == 3 * r + s ? static_cast<acc_t<T>>(values[e]) : acc_t<T>(0);
  }
};

// math    dx = Σ dy over the windows that took the element
// grid    1-D; a thread takes N channels of pixels (2i, 2j) to (2i + 1, 2j + 1) of dx: here `rows`
//         is ceil(h / 2) and `columns` ceil(w / 2)
// bytes   fewest = actual from memory: dy and the index up to three times more, from the cache
// needs   channels-last; N divides the channels; dx and dy aligned to N elements, the index to N
// order   windows in row-major order
// Measured at 8x64x112x112: 90 % of a copy in f32, 68 % in bf16; pixel by pixel 44 and 28 %.
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_backward_3x3_stride_2_pixel(const __grid_constant__ Pairs g,
                                           const T* __restrict__ dy,
                                           const uint8_t* __restrict__ index, T* __restrict__ dx) {
  using A = acc_t<T>;
  const I unit = static_cast<I>(blockIdx.x) * kPairThreads + threadIdx.x;
  if (unit >= static_cast<I>(g.units)) return;
  const I pixel = quotient_in(g.across, unit), line = quotient_in(g.columns, pixel);
  const I image = quotient_in(g.rows, line), c = static_cast<I>(g.channels);
  const I channel = (unit - pixel * static_cast<I>(g.across.divisor)) * N;
  const int j = static_cast<int>(pixel - line * static_cast<I>(g.columns.divisor));
  const int i = static_cast<int>(line - image * static_cast<I>(g.rows.divisor));
  const auto window = [&](int down, int along) {
    const I at = (image * static_cast<I>(g.p) + i + down) * static_cast<I>(g.q) + j + along;
    const I from = at * c + channel;
    return TakenPixel<N, T>(dy + from, index + from, i + down < g.p && j + along < g.q);
  };
  const auto here = window(0, 0), right = window(0, 1), below = window(1, 0), across = window(1, 1);
  A sums[2][2][N];
#pragma unroll
  for (int e = 0; e < N; ++e) {
    sums[0][0][e] = here.from(e, 1, 1);
    sums[0][1][e] = here.from(e, 1, 2) + right.from(e, 1, 0);
    sums[1][0][e] = here.from(e, 2, 1) + below.from(e, 0, 1);
    sums[1][1][e] = here.from(e, 2, 2) + right.from(e, 2, 0);
    sums[1][1][e] = (sums[1][1][e] + below.from(e, 0, 2)) + across.from(e, 0, 0);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (2 * i + r >= g.h || 2 * j + s >= g.w) continue;
      const I row = image * static_cast<I>(g.h) + 2 * i + r;
      T* to = dx + ((row * static_cast<I>(g.w) + 2 * j + s) * c + channel);
      store_pack(to, round_pack<T, N>(sums[r][s]));
    }
  }
}

bool is_strided(const Window& window) {
  return window.kernel == Pair(3) && window.stride == Pair(2) && window.padding == Pair(1) &&
         window.dilation == Pair(1);
}

// Whether the kernels for contiguous tensors take these, 16 bytes of x at a time.
template <class T>
bool takes_rows(const Image& x, const Image& y, const uint8_t* index) {
  constexpr int N = kFullPack<T> / 2;
  return pair_row_width(x, y, sizeof(T)) == kFullPack<T> &&
         reinterpret_cast<uintptr_t>(index) % N == 0;
}

template <class T>
bool forward(Cuda& cuda, const Image& x, const Image& y, uint8_t* index) {
  constexpr int N = kFullPack<T> / 2;
  if (!takes_rows<T>(x, y, index)) return false;
  Pairs g = make_pairs(x, y);
  g.across = FastDivisor(static_cast<uint32_t>(y.w / N));
  g.units = y.numel() / N;
  visit_index_type(x, [&](auto type) {
    max_pool2d_forward_3x3_stride_2<N, typename decltype(type)::type>
        <<<pair_blocks(g.units, 1), kPairThreads, 0, cuda.stream()>>>(
            g, static_cast<const T*>(x.data), static_cast<T*>(y.data), index);
  });
  return true;
}

template <class T>
bool backward(Cuda& cuda, const Image& dx, const Image& dy, const uint8_t* index,
              MemoryFormat format) {
  const bool pixels = format == MemoryFormat::channels_last;
  constexpr int kWide = kFullPack<T>, kHalf = kWide / 2;
  const bool is_aligned = reinterpret_cast<uintptr_t>(index) % kWide == 0;
  if (pixels ? !has_channel_packs<T>(dx, dy) || !is_aligned : !takes_rows<T>(dx, dy, index))
    return false;
  Pairs g = make_pairs(dx, dy);
  const int64_t height = ceil_div(dx.h, 2), width = ceil_div(dx.w, 2);
  g.rows = FastDivisor(static_cast<uint32_t>(height));
  g.columns = FastDivisor(static_cast<uint32_t>(width));
  g.across = FastDivisor(static_cast<uint32_t>((pixels ? dx.channels : dx.w) / kWide));
  g.units = dx.n * height * (pixels ? width * (dx.channels / kWide) : dx.channels * (dx.w / kWide));
  visit_index_type(dx, [&](auto type) {
    using I = typename decltype(type)::type;
    const auto kernel = pixels ? max_pool2d_backward_3x3_stride_2_pixel<kWide, I, T>
                               : max_pool2d_backward_3x3_stride_2<kHalf, I, T>;
    kernel<<<pair_blocks(g.units, 1), kPairThreads, 0, cuda.stream()>>>(
        g, static_cast<const T*>(dy.data), index, static_cast<T*>(dx.data));
  });
  return true;
}

}  // namespace

bool max_pool2d_strided_forward(Cuda& cuda, const MaxPool2dForward& args) {
  const MemoryFormat format = format_of(args.x, args.name);
  const Image x(args.x, format), y(args.y, format);
  if (!is_strided(args.window) || format == MemoryFormat::channels_last || y.numel() == 0)
    return false;
  bool launched = false;
  visit(Floating{}, args.x.dtype, [&](auto type) {
    launched = forward<typename decltype(type)::type>(cuda, x, y, args.index.as<uint8_t>());
  });
  return launched;
}

bool max_pool2d_strided_backward(Cuda& cuda, const MaxPool2dBackward& args) {
  const MemoryFormat format = format_of(args.dx, args.name);
  const Image dx(args.dx, format), dy(args.dy, format);
  if (!is_strided(args.window) || dx.numel() == 0) return false;
  bool launched = false;
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    launched = backward<typename decltype(type)::type>(cuda, dx, dy, args.index.as<const uint8_t>(),
                                                       format);
  });
  return launched;
}

}  // namespace gradus
