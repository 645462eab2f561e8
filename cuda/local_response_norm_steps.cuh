// Kernels of local response normalization on CUDA. Letters as in core/ops/local_response_norm.h;
// windows are odd here: kHalf = (W - 1)/2 channels on either side.
//
// denom^-0.75 = r·sqrt(r) and denom^-1 = r² with r = denom^-0.5, in f32 from the hardware's
// approximations: at most 4 ulp off. Other exponents are pow()'s, in the kernels for any size.
#pragma once

#include <cfloat>
#include <limits>

#include "core/dtype.h"
#include "core/ops/local_response_norm.h"
#include "cuda/device/quotient.cuh"
#include "cuda/device/raw.cuh"
#include "cuda/device/round.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/local_response_norm_plan.h"

namespace gradus {

template <class A>
struct ResponseTerms {
  A k, scale, beta, second;  // scale = alpha/size, second = 2·beta·alpha/size
  A at_zero;                 // denom^-beta where denom counts as 0
  ResponsePower power;

  template <class Args>
  explicit ResponseTerms(const Args& args)
      : k(static_cast<A>(args.k)),
        scale(static_cast<A>(args.alpha / static_cast<double>(args.size))),
        beta(static_cast<A>(args.beta)),
        second(static_cast<A>(2 * args.beta * args.alpha / static_cast<double>(args.size))),
        at_zero(args.beta == 0 ? A(1) : A(0)),
        power(response_power(args.beta)) {}

