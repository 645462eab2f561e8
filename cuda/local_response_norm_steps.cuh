// Kernels of local response normalization on CUDA. Letters as in core/ops/local_response_norm.h;
// windows are odd here: kHalf = (W - 1)/2 channels on either side.
//
// denom^-0.75 = r·sqrt(r) and denom^-1 = r² with r = denom^-0.5, in f32 from the hardware's
// approximations: at most 4 ulp off. Other exponents are pow()'s, in the kernels for any size.
#pragma once

#include <cfloat>

#include "core/dtype.h"
#include "core/ops/local_response_norm.h"
#include "cuda/device/quotient.cuh"
#include "cuda/device/round.cuh"
#include "cuda/device/vector.cuh"
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
// roots reach.
template <class A, int N>
__device__ __forceinline__ void response_factors(const ResponseTerms<A>& terms,
                                                 const A (&squares)[N], A (&factor)[N],
                                                 A (&inverse)[N]) {
  A r[N];
#pragma unroll
  for (int e = 0; e < N; ++e) r[e] = terms.k + terms.scale * squares[e];
  if (terms.k < smallest_normal(A())) {
#pragma unroll
    for (int e = 0; e < N; ++e) r[e] = r[e] < smallest_normal(A()) ? A(INFINITY) : r[e];
  }
#pragma unroll
  for (int e = 0; e < N; ++e) {
    r[e] = fast_rsqrt(r[e]);  // of denom; 0 where that counts as 0
    inverse[e] = r[e] * r[e];
  }
  if (terms.power == ResponsePower::three_quarters) {
#pragma unroll
    for (int e = 0; e < N; ++e) factor[e] = r[e] * fast_sqrt(r[e]);
  } else {
    const bool half = terms.power == ResponsePower::half;
#pragma unroll
    for (int e = 0; e < N; ++e) factor[e] = half ? r[e] : inverse[e];
  }
}

// The thread's run of channels, walked up or down: step i is at start + i·stride.
struct ResponseWalk {
  int64_t start, stride;
  int count;
  int begin, end;  // the steps whose channels exist, as far as windows reach

  __device__ __forceinline__ ResponseWalk(const ResponseRuns& plan, int64_t pack, int width,
                                          int64_t c, int64_t s) {
    constexpr int64_t kReach = 64;
    const int64_t row = pack / plan.packs_per_row;
    const int64_t run = blockIdx.x % plan.runs, first = run * plan.run;
    count = static_cast<int>(min(plan.run, c - first));
    const int below = static_cast<int>(min(kReach, first));
    const int above = static_cast<int>(min(kReach, c - first - count));
    const bool up = run % 2 == 0;
    begin = up ? -below : -above;
    end = count + (up ? above : below);
    start = (row * c + (up ? first : first + count - 1)) * s +
            (pack - row * plan.packs_per_row) * width;
    stride = up ? s : -s;
  }
};

// Reads the packs of consecutive steps, zeros where there is no such channel.
template <class T, int N>
struct ResponseReader {
  const T* next;
  int64_t stride;
  int step, begin, end;

  __device__ __forceinline__ ResponseReader(const T* x, const ResponseWalk& walk, int first,
                                            int last)
      : next(x + walk.start + first * walk.stride),
        stride(walk.stride),
        step(first),
        begin(walk.begin),
        end(min(walk.end, last)) {}
  __device__ __forceinline__ Pack<T, N> read() {
    Pack<T, N> pack{};
    if (step >= begin && step < end) pack = load_pack<N>(next);
    next += stride;
    ++step;
    return pack;
  }
};

// Steps whose loads are issued together; a multiple of W, so that the ring's slots are constants.
template <int W>
inline constexpr int kResponseGroup = W == 3 ? 6 : W;

// Σ x² over a ring of W channels of which slot `oldest` was filled first.
template <int W, class A, int N>
__device__ __forceinline__ void window_squares(const A (&window)[W][N], int oldest,
                                               A (&squares)[N]) {
#pragma unroll
  for (int e = 0; e < N; ++e) {
    squares[e] = window[oldest % W][e] * window[oldest % W][e];
#pragma unroll
    for (int m = 1; m < W; ++m) {
      const A value = window[(oldest + m) % W][e];
      squares[e] += value * value;
    }
  }
}

