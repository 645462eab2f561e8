// The per-channel steps of batch normalization on CUDA: partial moments and sums of chunks of a
// channel, and the ordered second stage that turns them into statistics and gradients.
#pragma once

#include "core/ops/batch_norm.h"
#include "cuda/context.h"
#include "cuda/device/reduce.cuh"
#include "cuda/device/strided_plan.h"
#include "cuda/device/vector.cuh"
#include "cuda/plan.h"

namespace gradus {

// Division for tensors beyond 2^31 elements, where FastDivisor does not reach.
struct WideDivisor {
  int64_t divisor = 1;
  WideDivisor() = default;
  explicit WideDivisor(int64_t d) : divisor(d) {}
  GRADUS_HD int64_t quotient(int64_t i) const { return i / divisor; }
};

// Channel of a pack of elements (for columns: of the pack's first channel, counted in packs).
template <class Divisor>
struct ChannelOf {
  Divisor inner, outer;
  __device__ __forceinline__ int64_t operator()(int64_t pack) const {
    const auto row = inner.quotient(static_cast<decltype(inner.divisor)>(pack));
    return static_cast<int64_t>(row - outer.quotient(row) * outer.divisor);
  }
};

template <class A>
struct ForwardTerms {
  const A *mean, *rstd, *gamma, *beta;
  int64_t* batches;
};

template <class A>
struct BackwardTerms {
  const A *mean, *rstd, *gamma, *m1, *m2r;
};

template <class A>
__device__ __forceinline__ Moments<A> merge(const Moments<A>& a, const Moments<A>& b) {
  return MergeMoments{}(a, b);
}

template <class A>
__device__ __forceinline__ Moments<A> merge_warp(const Moments<A>& value) {
  return warp_reduce(value, MergeMoments{});
}

// The moments of N values held in registers, in two passes.
template <class A, int N>
__device__ __forceinline__ Moments<A> moments_of(const A (&x)[N]) {
  A total = x[0];
#pragma unroll
  for (int i = 1; i < N; ++i) total += x[i];
  const A mean = total * (A(1) / A(N));
  A m2 = A(0);
#pragma unroll
  for (int i = 0; i < N; ++i) m2 += (x[i] - mean) * (x[i] - mean);
  return {A(N), mean, m2};
}

// Partial sums of a chunk: Σ dy and Σ dy·(x - mean).
template <class A>
struct Sums {
  A dy, dy_x;
};

template <class A>
__device__ __forceinline__ Sums<A> merge(const Sums<A>& a, const Sums<A>& b) {
  return {a.dy + b.dy, a.dy_x + b.dy_x};
}

template <class A>
__device__ __forceinline__ Sums<A> merge_warp(const Sums<A>& value) {
  return {warp_sum(value.dy), warp_sum(value.dy_x)};
}

// What a chunk is reduced to, in the forward and in the backward pass: how to take in elements.

// Moments of x - pivot, with the channel's first element as the pivot: a mean far from 0 then costs
// no digits, and is rounded once, when the pivot is added back.
template <class T>
struct MomentsOf {
  using A = acc_t<T>;
  using Part = Moments<A>;
  const T* x;
  int64_t channel_stride;  // from one channel's first element to the next one's

  __device__ __forceinline__ A pivot(int64_t c) const {
    return static_cast<A>(x[c * channel_stride]);
  }
  __device__ __forceinline__ Part take(const Part& part, int64_t i, int64_t c) const {
    return merge(part, Part{A(1), static_cast<A>(x[i]) - pivot(c), A(0)});
  }
  template <int N>
  __device__ __forceinline__ Part take_pack(const Part& part, int64_t i, int64_t c) const {
    const Pack<T, N> in = load_pack<N>(x + i);
    A values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = static_cast<A>(in[j]) - pivot(c);
    return merge(part, moments_of(values));
  }
  template <int N>
  __device__ __forceinline__ void take_columns(Part (&parts)[N], int64_t i, int64_t c) const {
    const Pack<T, N> in = load_pack<N>(x + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      parts[j] = merge(parts[j], Part{A(1), static_cast<A>(in[j]) - pivot(c + j), A(0)});
    }
  }
};

template <class T>
struct SumsOf {
  using A = acc_t<T>;
  using Part = Sums<A>;
  const T* x;
  const T* dy;
  const A* mean;

