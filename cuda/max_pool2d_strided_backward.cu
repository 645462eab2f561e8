// The gradient of max_pool2d with windows of 3 x 3 at stride 2 and padding 1 or 0: for contiguous
// tensors with 16 bytes of two rows in a thread where rows allow it, else one by one; for
// channels-last ones with 16 bytes of the channels of 2 x 2 pixels.
#include "cuda/device/round.cuh"
#include "cuda/max_pool2d_strided.cuh"

namespace gradus {
namespace {

// dy and the taken taps of N + 1 neighbours of one row of windows: j to j + N where there is
// padding, else j - 1 to j + N - 1. Where there is no window, its tap is none.
template <int N, int Padding, class T>
struct TakenRow {
  acc_t<T> values[N + 1];
  uint32_t taps[N + 1];

  // Of window j; `all`: the one that the N from there lack is there, too.
  __device__ __forceinline__ TakenRow(const T* dy, const uint8_t* index, bool exists, bool all) {
    constexpr int kFirst = 1 - Padding, kSingle = Padding == 1 ? N : 0;
    Pack<T, N> some{};
    Pack<uint8_t, N> some_taps = repeat_pack<N>(uint8_t(255));
    if (exists) {
      some = load_pack<N>(dy);
      some_taps = load_pack<N>(index);
    }
    const T single = exists && all ? dy[kSingle - kFirst] : T(0.0f);
    values[kSingle] = static_cast<acc_t<T>>(single);
    taps[kSingle] = exists && all ? index[kSingle - kFirst] : 255;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      values[kFirst + e] = static_cast<acc_t<T>>(some[e]);
      taps[kFirst + e] = some_taps[e];
    }
  }
  // What tap (r, s) of the e-th passes to its element.
  __device__ __forceinline__ acc_t<T> from(int e, int r, int s) const {
    return taps[e] == static_cast<uint32_t>(3 * r + s) ? values[e] : acc_t<T>(0);
  }
};

// Whether `at` is one of 0, ..., extent - 1.
__device__ __forceinline__ bool is_within(int at, int extent) {
  return static_cast<unsigned>(at) < static_cast<unsigned>(extent);
}

// A row or column of x is the middle of one window or lies in two, the ones and the others by
// turns. Backward threads take one of each, so that these three windows are two neighbours, the
// i-th and the next: rows 2i and 2i + 1 where there is padding, 2i + 1 and 2i + 2, from i = -1,
// where there is none.

// math    dx = Σ dy over the windows that took the element
// grid    1-D; a thread takes two rows of 2N neighbours of dx: `across` is w / 2N, `rows` counts
//         pairs of rows
// bytes   fewest = actual from memory: dy and the index again for the row above, from the cache
// needs   contiguous; w = 2q, N divides q; dx aligned to 2N elements, dy and index to N
// order   windows in row-major order
// Measured at 64x128x112x112, padding 1: 98 % of a copy in f32 and 96 % in bf16; element by element
// 14 and 7 %.
template <int N, int Padding, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_backward_3x3_stride_2(const __grid_constant__ Strided g, const T* __restrict__ dy,
                                     const uint8_t* __restrict__ index, T* __restrict__ dx) {
  using A = acc_t<T>;
  constexpr int kShift = 1 - Padding;
  const I unit = static_cast<I>(blockIdx.x) * kPairThreads + threadIdx.x;
  if (unit >= static_cast<I>(g.units)) return;
  const RowPlace<I> place(g, unit);
  const int i = static_cast<int>(place.i) - kShift, j = static_cast<int>(place.column) * N;
  const I from = (place.plane * static_cast<I>(g.p) + place.i - kShift) * static_cast<I>(g.q) + j;
  const bool all = Padding == 1 ? j + N < g.q : j > 0;
  const TakenRow<N, Padding, T> above(dy + from, index + from, is_within(i, g.p), all);
  const I next = from + static_cast<I>(g.q);
  const TakenRow<N, Padding, T> below(dy + next, index + next, i + 1 < g.p, all);
  A upper[2 * N], lower[2 * N];
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const int of_one = 2 * e + kShift, of_two = 2 * e + Padding;  // columns
    upper[of_one] = above.from(e + kShift, 1, 1);
    upper[of_two] = above.from(e, 1, 2) + above.from(e + 1, 1, 0);
    lower[of_one] = above.from(e + kShift, 2, 1) + below.from(e + kShift, 0, 1);
    lower[of_two] = above.from(e, 2, 2) + above.from(e + 1, 2, 0);
    lower[of_two] = (lower[of_two] + below.from(e, 0, 2)) + below.from(e + 1, 0, 0);
  }
  // Of row 2·place.i: the upper one with padding, else the lower.
  T* to = dx + ((place.plane * static_cast<I>(g.h) + 2 * place.i) * static_cast<I>(g.w) + 2 * j);
  if (Padding == 1 || place.i > 0) store_pack(to - kShift * g.w, round_pack<T, 2 * N>(upper));
  if (2 * static_cast<int>(place.i) + Padding < g.h)
    store_pack(to + Padding * g.w, round_pack<T, 2 * N>(lower));
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
// grid    1-D; a thread takes N channels of 2 x 2 pixels of dx: here `rows` and `columns` count
//         pairs
// bytes   fewest = actual from memory: dy and the index up to three times more, from the cache
// needs   channels-last; N divides the channels; dx and dy aligned to N elements, the index to N
// order   windows in row-major order
// Measured at 8x64x112x112, padding 1: 90 % of a copy in f32, 68 % in bf16; pixel by pixel 44 and
// 28 %.
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_backward_3x3_stride_2_pixel(const __grid_constant__ Strided g,
                                           const T* __restrict__ dy,
                                           const uint8_t* __restrict__ index, T* __restrict__ dx) {
  using A = acc_t<T>;
  const I unit = static_cast<I>(blockIdx.x) * kPairThreads + threadIdx.x;
  if (unit >= static_cast<I>(g.units)) return;
  const I pixel = quotient_in(g.across, unit), line = quotient_in(g.columns, pixel);
  const I image = quotient_in(g.rows, line), c = static_cast<I>(g.channels);
  const I channel = (unit - pixel * static_cast<I>(g.across.divisor)) * N;
  const int shift = 1 - g.padding;
  const int j = static_cast<int>(pixel - line * static_cast<I>(g.columns.divisor)) - shift;
  const int i = static_cast<int>(line - image * static_cast<I>(g.rows.divisor)) - shift;
  const auto window = [&](int down, int along) {
    const I at = (image * static_cast<I>(g.p) + (i + down)) * static_cast<I>(g.q) + (j + along);
    const I from = at * c + channel;
    const bool exists = is_within(i + down, g.p) && is_within(j + along, g.q);
    return TakenPixel<N, T>(dy + from, index + from, exists);
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
      const int h = 2 * i + shift + r, w = 2 * j + shift + s;
      if (!is_within(h, g.h) || !is_within(w, g.w)) continue;
      const I at = (image * static_cast<I>(g.h) + h) * static_cast<I>(g.w) + w;
      store_pack(dx + (at * c + channel), round_pack<T, N>(sums[r][s]));
    }
  }
}