  // What nearly everybody takes: beta 0.75, and a k that keeps denom normal.
  bool usual() const {
    return power == ResponsePower::three_quarters && k >= std::numeric_limits<A>::min();
  }
};

// Of normal numbers; subnormal ones may be flushed.
__device__ __forceinline__ float fast_rsqrt(float v) {
  asm("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(v));
  return v;
}
__device__ __forceinline__ float fast_sqrt(float v) {
  asm("sqrt.approx.ftz.f32 %0, %0;" : "+f"(v));
  return v;
}
__device__ __forceinline__ double fast_rsqrt(double v) { return rsqrt(v); }
__device__ __forceinline__ double fast_sqrt(double v) { return sqrt(v); }

__device__ __forceinline__ float smallest_normal(float) { return FLT_MIN; }
__device__ __forceinline__ double smallest_normal(double) { return DBL_MIN; }

// From the sums of squares of N windows to denom^-beta and 1/denom, for the exponents that square
// roots reach. kUsual: the terms are usual().
template <bool kUsual = false, class A, int N>
__device__ __forceinline__ void response_factors(const ResponseTerms<A>& terms,
                                                 const A (&squares)[N], A (&factor)[N],
                                                 A (&inverse)[N]) {
  A r[N];
#pragma unroll
  for (int e = 0; e < N; ++e) r[e] = terms.k + terms.scale * squares[e];
  if (!kUsual && terms.k < smallest_normal(A())) {
#pragma unroll
    for (int e = 0; e < N; ++e) r[e] = r[e] < smallest_normal(A()) ? A(INFINITY) : r[e];
  }
#pragma unroll
  for (int e = 0; e < N; ++e) {
    r[e] = fast_rsqrt(r[e]);  // of denom; 0 where that counts as 0
    inverse[e] = r[e] * r[e];
  }
  if (kUsual || terms.power == ResponsePower::three_quarters) {
#pragma unroll
    for (int e = 0; e < N; ++e) factor[e] = r[e] * fast_sqrt(r[e]);
  } else {
    const bool half = terms.power == ResponsePower::half;
#pragma unroll
    for (int e = 0; e < N; ++e) factor[e] = half ? r[e] : inverse[e];
  }
}

template <class A>
__device__ __forceinline__ A square(A v) {
  return v * v;
}

// Channels of a thread's results.
inline constexpr int kResponseChannels = 4;

// A thread's pixels in channel 0, and the first channel of its results.
struct ResponsePlace {
  int64_t at = 0;
  int channel = 0;
  bool used = false;

  __device__ __forceinline__ ResponsePlace(const ResponseTiles& plan, int c, int64_t s, int width,
                                           int channels) {
    const uint32_t tile = plan.channel_tiles.quotient(blockIdx.x);
    const uint32_t lane = threadIdx.x % ResponseTiles::kLanes;
    const int64_t pack = int64_t{tile} * ResponseTiles::kLanes + lane;
    const auto group = static_cast<int>(blockIdx.x - tile * plan.channel_tiles.divisor);
    channel =
        (group * plan.groups + static_cast<int>(threadIdx.x / ResponseTiles::kLanes)) * channels;
    used = pack < plan.packs && channel < c;
    const int64_t row = quotient(plan.packs_per_row, pack);
    at = row * c * s + (pack - row * plan.packs_per_row.divisor) * width;
  }
};

// The packs of channels first, first + 1, ... of one place; zeros where there is no such channel.
// All threads of a warp have the same `first`.
template <int Count, int N, class T>
__device__ __forceinline__ void load_channels(const T* x, int first, int c, int64_t s,
                                              Raw<T, N> (&packs)[Count]) {
  const T* from = x + first * s;
  if (first >= 0 && first + Count <= c) {
#pragma unroll
    for (int i = 0; i < Count; ++i, from += s) packs[i].load(from);
    return;
  }
#pragma unroll
  for (int i = 0; i < Count; ++i, from += s) {
    packs[i] = Raw<T, N>{};
    if (static_cast<unsigned>(first + i) < static_cast<unsigned>(c)) packs[i].load(from);
  }
}

// sums[i] = Σ values[i + m]², m < W. Two neighbouring windows share all but one square of each.
template <int W, int Count, class A>
__device__ __forceinline__ void window_squares(const A (&values)[Count + W - 1], A (&sums)[Count]) {
  static_assert(Count % 2 == 0);
  A squares[Count + W - 1];
#pragma unroll
  for (int i = 0; i < Count + W - 1; ++i) squares[i] = values[i] * values[i];
#pragma unroll
  for (int i = 0; i < Count; i += 2) {
    A shared = squares[i + 1];
#pragma unroll
    for (int m = 2; m < W; ++m) shared += squares[i + m];
    sums[i] = shared + squares[i];
    sums[i + 1] = shared + squares[i + W];
  }
}

// math    y = x·denom^-beta, denom = k + alpha/size·Σ x²
// grid    blocks (pixels, channels), 32 threads along the pixels; a thread gives K channels of N
//         neighbouring pixels and reads the W - 1 channels around them, which the block's other
//         threads and the next block read too: from L1 and L2
// bytes   2Eb
// needs   s and the pointers to allow packs of N; odd windows; kUsual: terms.usual()
// order   what a window shares with its neighbour from the lowest channel up, then its own square
template <class T, int N, int W, bool kUsual>
__global__ void __launch_bounds__(ResponseTiles::kThreads, sizeof(T) == 2 && W < 7 ? 4 : 3)
    local_response_norm_forward_thread_per_pixels(const T* x, T* __restrict__ y, int c, int64_t s,
                                                  const ResponseTiles plan,
                                                  const ResponseTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  constexpr int K = kResponseChannels, kHalf = (W - 1) / 2, kReads = K + W - 1;
  constexpr int kPair = N % 2 == 0 ? 2 : 1;  // 16-bit results are rounded two by two
  const ResponsePlace place(plan, c, s, N, K);
  wait_for_previous_kernel();
  start_next_kernel();
  if (!place.used) return;
  Raw<T, N> in[kReads], out[K];
  load_channels(x + place.at, place.channel - kHalf, c, s, in);
  Raw<T, kPair> pairs[K][N / kPair];
#pragma unroll
  for (int e = 0; e < N; e += kPair) {
    A results[K][kPair];
#pragma unroll
    for (int p = 0; p < kPair; ++p) {
      A values[kReads], squares[K], factor[K], unused[K];
#pragma unroll
      for (int i = 0; i < kReads; ++i) values[i] = in[i][e + p];
      window_squares<W>(values, squares);
      response_factors<kUsual>(terms, squares, factor, unused);
#pragma unroll
      for (int k = 0; k < K; ++k) results[k][p] = values[k + kHalf] * factor[k];
    }
#pragma unroll
    for (int k = 0; k < K; ++k) pairs[k][e / kPair].round(results[k]);
  }
  T* to = y + place.at + place.channel * s;
#pragma unroll
  for (int k = 0; k < K; ++k, to += s) {
    memcpy(&out[k].word, pairs[k], sizeof pairs[k]);
    if (k < c - place.channel) out[k].store(to);
  }
}

// Of the backward pass: threads take many channels, so that few powers are computed twice, the more
// in 16 bits, whose floor is half of f32's for the same arithmetic.
template <class T>
inline constexpr int kBackwardChannels = sizeof(T) == 8   ? 4
                                         : sizeof(T) == 4 ? 8
                                                          : 16;
template <class T>
inline constexpr int kBackwardThreads = sizeof(T) == 8 ? ResponseTiles::kThreads : 128;
// Blocks that a multiprocessor has registers for, at least.
template <class T, int W, bool kUsual>
constexpr int backward_blocks() {
  if (sizeof(T) == 8) return W == 7 ? 1 : 2;
  return !kUsual ? 3 : W < 7 ? 7 : 4;
}

// sums[e] = Σ pairs[j][e], j < Count.
template <int Count, int N, class A>
__device__ __forceinline__ void add_pairs(const A (*pairs)[N], A (&sums)[N]) {
#pragma unroll
  for (int e = 0; e < N; ++e) {
    sums[e] = pairs[0][e];
#pragma unroll
    for (int j = 1; j < Count; ++j) sums[e] += pairs[j][e];
  }
}

// math    dx = direct - second·x·Σ t over the mirrored window, direct = dy·denom^-beta,
//         t = direct·x/denom; t of the W - 1 channels around a thread's K is computed here too
// grid    as forward
// bytes   3Eb
// needs   as forward; kUsual: terms.usual()
// order   channels 2j + 1 and 2j + 2 are added first, counted from the first whose square, or t, a
//         thread has; a window is its pairs from the lowest up, then the channel at the end that
//         has none
// Channel by channel, so that all loads are under way at once and yet registers suffice: each
// result leaves before the next is computed. Pairs are shared by all windows that hold them.
template <class T, int N, int W, bool kUsual>
__global__ void __launch_bounds__(kBackwardThreads<T>, backward_blocks<T, W, kUsual>())
    local_response_norm_backward_thread_per_pixels(const T* x, const T* dy, T* __restrict__ dx,
                                                   int c, int64_t s, const ResponseTiles plan,
                                                   const ResponseTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  constexpr int K = kBackwardChannels<T>, kHalf = (W - 1) / 2;
  constexpr int kTerms = K + W - 1, kReads = K + 2 * (W - 1);
  static_assert(K % 2 == 0);
  const ResponsePlace place(plan, c, s, N, K);
  wait_for_previous_kernel();
  start_next_kernel();
  if (!place.used) return;
  Raw<T, N> x_in[kReads], dy_in[kTerms];
  load_channels(x + place.at, place.channel - 2 * kHalf, c, s, x_in);
  load_channels(dy + place.at, place.channel - kHalf, c, s, dy_in);
  T* to = dx + place.at + place.channel * s;
  A direct[kTerms][N], ratio[kTerms][N];  // ratio = x/denom, so t = direct·ratio
  A square_pairs[kReads / 2 - 1][N], term_pairs[kTerms / 2 - 1][N];
  const auto add_squares = [&](int j) {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const A low = x_in[2 * j + 1][e];
      square_pairs[j][e] = fma(low, low, square(static_cast<A>(x_in[2 * j + 2][e])));
    }
  };
#pragma unroll
  for (int j = 0; j < kHalf - 1; ++j) add_squares(j);
#pragma unroll
  for (int i = 0; i < kTerms; ++i) {  // of channel place.channel - kHalf + i
    const bool even = i % 2 == 0;
    if (even) add_squares(i / 2 + kHalf - 1);
    A squares[N];
    add_pairs<kHalf>(square_pairs + i / 2, squares);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const A end = x_in[even ? i : i + W - 1][e];
      squares[e] = fma(end, end, squares[e]);
    }
    response_factors<kUsual>(terms, squares, direct[i], ratio[i]);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      direct[i][e] *= static_cast<A>(dy_in[i][e]);
      ratio[i][e] *= static_cast<A>(x_in[i + kHalf][e]);
      if (even && i > 0) {
        term_pairs[i / 2 - 1][e] =
            fma(direct[i - 1][e], ratio[i - 1][e], direct[i][e] * ratio[i][e]);
      }
    }
    const int k = i - (W - 1);  // all terms of this result are known now
    if (k < 0) continue;
    const int end = even ? k : i;
    A sums[N], result[N];
    add_pairs<kHalf>(term_pairs + k / 2, sums);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const A sum = fma(direct[end][e], ratio[end][e], sums[e]);
      result[e] =
          direct[k + kHalf][e] - terms.second * (static_cast<A>(x_in[k + 2 * kHalf][e]) * sum);
    }
    if (k < c - place.channel) round_raw<T, N>(result).store(to);
    to += s;
  }
}

