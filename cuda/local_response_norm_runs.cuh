// Local response normalization of contiguous 16-bit tensors on CUDA, whose floor is half of f32's
// for the same arithmetic: a thread walks channels with its windows in registers, so that no power
// is computed twice within a run.
#pragma once

#include "cuda/device/raw.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/local_response_norm_steps.cuh"

namespace gradus {

// Steps whose loads are issued together; a multiple of W, so that the ring's slots are constants.
template <int W>
inline constexpr int kResponseGroup = W == 3 ? 6 : W;

// Σ x² over a ring of W channels of which slot `oldest` was filled first.
template <int W, class A, int N>
__device__ __forceinline__ void ring_squares(const A (&window)[W][N], int oldest, A (&squares)[N]) {
#pragma unroll
  for (int e = 0; e < N; ++e) {
    squares[e] = window[oldest % W][e] * window[oldest % W][e];
#pragma unroll
    for (int m = 1; m < W; ++m) {
      const A value = window[(oldest + m) % W][e];
      squares[e] = ::fma(value, value, squares[e]);  // squares are not kept for the next windows
    }
  }
}

// A thread's pixels, and the run of channels that it walks.
struct ResponseRun {
  int64_t at = 0;        // of the first channel
  int first = 0, count;  // channels
  bool used = false;

  __device__ __forceinline__ ResponseRun(const ResponseRuns& plan, int c, int64_t s, int width) {
    const unsigned runs = static_cast<unsigned>(plan.runs), group = blockIdx.x / runs;
    const int64_t pack = int64_t{group} * ResponseRuns::kThreads + threadIdx.x;
    first = static_cast<int>(blockIdx.x - group * runs) * plan.run;
    count = min(plan.run, c - first);
    used = pack < plan.packs;
    const int64_t row = row_of(pack, plan.packs_per_row);
    at = (row * c + first) * s + (pack - row * plan.packs_per_row) * width;
  }
};

// math    dx = direct - second·x·Σ t, direct = dy·denom^-beta, t = direct·x/denom
// grid    blocks (pixels, runs); a thread walks a run of channels for N neighbouring pixels; step i
//         computes t of channel i - kHalf and dx of channel i - 2·kHalf
// bytes   3Eb, and the 2·(W - 1) channels of x and W - 1 of dy around each run's ends once more
//         (from L2)
// needs   s, below 2^27, and the pointers to allow packs of N; odd windows; kUsual: terms.usual()
// order   a window from its lowest channel to its highest
// Predicted in bf16 at 256x128x56x56: 90 % of a copy with 27 instructions per element, against 37
// and 80 %; measured: 94 %.
template <class T, int N, int W, bool kUsual>
__global__ void __launch_bounds__(ResponseRuns::kThreads, W == 7 ? 3 : 4)
    local_response_norm_backward_thread_per_run(const T* __restrict__ x, const T* __restrict__ dy,
                                                T* __restrict__ dx, int c, int s,
                                                const __grid_constant__ ResponseRuns plan,
                                                const ResponseTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  constexpr int kHalf = (W - 1) / 2, kGroup = kResponseGroup<W>;
  const ResponseRun run(plan, c, s, N);
  wait_for_previous_kernel();
  start_next_kernel();
  if (!run.used) return;
  const int first = run.first, steps = run.count + 2 * kHalf;
  x += run.at;
  dy += run.at - int64_t{kHalf} * s;
  dx += run.at - int64_t{2 * kHalf} * s;
  A window[W][N];                     // x of step i in slot (i + 2·kHalf) % W
  A t[W][N] = {}, direct[W][N] = {};  // of step i - kHalf in slot i % W
#pragma unroll
  for (int m = 0; m < W - 1; ++m) {
    Raw<T, N> in{};
    if (first + m >= 2 * kHalf) in.load(x + (m - 2 * kHalf) * int64_t{s});
    in.unpack(window[m]);
  }
  // The steps whose channels exist, of x and, kHalf before, of dy.
  const int x_end = min(steps, c - first), dy_end = min(steps, c - first + kHalf);
  const int dy_begin = max(0, kHalf - first);
  Raw<T, N> x_next[kGroup], dy_next[kGroup];
  const auto load = [&](int step) {
#pragma unroll
    for (int p = 0; p < kGroup; ++p) {
      x_next[p] = dy_next[p] = Raw<T, N>{};
      if (step + p < x_end) x_next[p].load(x + p * s);
      if (step + p >= dy_begin && step + p < dy_end) dy_next[p].load(dy + p * s);
    }
    x += kGroup * s;
    dy += kGroup * s;
  };
  load(0);
  for (int step = 0; step < steps; step += kGroup) {
    Raw<T, N> x_in[kGroup], dy_in[kGroup];
#pragma unroll
    for (int p = 0; p < kGroup; ++p) x_in[p] = x_next[p], dy_in[p] = dy_next[p];
    load(step + kGroup);  // while these steps are computed
#pragma unroll
    for (int p = 0; p < kGroup; ++p) {
      A squares[N], factor[N], inverse[N], upstream[N], out[N];
      x_in[p].unpack(window[(p + W - 1) % W]);
      dy_in[p].unpack(upstream);
      ring_squares<W>(window, p, squares);
      response_factors<kUsual>(terms, squares, factor, inverse);
#pragma unroll
      for (int e = 0; e < N; ++e) {
        direct[p % W][e] = upstream[e] * factor[e];
        t[p % W][e] = direct[p % W][e] * (window[(p + kHalf) % W][e] * inverse[e]);
        A sum = t[(p + 1) % W][e];
#pragma unroll
        for (int m = 1; m < W; ++m) sum += t[(p + 1 + m) % W][e];
        const A others = terms.second * (window[p % W][e] * sum);
        out[e] = direct[(p + W - kHalf) % W][e] - others;
      }
      if (step + p >= 2 * kHalf && step + p < steps) {
        x_in[p].round(out);
        x_in[p].store(dx + p * s);
      }
    }
    dx += kGroup * s;
  }
}

}  // namespace gradus
