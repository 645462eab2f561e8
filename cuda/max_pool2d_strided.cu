// max_pool2d with windows of 3 x 3 at stride 2 and padding 1, as networks for large images have it:
// for contiguous tensors with 16 bytes of a row in a thread, for channels-last ones with 16 bytes
// of the channels of a pixel (backward: of 2 x 2).
#include "cuda/max_pool2d_pairs.h"

#include "cuda/device/round.cuh"
#include "cuda/pool_pairs.cuh"

namespace gradus {
namespace {

// The first of the largest of three neighbours, or the first NaN; `first` is the tap of the left
// one, which is `left`, or repeats the middle one, whose tap it has then.
template <class A>
__device__ __forceinline__ Winner<A> winner_of_row(A left, A middle, A right, bool has_left,
                                                   uint32_t first) {
  Winner<A> winner(left, has_left ? first : first + 1);
  winner.compete(middle, first + 1);
  winner.compete(right, first + 2);
  return winner;
}

// The winners of one row of x among N windows of it, 2 columns apart.
template <int N, class T>
struct RowWinners {
  using A = acc_t<T>;
  Winner<A> of[N];

  // `first`: tap of the first of three neighbours in the row.
  __device__ __forceinline__ RowWinners(const Pack<T, 2 * N>& values, T left, bool has_left,
                                        uint32_t first) {
    A before = static_cast<A>(left);
#pragma unroll
    for (int o = 0; o < N; ++o) {
      const A middle = static_cast<A>(values[2 * o]), right = static_cast<A>(values[2 * o + 1]);
      of[o] = winner_of_row(before, middle, right, o > 0 || has_left, first);
      before = right;
    }
  }
  // A later row, whose taps are `more` than those it was described with.
  __device__ __forceinline__ void compete(const RowWinners& row, uint32_t more) {
#pragma unroll
    for (int o = 0; o < N; ++o) of[o].compete(row.of[o].value, row.of[o].tap + more);
  }
  __device__ __forceinline__ void store(T* y, uint8_t* index, int64_t at) const {
    A best[N];
    Pack<uint8_t, N> taken;
#pragma unroll
    for (int o = 0; o < N; ++o) {
      best[o] = of[o].value;
      taken[o] = static_cast<uint8_t>(of[o].tap);
    }
    store_pack(y + at, narrow_pack<T>(best));
    if (index != nullptr) store_pack(index + at, taken);
  }
};

// math    y = max of the window, index = 3r + s of the first maximum, or of the first NaN
// grid    1-D; a thread takes rows 2i and 2i + 1 of N neighbours of y: here `across` is q / N and
//         `rows` ceil(p / 2)
// bytes   fewest = actual from memory: one row of x in four again from the cache
// needs   contiguous; w = 2q, N divides q; x aligned to 2N elements, y and index to N
// order   window elements in row-major order: what is not there repeats what is, and equals never
//         win. The winners of the middle one of five rows serve both rows of y.
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_forward_3x3_stride_2(const __grid_constant__ Pairs g, const T* __restrict__ x,
                                    T* __restrict__ y, uint8_t* __restrict__ index) {
  const I unit = static_cast<I>(blockIdx.x) * kPairThreads + threadIdx.x;
  if (unit >= static_cast<I>(g.units)) return;
  const RowPlace<I> place(g, unit);
  const int i = 2 * static_cast<int>(place.i), column = static_cast<int>(place.column) * N;
  const bool has_left = column > 0, has_top = i > 0;
  const T* plane = x + (place.plane * static_cast<I>(g.h) * static_cast<I>(g.w) + 2 * column);
  Pack<T, 2 * N> rows[5];
  T lefts[5];
#pragma unroll
  for (int r = 0; r < 5; ++r) {
    const T* from = plane + static_cast<I>(min(max(2 * i - 1 + r, 0), g.h - 1)) * g.w;
    rows[r] = load_pack<2 * N>(from);
    lefts[r] = from[has_left ? -1 : 0];
  }
  const auto row = [&](int r, uint32_t first) {
    return RowWinners<N, T>(rows[r], lefts[r], has_left, first);
  };
  RowWinners<N, T> upper = row(0, has_top ? 0 : 3);
  upper.compete(row(1, 3), 0);
  RowWinners<N, T> lower = row(2, 0);
  upper.compete(lower, 6);
  lower.compete(row(3, 3), 0);
  lower.compete(row(4, 6), 0);
  // A lower row that is not there goes where the upper one comes after it: a branch would hold back
  // the loads of its rows.
  const I at = ((place.plane * static_cast<I>(g.p) + i) * static_cast<I>(g.q)) + column;
  lower.store(y, index, at + (i + 1 < g.p ? g.q : 0));
  upper.store(y, index, at);
}

// math    as above
// grid    1-D; a thread takes N channels of a pixel of y: here `across` is c / N
// bytes   fewest = actual from memory: x 1.25 times more from the caches
// needs   channels-last; N divides the channels; x and y aligned to N elements, the index to N
// order   as above
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_forward_3x3_stride_2_pixel(const __grid_constant__ Pairs g, const T* __restrict__ x,
                                          T* __restrict__ y, uint8_t* __restrict__ index) {
  using A = acc_t<T>;
  const I unit = static_cast<I>(blockIdx.x) * kPairThreads + threadIdx.x;
  if (unit >= static_cast<I>(g.units)) return;
  const PixelPlace<I> place(g, unit);
  const int i = static_cast<int>(place.i), j = static_cast<int>(place.j);
  const bool has_left = j > 0, has_top = i > 0;
  const I c = static_cast<I>(g.channels);
  Pack<T, N> taps[9];
#pragma unroll
  for (int tap = 0; tap < 9; ++tap) {
    const int h = min(max(2 * i - 1 + tap / 3, 0), g.h - 1);
    const int w = min(max(2 * j - 1 + tap % 3, 0), g.w - 1);
    const I row = place.image * static_cast<I>(g.h) + h;
    taps[tap] = load_pack<N>(x + ((row * static_cast<I>(g.w) + w) * c + place.channel * N));
  }
  A best[N];
  Pack<uint8_t, N> taken;
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const auto row = [&](int r, uint32_t first) {
      return winner_of_row(static_cast<A>(taps[3 * r][e]), static_cast<A>(taps[3 * r + 1][e]),
                           static_cast<A>(taps[3 * r + 2][e]), has_left, first);
    };
    Winner<A> winner = row(0, has_top ? 0 : 3);
#pragma unroll
    for (int r = 1; r < 3; ++r) {
      const Winner<A> next = row(r, 3 * static_cast<uint32_t>(r));
      winner.compete(next.value, next.tap);
    }
    best[e] = winner.value;
    taken[e] = static_cast<uint8_t>(winner.tap);
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
bool forward(Cuda& cuda, const Image& x, const Image& y, uint8_t* index, MemoryFormat format) {
  const bool pixels = format == MemoryFormat::channels_last;
  constexpr int kWide = kFullPack<T>, kHalf = kWide / 2;
  const bool is_aligned = reinterpret_cast<uintptr_t>(index) % kWide == 0;
  if (pixels ? !has_channel_packs<T>(x, y) || !is_aligned : !takes_rows<T>(x, y, index))
    return false;
  Pairs g = make_pairs(x, y);
  if (!pixels) g.rows = FastDivisor(static_cast<uint32_t>(ceil_div(y.h, 2)));
  g.across = FastDivisor(static_cast<uint32_t>((pixels ? y.channels : x.w) / kWide));
  g.units = pixels ? y.numel() / kWide : y.n * y.channels * ceil_div(y.h, 2) * (x.w / kWide);
  visit_index_type(x, [&](auto type) {
    using I = typename decltype(type)::type;
    const auto kernel = pixels ? max_pool2d_forward_3x3_stride_2_pixel<kWide, I, T>
                               : max_pool2d_forward_3x3_stride_2<kHalf, I, T>;
    kernel<<<pair_blocks(g.units, 1), kPairThreads, 0, cuda.stream()>>>(
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
  if (!is_strided(args.window) || y.numel() == 0) return false;
  bool launched = false;
  visit(Floating{}, args.x.dtype, [&](auto type) {
    launched = forward<typename decltype(type)::type>(cuda, x, y, args.index.as<uint8_t>(), format);
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