// Channels-last: a thread holds N neighbouring channels of a row and reads the packs on either side
// that its windows reach, which other threads of the warp have just read too.
struct ResponseRows {
  int64_t packs;  // of all rows
  FastDivisor packs_per_row;
};

// The values of packs first - Sides ... first + Sides of a row, as A; zeros beyond its ends.
template <int Sides, class T, int N>
__device__ __forceinline__ void load_neighbours(const T* x, int64_t pack, int64_t in_row,
                                                int64_t per_row,
                                                acc_t<T> (&values)[(2 * Sides + 1) * N]) {
#pragma unroll
  for (int i = 0; i < 2 * Sides + 1; ++i) {
    const int64_t position = in_row + i - Sides;
    Pack<T, N> in{};
    if (position >= 0 && position < per_row) in = load_pack<N>(x + (pack + i - Sides) * N);
#pragma unroll
    for (int e = 0; e < N; ++e) values[i * N + e] = static_cast<acc_t<T>>(in[e]);
  }
}

// math    as above
// grid    one thread per N channels of a pixel
// bytes   2Eb; neighbouring packs from L1
// needs   c and the pointers to allow packs of N; odd windows
// order   what a window shares with its neighbour from the lowest channel up, then its own square
template <class T, int N, int W>
__global__ void __launch_bounds__(256)
    local_response_norm_forward_thread_per_channels(const T* __restrict__ x, T* __restrict__ y,
                                                    ResponseRows plan,
                                                    ResponseTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  constexpr int kHalf = (W - 1) / 2, kSides = (kHalf + N - 1) / N;
  const int64_t pack = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (pack >= plan.packs) return;
  const int64_t per_row = plan.packs_per_row.divisor;
  const int64_t in_row = pack - quotient(plan.packs_per_row, pack) * per_row;
  A values[(2 * kSides + 1) * N];
  load_neighbours<kSides, T, N>(x, pack, in_row, per_row, values);
  A reach[N + 2 * kHalf], squares[N], factor[N], unused[N];
#pragma unroll
  for (int i = 0; i < N + 2 * kHalf; ++i) reach[i] = values[kSides * N - kHalf + i];
  window_squares<W>(reach, squares);
  response_factors(terms, squares, factor, unused);
  A out[N];
#pragma unroll
  for (int e = 0; e < N; ++e) out[e] = values[kSides * N + e] * factor[e];
  store_pack(y + pack * N, round_pack<T, N>(out));
}

