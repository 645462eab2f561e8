// max_pool2d with windows of 3 x 3 at stride 2 and padding 1 or 0, as networks for large images
// have it: for contiguous tensors with 16 bytes of a row in a thread where rows allow it, else one
// by one; for channels-last ones with 16 bytes of the channels of a pixel.
#include "cuda/max_pool2d_strided.cuh"

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

// Windows that a thread takes from a row of which one access brings W elements.
template <int W>
inline constexpr int kWindows = W > 1 ? W / 2 : 1;

// What windows j, ..., j + N - 1 cover of one row of x: 2N + 1 neighbours. What is not there
// repeats what is.
template <int W, int Padding, class T>
struct CoveredRow {
  static constexpr int N = kWindows<W>;
  Pack<T, 2 * N> pack;  // from column 2j
  T single;             // before it where there is padding, else behind it

  __device__ __forceinline__ void load(const T* row, int j, int w) {
    const int column = 2 * j;
    single = row[Padding == 1 ? max(column - 1, 0) : min(column + 2 * N, w - 1)];
    if constexpr (W > 1) {
      pack = load_pack<W>(row + column);
    } else {
      pack[0] = row[min(column, w - 1)];
      pack[1] = row[min(column + 1, w - 1)];
    }
  }
  __device__ __forceinline__ acc_t<T> operator[](int k) const {
    const int at = k - Padding;
    return static_cast<acc_t<T>>(at < 0 || at == 2 * N ? single : pack[at]);
  }
};

// The winners of one row of x among N windows of it, 2 columns apart.
template <int N, class T>
struct RowWinners {
  using A = acc_t<T>;
  Winner<A> of[N];

  // `first`: tap of the first of three neighbours in the row.
  template <class Row>
  __device__ __forceinline__ RowWinners(const Row& row, bool has_left, uint32_t first) {
#pragma unroll
    for (int o = 0; o < N; ++o) {
      of[o] = winner_of_row(row[2 * o], row[2 * o + 1], row[2 * o + 2], o > 0 || has_left, first);
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
// needs   contiguous; where W > 1: w = 2q, N divides q; x aligned to W elements, y and index to N
// order   window elements in row-major order: what is not there repeats what is, and equals never
//         win. The winners of the middle one of five rows serve both rows of y.
template <int W, int Padding, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_forward_3x3_stride_2(const __grid_constant__ Strided g, const T* __restrict__ x,
                                    T* __restrict__ y, uint8_t* __restrict__ index) {
  constexpr int N = kWindows<W>;
  const I unit = static_cast<I>(blockIdx.x) * kPairThreads + threadIdx.x;
  if (unit >= static_cast<I>(g.units)) return;
  const RowPlace<I> place(g, unit);
  const int i = 2 * static_cast<int>(place.i), j = static_cast<int>(place.column) * N;
  const bool has_left = Padding == 0 || j > 0, has_top = Padding == 0 || i > 0;
  const T* plane = x + place.plane * static_cast<I>(g.h) * static_cast<I>(g.w);
  CoveredRow<W, Padding, T> rows[5];
#pragma unroll
  for (int r = 0; r < 5; ++r) {
    const int h = min(max(2 * i - Padding + r, 0), g.h - 1);
    rows[r].load(plane + static_cast<I>(h) * static_cast<I>(g.w), j, g.w);
  }
  const auto row = [&](int r, uint32_t first) {
    return RowWinners<N, T>(rows[r], has_left, first);
  };
  RowWinners<N, T> upper = row(0, has_top ? 0 : 3);
  upper.compete(row(1, 3), 0);
  RowWinners<N, T> lower = row(2, 0);
  upper.compete(lower, 6);
  lower.compete(row(3, 3), 0);
  lower.compete(row(4, 6), 0);
  // A lower row that is not there goes where the upper one comes after it: a branch would hold back
  // the loads of its rows.
  const I at = ((place.plane * static_cast<I>(g.p) + i) * static_cast<I>(g.q)) + j;
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
    max_pool2d_forward_3x3_stride_2_pixel(const __grid_constant__ Strided g,
                                          const T* __restrict__ x, T* __restrict__ y,
                                          uint8_t* __restrict__ index) {
  using A = acc_t<T>;
  const I unit = static_cast<I>(blockIdx.x) * kPairThreads + threadIdx.x;
  if (unit >= static_cast<I>(g.units)) return;
  const PixelPlace<I> place(g, unit);
  const int i = static_cast<int>(place.i), j = static_cast<int>(place.j);
  const int top = 2 * i - g.padding, left = 2 * j - g.padding;
  const bool has_left = left >= 0, has_top = top >= 0;
  const I c = static_cast<I>(g.channels);
  Pack<T, N> taps[9];
#pragma unroll
  for (int tap = 0; tap < 9; ++tap) {
    const int h = min(max(top + tap / 3, 0), g.h - 1);
    const int w = min(max(left + tap % 3, 0), g.w - 1);
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

// Without packs indices have 32 bits, and channels-last tensors go another way.
template <class T>
bool forward(Cuda& cuda, int64_t padding, const Image& x, const Image& y, uint8_t* index,
             bool pixels) {
  constexpr int kWide = kFullPack<T>;
  const bool packs = has_packs<T>(x, y, index, pixels);
  if (!packs && (pixels || x.numel() > INT32_MAX)) return false;
  Strided g{make_pairs(x, y)};
  g.padding = static_cast<int>(padding);
  if (pixels) {
    g.across = FastDivisor(static_cast<uint32_t>(y.channels / kWide));
    g.units = y.numel() / kWide;
  } else {
    const int64_t across = y.w / (packs ? kWindows<kWide> : 1), rows = ceil_div(y.h, 2);
    g.across = FastDivisor(static_cast<uint32_t>(across));
    g.rows = FastDivisor(static_cast<uint32_t>(rows));
    g.units = y.n * y.channels * rows * across;
  }
  visit_index_type(x, [&](auto type) {
    using I = typename decltype(type)::type;
    const bool padded = padding == 1;
    auto kernel = padded ? max_pool2d_forward_3x3_stride_2<kWide, 1, I, T>
                         : max_pool2d_forward_3x3_stride_2<kWide, 0, I, T>;
    if (pixels) {
      kernel = max_pool2d_forward_3x3_stride_2_pixel<kWide, I, T>;
    } else if (!packs) {
      kernel = padded ? max_pool2d_forward_3x3_stride_2<1, 1, uint32_t, T>
                      : max_pool2d_forward_3x3_stride_2<1, 0, uint32_t, T>;
    }
    kernel<<<pair_blocks(g.units, 1), kPairThreads, 0, cuda.stream()>>>(
        g, static_cast<const T*>(x.data), static_cast<T*>(y.data), index);
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
    launched = forward<typename decltype(type)::type>(cuda, args.window.padding[0], x, y,
                                                      args.index.as<uint8_t>(),
                                                      format == MemoryFormat::channels_last);
  });
  return launched;
}

}  // namespace gradus