// math    y = x·denom^-beta, denom = k + alpha/size·Σ x²
// grid    blocks (pixels, runs); a thread walks a run of channels for N neighbouring pixels
// bytes   2Eb, and the W - 1 channels around each run's ends once more (from L2)
// needs   s and the pointers to allow packs of N; odd windows
// order   a window from the channel that the walk met first to the one it met last
template <class T, int N, int W>
__global__ void __launch_bounds__(ResponseRuns::kThreads)
    local_response_norm_forward_thread_per_pixels(const T* __restrict__ x, T* __restrict__ y,
                                                  int64_t c, int64_t s, ResponseRuns plan,
                                                  ResponseTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  constexpr int kHalf = (W - 1) / 2, kGroup = kResponseGroup<W>;
  const int64_t pack = blockIdx.x / plan.runs * ResponseRuns::kThreads + threadIdx.x;
  if (pack >= plan.packs) return;
  const ResponseWalk walk(plan, pack, N, c, s);
  ResponseReader<T, N> reader(x, walk, -kHalf, walk.count + kHalf);
  T* to = y + walk.start;
  A window[W][N];  // the channel of step i in slot (i + kHalf) % W
#pragma unroll
  for (int m = 0; m < W - 1; ++m) {
    const Pack<T, N> in = reader.read();
#pragma unroll
    for (int e = 0; e < N; ++e) window[m][e] = static_cast<A>(in[e]);
  }
  for (int step = 0; step < walk.count; step += kGroup) {
    Pack<T, N> in[kGroup];
#pragma unroll
    for (int p = 0; p < kGroup; ++p) in[p] = reader.read();
#pragma unroll
    for (int p = 0; p < kGroup; ++p) {
      if (step + p >= walk.count) break;
      A squares[N], factor[N], unused[N], out[N];
#pragma unroll
      for (int e = 0; e < N; ++e) window[(p + W - 1) % W][e] = static_cast<A>(in[p][e]);
      window_squares<W>(window, p, squares);
      response_factors(terms, squares, factor, unused);
#pragma unroll
      for (int e = 0; e < N; ++e) out[e] = window[(p + kHalf) % W][e] * factor[e];
      store_pack(to, round_pack<T, N>(out));
      to += walk.stride;
    }
  }
}

// math    dx = direct - second·x·Σ t, direct = dy·denom^-beta, t = direct·x/denom
// grid    as forward; step i computes t of channel i - kHalf and dx of channel i - 2·kHalf
// bytes   3Eb, and the 2·(W - 1) channels of x and W - 1 of dy around each run's ends once more
// needs   as forward
// order   as forward
template <class T, int N, int W>
__global__ void __launch_bounds__(ResponseRuns::kThreads)
    local_response_norm_backward_thread_per_pixels(const T* __restrict__ x,
                                                   const T* __restrict__ dy, T* __restrict__ dx,
                                                   int64_t c, int64_t s, ResponseRuns plan,
                                                   ResponseTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  constexpr int kHalf = (W - 1) / 2, kGroup = kResponseGroup<W>;
  const int64_t pack = blockIdx.x / plan.runs * ResponseRuns::kThreads + threadIdx.x;
  if (pack >= plan.packs) return;
  const ResponseWalk walk(plan, pack, N, c, s);
  const int steps = walk.count + 2 * kHalf;
  ResponseReader<T, N> x_reader(x, walk, -2 * kHalf, steps);
  ResponseReader<T, N> dy_reader(dy, walk, -kHalf, walk.count + kHalf);
  T* to = dx + walk.start;
  A window[W][N];                // x of step i in slot (i + 2·kHalf) % W
  A t[W][N] = {}, direct[W][N];  // of step i - kHalf in slot i % W
#pragma unroll
  for (int m = 0; m < W - 1; ++m) {
    const Pack<T, N> in = x_reader.read();
#pragma unroll
    for (int e = 0; e < N; ++e) window[m][e] = static_cast<A>(in[e]);
  }
  for (int step = 0; step < steps; step += kGroup) {
    Pack<T, N> x_in[kGroup], dy_in[kGroup];
#pragma unroll
    for (int p = 0; p < kGroup; ++p) {
      x_in[p] = x_reader.read();
      dy_in[p] = dy_reader.read();
    }
#pragma unroll
    for (int p = 0; p < kGroup; ++p) {
      if (step + p >= steps) break;
      A squares[N], factor[N], inverse[N], out[N];
#pragma unroll
      for (int e = 0; e < N; ++e) window[(p + W - 1) % W][e] = static_cast<A>(x_in[p][e]);
      window_squares<W>(window, p, squares);
      response_factors(terms, squares, factor, inverse);
#pragma unroll
      for (int e = 0; e < N; ++e) {
        direct[p % W][e] = static_cast<A>(dy_in[p][e]) * factor[e];
        t[p % W][e] = direct[p % W][e] * (window[(p + kHalf) % W][e] * inverse[e]);
      }
      if (step + p < 2 * kHalf) continue;  // the windows of the run's first channel fill
#pragma unroll
      for (int e = 0; e < N; ++e) {
        A sum = t[(p + 1) % W][e];
#pragma unroll
        for (int m = 1; m < W; ++m) sum += t[(p + 1 + m) % W][e];
        const A others = terms.second * (window[p % W][e] * sum);
        out[e] = direct[(p + W - kHalf) % W][e] - others;
      }
      store_pack(to, round_pack<T, N>(out));
      to += walk.stride;
    }
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
// order   a window from its lowest channel to its highest
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
  A squares[N] = {}, factor[N], unused[N];
#pragma unroll
  for (int e = 0; e < N; ++e) {
#pragma unroll
    for (int m = 0; m < W; ++m) {
      const A value = values[kSides * N + e - kHalf + m];
      squares[e] += value * value;
    }
  }
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
  A squares[kReach] = {}, factor[kReach], inverse[kReach], t[kReach];
#pragma unroll
  for (int i = 0; i < kReach; ++i) {
#pragma unroll
    for (int m = 0; m < W; ++m) {
      const A value = values[kSides * N - 2 * kHalf + i + m];
      squares[i] += value * value;
    }
  }
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
