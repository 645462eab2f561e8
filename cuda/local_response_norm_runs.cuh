// The backward pass of local response normalization for contiguous 16-bit tensors on CUDA, whose
// floor is half of f32's for the same arithmetic: a thread walks channels with its windows in
// registers, so that no power is computed twice within a run.
#pragma once

#include "cuda/local_response_norm_steps.cuh"

namespace gradus {

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
__device__ __forceinline__ void ring_squares(const A (&window)[W][N], int oldest, A (&squares)[N]) {
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

// math    dx = direct - second·x·Σ t, direct = dy·denom^-beta, t = direct·x/denom
// grid    blocks (pixels, runs); a thread walks a run of channels for N neighbouring pixels; step i
//         computes t of channel i - kHalf and dx of channel i - 2·kHalf
// bytes   3Eb, and the 2·(W - 1) channels of x and W - 1 of dy around each run's ends once more
//         (from L2)
// needs   s and the pointers to allow packs of N; odd windows
// order   a window from the channel that the walk met first to the one it met last
template <class T, int N, int W>
__global__ void __launch_bounds__(ResponseRuns::kThreads)
    local_response_norm_backward_thread_per_run(const T* __restrict__ x, const T* __restrict__ dy,
                                                T* __restrict__ dx, int64_t c, int64_t s,
                                                ResponseRuns plan, ResponseTerms<acc_t<T>> terms) {
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
      ring_squares<W>(window, p, squares);
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

}  // namespace gradus