  __device__ __forceinline__ Part add(const Part& part, T x_value, T dy_value, int64_t c) const {
    const A d = static_cast<A>(dy_value);
    return {part.dy + d, part.dy_x + d * (static_cast<A>(x_value) - mean[c])};
  }
  __device__ __forceinline__ Part take(const Part& part, int64_t i, int64_t c) const {
    return add(part, x[i], dy[i], c);
  }
  template <int N>
  __device__ __forceinline__ Part take_pack(Part part, int64_t i, int64_t c) const {
    const Pack<T, N> x_in = load_pack<N>(x + i), dy_in = load_pack<N>(dy + i);
#pragma unroll
    for (int j = 0; j < N; ++j) part = add(part, x_in[j], dy_in[j], c);
    return part;
  }
  template <int N>
  __device__ __forceinline__ void take_columns(Part (&parts)[N], int64_t i, int64_t c) const {
    const Pack<T, N> x_in = load_pack<N>(x + i), dy_in = load_pack<N>(dy + i);
#pragma unroll
    for (int j = 0; j < N; ++j) parts[j] = add(parts[j], x_in[j], dy_in[j], c + j);
  }
};

// math    parts[chunk, c] = moments or sums of the chunk's segments of channel c
// grid    one block per (channel, chunk); a warp takes every eighth segment, its lanes stride along
// it passes  1 bytes   each input once smem    one part per warp order   lane, warp (folded
// halves), block (warp 0 to 7): fixed by the shape
template <class Of, int N>
__global__ void __launch_bounds__(256)
    batch_norm_parts_block_per_chunk(Of of, int64_t c_count, int64_t s, BatchNormRows plan,
                                     typename Of::Part* parts) {
  using Part = typename Of::Part;
  __shared__ Part of_warp[8];
  const int64_t c = blockIdx.x / plan.chunks, chunk = blockIdx.x % plan.chunks;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t end = min(plan.segments, (chunk + 1) * plan.per_chunk);
  Part part{};
  for (int64_t segment = chunk * plan.per_chunk + warp; segment < end; segment += 8) {
    const int64_t n = segment / plan.segments_per_row, piece = segment % plan.segments_per_row;
    const int64_t row = (n * c_count + c) * s;
    const int64_t from = piece * BatchNormRows::kSegment,
                  to = min(s, from + BatchNormRows::kSegment);
#pragma unroll 4
    for (int64_t i = from + lane * N; i < to; i += 32 * N) {
      if constexpr (N == 1) {
        part = of.take(part, row + i, c);
      } else {
        part = of.template take_pack<N>(part, row + i, c);
      }
    }
  }
  part = merge_warp(part);
  if (lane == 0) of_warp[warp] = part;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 1; i < 8; ++i) part = merge(part, of_warp[i]);
  parts[chunk * c_count + c] = part;
}

// math    parts[chunk, c] = moments or sums over a run of rows, for N channels per thread
// grid    blocks (channels, chunks); threads (lanes across channels, 256 / lanes across rows)
// passes  1
// bytes   each input once
// smem    one part per thread and channel
// order   a thread's rows, then the threads of a column folded by halves: fixed by the shape
template <class Of, int N>
__global__ void __launch_bounds__(256)
    batch_norm_parts_thread_per_column(Of of, int64_t c_count, int64_t m, BatchNormColumns plan,
                                       typename Of::Part* parts) {
  using Part = typename Of::Part;
  extern __shared__ char shared[];
  Part* of_thread = reinterpret_cast<Part*>(shared);
  const int lanes = blockDim.x, rows = blockDim.y;
  const int64_t c = (int64_t{blockIdx.x} * lanes + threadIdx.x) * N;
  const int64_t begin = blockIdx.y * plan.rows_per_chunk, end = min(m, begin + plan.rows_per_chunk);
  Part part[N] = {};
  if (c < c_count) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += rows)
      of.take_columns(part, row * c_count + c, c);
  }
  const int thread = threadIdx.y * lanes + threadIdx.x;
  for (int width = rows; width > 1; width /= 2) {
    if (threadIdx.y < width && threadIdx.y >= width / 2) {
#pragma unroll
      for (int j = 0; j < N; ++j) of_thread[j * 256 + thread] = part[j];
    }
    __syncthreads();
    if (threadIdx.y < width / 2) {
#pragma unroll
      for (int j = 0; j < N; ++j)
        part[j] = merge(part[j], of_thread[j * 256 + thread + width / 2 * lanes]);
    }
  }
  if (threadIdx.y != 0 || c >= c_count) return;
#pragma unroll
  for (int j = 0; j < N; ++j) parts[blockIdx.y * c_count + c + j] = part[j];
}

template <class T>
struct FinishForward {
  using A = acc_t<T>;
  MomentsOf<T> of;
  int64_t c = 0;
  int64_t chunks = 0;  // 0: evaluation
  Moments<A>* parts = nullptr;
  A *mean = nullptr, *rstd = nullptr;
  A *running_mean = nullptr, *running_var = nullptr;  // null: not updated
  int64_t mean_stride = 1, var_stride = 1;
  const int64_t* batches = nullptr;
  A eps = 0, momentum = 0;
  bool cumulative = false;
};

