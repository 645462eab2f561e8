// Batch normalization of contiguous tensors on CUDA: two launches, a first stage over chunks of
// each channel and a second pass whose blocks add up the chunks of their channel by themselves.
#pragma once

#include "cuda/batch_norm_finish.cuh"
#include "cuda/batch_norm_plan.h"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// Packs of channel c: range `index` of those of `size` packs.
struct BatchNormRange {
  int64_t c, index, begin;
  int count;
  __device__ __forceinline__ BatchNormRange(const BatchNormRows& plan, int64_t c, int64_t index,
                                            int64_t size)
      : c(c),
        index(index),
        begin(index * size),
        count(static_cast<int>(min(size, plan.packs - begin))) {}
  // Of a block, where they are numbered with the channel fastest.
  __device__ __forceinline__ BatchNormRange(const BatchNormRows& plan, uint32_t block, int64_t size)
      : BatchNormRange(plan, block - plan.by_c.quotient(block) * plan.c, plan.by_c.quotient(block),
                       size) {}
};

// What a block reduces a range to, in its first thread: a thread's groups of packs, lanes, warps.
// Where `of` writes, results are written on the way.
template <int N, class Of, class Policy>
__device__ __forceinline__ typename Of::Part part_of_range(const Of& of, const BatchNormRows& plan,
                                                           const BatchNormRange& range,
                                                           const Policy& policy) {
  constexpr int U = batch_norm_unroll(N), kStep = kBatchNormThreads;
  BatchNormWalk walk(plan, range.c, range.begin + threadIdx.x, N);
  typename Of::Row row(of, range.c);
  int i = static_cast<int>(threadIdx.x);
  for (; i + (U - 1) * kStep < range.count; i += U * kStep) {
    typename Of::template Item<N> items[U];
    BatchNormWalk to = walk;
#pragma unroll
    for (int u = 0; u < U; ++u) {
      items[u] = of.template load<N>(walk.at, policy);
      walk.step(plan);
    }
    row.take(items);
    row.settle();
#pragma unroll
    for (int u = 0; u < U; ++u) {
      of.write(to.at, items[u], row);
      to.step(plan);
    }
  }
  for (; i < range.count; i += kStep) {
    typename Of::template Item<N> items[1] = {of.template load<N>(walk.at, policy)};
    row.take(items);
    of.write(walk.at, items[0], row);
    walk.step(plan);
  }
  return row.part();
}

// The parts of a block's threads merged, in its first one.
template <class Part>
__device__ __forceinline__ Part merge_block(Part part) {
  constexpr int kWarps = kBatchNormThreads / kWarp;
  __shared__ detail::SharedSlots<Part> of_warp;
  part = merge_warp(part);
  if (threadIdx.x % kWarp == 0) of_warp.get()[threadIdx.x / kWarp] = part;
  __syncthreads();
  if (threadIdx.x >= kWarp) return part;
  return merge_warp(threadIdx.x < kWarps ? of_warp.get()[threadIdx.x] : Part{});
}

// Writes the results of a range by the channel's numbers, which `terms_of()` has in the first
// thread; the first inputs are on their way by then.
template <int N, class Terms, class Of, class Policy, class TermsOf>
__device__ __forceinline__ void write_range(const Of& of, typename Of::Element* __restrict__ to,
                                            const BatchNormRows& plan, const BatchNormRange& range,
                                            const Policy& policy, bool streams,
                                            const TermsOf& terms_of) {
  constexpr int U = batch_norm_unroll(N) / Of::kInputs, kStep = kBatchNormThreads;
  __shared__ Terms shared;
  BatchNormWalk walk(plan, range.c, range.begin + threadIdx.x, N);
  for (int i = static_cast<int>(threadIdx.x), pass = 0; pass * U * kStep < range.count; ++pass) {
    typename Of::template Item<N> in[U];
    int64_t at[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      at[u] = walk.at;
      if (i + u * kStep < range.count) in[u] = of.template load<N>(walk.at, policy);
      walk.step(plan);
    }
    if (pass == 0) {
      terms_of(shared);
      __syncthreads();
    }
    const Terms t = shared;
#pragma unroll
    for (int u = 0; u < U; ++u, i += kStep) {
      if (i < range.count) store_result(to + at[u], t(in[u]), streams);
    }
  }
}

// math    parts[c, chunk] = moments or sums of a chunk of channel c
// grid    one block per (chunk, channel), channel fastest
// passes  1
// bytes   each input once; where the backward pass of evaluation writes dx, dx once
// smem    one part per warp
// order   that of part_of_range: fixed by the plan
template <class Of, int N>
__global__ void __launch_bounds__(kBatchNormThreads)
    batch_norm_parts_block_per_chunk(const Of of, const BatchNormRows plan,
                                     typename Of::Part* parts, int64_t* batches) {
  wait_for_previous_kernel();
  if (batches != nullptr && blockIdx.x == 0 && threadIdx.x == 0) ++*batches;
  const BatchNormRange range(plan, blockIdx.x, plan.chunk);
  const auto own = part_of_range<N>(of, plan, range, L2Policy<Evict::normal>());
  start_next_kernel();
  const auto part = merge_block(own);
  if (threadIdx.x == 0) parts[range.c * plan.chunks + range.index] = part;
}