// math    as above; t of the neighbouring channels is computed here too
// grid    one thread per N channels of a pixel
// bytes   3Eb; neighbouring packs from L1
// needs   as forward
// order   as forward
template <class T, int N, int W>
__global__ void __launch_bounds__(256)
    local_response_norm_backward_thread_per_channels(const T* __restrict__ x,
                                                     const T* __restrict__ dy, T* __restrict__ dx,
                                                     ResponseRows plan,
                                                     ResponseTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  constexpr int kHalf = (W - 1) / 2, kReach = N + 2 * kHalf;  // channels whose t is needed
  constexpr int kSides = (2 * kHalf + N - 1) / N, kDySides = (kHalf + N - 1) / N;
  const int64_t pack = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (pack >= plan.packs) return;
  const int64_t per_row = plan.packs_per_row.divisor;
  const int64_t in_row = pack - quotient(plan.packs_per_row, pack) * per_row;
  A values[(2 * kSides + 1) * N], upstream[(2 * kDySides + 1) * N];
  load_neighbours<kSides, T, N>(x, pack, in_row, per_row, values);
  load_neighbours<kDySides, T, N>(dy, pack, in_row, per_row, upstream);
  A reach[kReach + 2 * kHalf], squares[kReach], factor[kReach], inverse[kReach], t[kReach];
#pragma unroll
  for (int i = 0; i < kReach + 2 * kHalf; ++i) reach[i] = values[kSides * N - 2 * kHalf + i];
  window_squares<W>(reach, squares);
  response_factors(terms, squares, factor, inverse);
#pragma unroll
  for (int i = 0; i < kReach; ++i) {
    factor[i] *= upstream[kDySides * N - kHalf + i];  // direct
    t[i] = factor[i] * (values[kSides * N - kHalf + i] * inverse[i]);
  }
  A out[N];
#pragma unroll
  for (int e = 0; e < N; ++e) {
    A sum = t[e];
#pragma unroll
    for (int m = 1; m < W; ++m) sum += t[e + m];
    out[e] = factor[e + kHalf] - terms.second * (values[kSides * N + e] * sum);
  }
  store_pack(dx + pack * N, round_pack<T, N>(out));
}

}  // namespace gradus