// One warp per channel: lanes take chunks in turn, then fold.
template <class T>
__global__ void __launch_bounds__(256) batch_norm_forward_finish(FinishForward<T> f) {
  using A = acc_t<T>;
  const int64_t c = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (c >= f.c) return;
  if (f.chunks == 0) {
    if (lane != 0) return;
    f.mean[c] = f.running_mean[c * f.mean_stride];
    f.rstd[c] = A(1) / sqrt(f.running_var[c * f.var_stride] + f.eps);
    return;
  }
  Moments<A> moments{};
  for (int64_t chunk = lane; chunk < f.chunks; chunk += 32)
    moments = merge(moments, f.parts[chunk * f.c + c]);
  moments = merge_warp(moments);
  if (lane != 0) return;
  const A mean = f.of.pivot(c) + moments.mean;
  f.mean[c] = mean;
  f.rstd[c] = A(1) / sqrt(moments.m2 / moments.count + f.eps);
  if (f.running_mean == nullptr) return;
  A factor = f.momentum;
  if (f.cumulative) factor = A(1) / static_cast<A>(*f.batches + 1);
  A& running_mean = f.running_mean[c * f.mean_stride];
  A& running_var = f.running_var[c * f.var_stride];
  running_mean = (A(1) - factor) * running_mean + factor * mean;
  running_var = (A(1) - factor) * running_var + factor * (moments.m2 / (moments.count - A(1)));
}

template <class A>
struct FinishBackward {
  int64_t c = 0;
  int64_t m = 0;
  int64_t chunks = 0;
  Sums<A>* parts = nullptr;
  const A* rstd = nullptr;
  A *dgamma = nullptr, *dbeta = nullptr;  // null: not wanted
  A *m1 = nullptr, *m2r = nullptr;
};

template <class A>
__global__ void __launch_bounds__(256) batch_norm_backward_finish(FinishBackward<A> f) {
  const int64_t c = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (c >= f.c) return;
  Sums<A> sums{};
  for (int64_t chunk = lane; chunk < f.chunks; chunk += 32)
    sums = merge(sums, f.parts[chunk * f.c + c]);
  sums = merge_warp(sums);
  if (lane != 0) return;
  const A rstd = f.rstd[c];
  if (f.dgamma != nullptr) f.dgamma[c] = sums.dy_x * rstd;
  if (f.dbeta != nullptr) f.dbeta[c] = sums.dy;
  f.m1[c] = sums.dy / static_cast<A>(f.m);
  f.m2r[c] = sums.dy_x * rstd / static_cast<A>(f.m) * rstd;
}

template <class T>
FinishForward<T> finish_forward(const BatchNormForward& args, const BatchNormGeometry& g) {
  using A = acc_t<T>;
  FinishForward<T> finish{.of = {args.x.as<T>(), g.channels_last ? 1 : g.s},
                          .c = g.c,
                          .mean = args.mean.as<A>(),
                          .rstd = args.rstd.as<A>(),
                          .running_mean = args.running_mean.as<A>(),
                          .running_var = args.running_var.as<A>(),
                          .batches = args.batches.as<int64_t>(),
                          .eps = static_cast<A>(args.eps),
                          .momentum = static_cast<A>(args.momentum),
                          .cumulative = args.cumulative};
  if (args.running_mean) {
    finish.mean_stride = args.running_mean.strides[0];
    finish.var_stride = args.running_var.strides[0];
  }
  return finish;
}

// Launches the first stage over x (and what `of` holds beside it); returns the number of chunks and
// puts the parts, followed by `extra` numbers, into the workspace.
template <int N, bool kColumns, class Of>
int64_t launch_first_stage(Cuda& cuda, const Of& of, const BatchNormGeometry& g, int64_t extra,
                           typename Of::Part** parts) {
  using Part = typename Of::Part;
  const auto reserve = [&](int64_t chunks) {
    const int64_t bytes = chunks * g.c * sizeof(Part) + extra * sizeof(typename Of::A);
    *parts = static_cast<Part*>(cuda.workspace(static_cast<size_t>(bytes)));
  };
  if constexpr (kColumns) {
    const BatchNormColumns plan = plan_batch_norm_columns(g.m(), g.c, N);
    reserve(plan.chunks);
    const dim3 grid(static_cast<unsigned>(plan.channel_blocks), static_cast<unsigned>(plan.chunks));
    const dim3 block(plan.lanes, BatchNormColumns::kThreads / plan.lanes);
    batch_norm_parts_thread_per_column<Of, N>
        <<<grid, block, 256 * N * sizeof(Part), cuda.stream()>>>(of, g.c, g.m(), plan, *parts);
    return plan.chunks;
  } else {
    const BatchNormRows plan = plan_batch_norm_rows(g.n, g.c, g.s);
    reserve(plan.chunks);
    batch_norm_parts_block_per_chunk<Of, N>
        <<<static_cast<unsigned>(plan.chunks * g.c), 256, 0, cuda.stream()>>>(of, g.c, g.s, plan,
                                                                              *parts);
    return plan.chunks;
  }
}

template <class T, int N, bool kColumns>
int64_t launch_sums(Cuda& cuda, const T* x, const T* dy, const acc_t<T>* mean,
                    const BatchNormGeometry& g, Sums<acc_t<T>>** parts, acc_t<T>** terms) {
  const int64_t chunks =
      launch_first_stage<N, kColumns>(cuda, SumsOf<T>{x, dy, mean}, g, 2 * g.c, parts);
  *terms = reinterpret_cast<acc_t<T>*>(*parts + chunks * g.c);
  return chunks;
}

}  // namespace gradus