// The parts of channel c merged by one warp: lanes take chunks in turn, then fold.
template <class Part>
__device__ __forceinline__ Part merge_chunks(const Part* parts, int64_t c, int64_t chunks) {
  Part part{};
  for (int64_t chunk = threadIdx.x % kWarp; chunk < chunks; chunk += kWarp)
    part = merge(part, parts[c * chunks + chunk]);
  return merge_warp(part);
}

// math    forward  y = (x - mean)·rstd·gamma + beta
//         backward dx = gamma·rstd·(dy - m1 - (x - mean)·m2r), m2r = rstd·m2; training only
// grid    one block per (slice, channel), the last memory first: the first stage has just left it
//         in L2. A slice's first packs are on their way while warp 0 adds up the chunks; whoever
//         wrote them has ended, for the first stage has waited for it.
// passes  1 moments or sums (x, and dy, read), 2 this one (the same read, y or dx written)
// bytes   fewest 2Eb and 3Eb; 3Eb and 5Eb when the inputs do not fit L2
// smem    the channel's numbers
// order   element-wise
template <class Of, class Finish, int N>
__global__ void __launch_bounds__(kBatchNormThreads, 3)
    batch_norm_write_rows(const Of of, typename Of::Element* __restrict__ to,
                          const BatchNormRows plan, const Finish f, bool streams) {
  using Terms = typename Finish::Terms;
  const BatchNormRange range(plan, gridDim.x - 1 - blockIdx.x, plan.slice);
  write_range<N, Terms>(of, to, plan, range, L2Policy<Evict::normal>(), streams, [&](Terms& terms) {
    wait_for_previous_kernel();
    if (threadIdx.x >= kWarp) return;
    const bool writes = range.index == 0 && threadIdx.x == 0;
    const Terms t = f.finish(range.c, merge_chunks(f.parts, range.c, plan.chunks), writes);
    if (threadIdx.x == 0) terms = t;
  });
}

// math    y = (x - mean)·rstd·gamma + beta with the running statistics
// grid    one block per (few packs of each thread, channel); every thread makes the channel's
//         numbers itself
// bytes   2Eb
// order   element-wise
template <class T, int N, Evict kEvict>
__global__ void __launch_bounds__(kBatchNormThreads, N == 8 ? 8 : 1)
    batch_norm_forward_evaluate_rows(const T* x, T* __restrict__ y, const BatchNormRows plan,
                                     const ForwardFinish<T> f, bool streams) {
  constexpr int U = batch_norm_evaluate_unroll(N), kStep = kBatchNormThreads;
  const BatchNormRange range(plan, blockIdx.x, U * kStep);
  const int i = static_cast<int>(threadIdx.x);
  BatchNormWalk walk(plan, range.c, range.begin + i, N), to = walk;
  wait_for_previous_kernel();
  start_next_kernel();
  const L2Policy<kEvict> policy;
  Raw<T, N> in[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (i + u * kStep < range.count) policy.load(in[u], x + walk.at);
    walk.step(plan);
  }
  const BatchNormForwardTerms<acc_t<T>> t = f.use_running(range.c, range.index == 0 && i == 0);
#pragma unroll
  for (int u = 0; u < U; ++u, to.step(plan)) {
    if (i + u * kStep < range.count) store_result(y + to.at, t(in[u]), streams);
  }
}

// math    dx = gamma·rstd·dy: evaluation where the parameters' gradients are not wanted
// grid    one block per (slice, channel)
// bytes   2Eb; x is not read
// order   element-wise
template <class T, int N>
__global__ void __launch_bounds__(kBatchNormThreads)
    batch_norm_backward_scale_rows(const T* __restrict__ dy, T* __restrict__ dx,
                                   const BatchNormRows plan, const BackwardFinish<acc_t<T>> f) {
  using A = acc_t<T>;
  const BatchNormRange range(plan, blockIdx.x, plan.slice);
  BatchNormWalk walk(plan, range.c, range.begin + threadIdx.x, N);
  const A scale = f.scale(range.c);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < range.count; i += kBatchNormThreads) {
    const Raw<T, N> in = load_raw<N>(dy + walk.at);
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = scale * in[j];
    round_raw<T, N>(out).store(dx + walk.at);
    walk.step(plan);
  }
}

// Σ of the chunks' sums where no second pass does it: one warp per channel.
template <class A>
__global__ void __launch_bounds__(kBatchNormThreads)
    batch_norm_backward_finish_rows(int64_t c_count, int64_t chunks, const BackwardFinish<A> f) {
  const int64_t c = int64_t{blockIdx.x} * (kBatchNormThreads / kWarp) + threadIdx.x / kWarp;
  if (c >= c_count) return;
  wait_for_previous_kernel();
  f.finish(c, merge_chunks(f.parts, c, chunks), threadIdx.x % kWarp == 0);
}

}  // namespace gradus