// Without packs indices have 32 bits, and a contiguous tensor is one of images of one channel.
template <class T>
bool backward(Cuda& cuda, int64_t padding, const Image& dx, const Image& dy, const uint8_t* index,
              bool pixels) {
  constexpr int kWide = kFullPack<T>;
  const bool packs = has_packs<T>(dx, dy, index, pixels), rows = packs && !pixels;
  if (!packs && dx.numel() > INT32_MAX) return false;
  Strided g{make_pairs(dx, dy)};
  g.padding = static_cast<int>(padding);
  if (!pixels) g.channels = 1;
  const int width = packs ? kWide : 1;
  const int64_t down = ceil_div(dx.h + 1 - padding, 2), along = ceil_div(dx.w + 1 - padding, 2);
  g.rows = FastDivisor(static_cast<uint32_t>(down));
  g.columns = FastDivisor(static_cast<uint32_t>(along));
  g.across = FastDivisor(static_cast<uint32_t>((rows ? dx.w : g.channels) / width));
  g.units = dx.n * dx.channels * down * (rows ? dx.w : along) / width;
  visit_index_type(dx, [&](auto type) {
    using I = typename decltype(type)::type;
    auto kernel = padding == 1 ? max_pool2d_backward_3x3_stride_2<kWide / 2, 1, I, T>
                               : max_pool2d_backward_3x3_stride_2<kWide / 2, 0, I, T>;
    if (!packs) {
      kernel = max_pool2d_backward_3x3_stride_2_pixel<1, uint32_t, T>;
    } else if (pixels) {
      kernel = max_pool2d_backward_3x3_stride_2_pixel<kWide, I, T>;
    }
    kernel<<<pair_blocks(g.units, 1), kPairThreads, 0, cuda.stream()>>>(
        g, static_cast<const T*>(dy.data), index, static_cast<T*>(dx.data));
  });
  return true;
}

}  // namespace

bool max_pool2d_strided_backward(Cuda& cuda, const MaxPool2dBackward& args) {
  const MemoryFormat format = format_of(args.dx, args.name);
  const Image dx(args.dx, format), dy(args.dy, format);
  if (!is_strided(args.window) || dx.numel() == 0) return false;
  bool launched = false;
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    launched = backward<typename decltype(type)::type>(cuda, args.window.padding[0], dx, dy,
                                                       args.index.as<const uint8_t>(),
                                                       format == MemoryFormat::channels_last);
  });
  return launched;
}

}  // namespace gradus
