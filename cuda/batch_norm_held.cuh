// Batch normalization of contiguous tensors on CUDA where a cluster of blocks holds a channel in
// shared memory: one launch, and memory is read once.
#pragma once

#include "cuda/batch_norm_finish.cuh"
#include "cuda/batch_norm_plan.h"
#include "cuda/device/cluster.cuh"
#include "cuda/device/shared.cuh"

namespace gradus {

// The block's part of a channel, in `held` packs of shared memory per input. A thread copies packs
// thread, thread + kBatchNormThreads, ... and reads those alone.
template <class T, int N>
struct BatchNormPiece {
  int64_t c;
  unsigned rank;
  int count;
  int64_t begin;
  Pack<T, N>* held;

  __device__ __forceinline__ BatchNormPiece(const BatchNormRows& plan,
                                            const BatchNormHeld& held_plan)
      : c(blockIdx.x / static_cast<unsigned>(held_plan.cluster)),
        rank(blockIdx.x % static_cast<unsigned>(held_plan.cluster)),
        begin(int64_t{rank} * held_plan.piece),
        held(reinterpret_cast<Pack<T, N>*>(dynamic_shared())) {
    count = static_cast<int>(max(int64_t{0}, min(int64_t{held_plan.piece}, plan.packs - begin)));
  }
  __device__ __forceinline__ BatchNormWalk walk(const BatchNormRows& plan) const {
    return BatchNormWalk(plan, c, begin + threadIdx.x, N);
  }
};

// The parts of all blocks of the cluster merged, for warp 0 of each; all threads call it.
template <class Part>
__device__ __forceinline__ Part merge_held(const Part& of_thread, int cluster) {
  __shared__ detail::SharedSlots<Part> of_warp;
  __shared__ detail::SharedSlots<Part> of_block;  // the first slot
  Part part = merge_warp(of_thread);
  if (threadIdx.x % kWarp == 0) of_warp.get()[threadIdx.x / kWarp] = part;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int w = 1; w < kBatchNormThreads / kWarp; ++w) part = merge(part, of_warp.get()[w]);
    of_block.get()[0] = part;
  }
  __syncthreads();
  if (cluster > 1) cluster_sync();
  if (threadIdx.x < kWarp) {
    part = Part{};
    if (static_cast<int>(threadIdx.x) < cluster) part = *in_block(of_block.get(), threadIdx.x);
    part = merge_warp(part);
  }
  if (cluster > 1) cluster_arrive();  // a block must not end while its part may be read
  return part;
}

// math    as batch_norm_forward_write_rows
// grid    one cluster per channel
// passes  1: copied to shared memory, moments, y written
// bytes   fewest 2Eb = actual
// smem    the block's packs of x
// needs   packs of 16 bytes
// order   a thread's groups of packs, lanes, warps, blocks of the cluster: fixed by the plan
template <class T, int N>
__global__ void __launch_bounds__(kBatchNormThreads, 3)
    batch_norm_forward_held(const T* __restrict__ x, T* __restrict__ y, const BatchNormRows plan,
                            const BatchNormHeld held_plan, const ForwardFinish<T> f,
                            int64_t* batches, bool streams) {
  using A = acc_t<T>;
  constexpr int U = batch_norm_unroll(N), kStep = kBatchNormThreads;
  __shared__ Transform<A> shared;
  const BatchNormPiece<T, N> piece(plan, held_plan);
  const int thread = static_cast<int>(threadIdx.x);
  BatchNormWalk from = piece.walk(plan);
  for (int i = thread; i < piece.count; i += kStep, from.step(plan))
    copy_async_once<sizeof(T) * N>(shared_address(piece.held + i), x + from.at);
  commit_copies();
  typename MomentsOf<T>::Row row(f.of, piece.c);
  wait_copies<0>();
  int i = thread;
  for (; i + (U - 1) * kStep < piece.count; i += U * kStep) {
    Pack<T, N> items[U];
#pragma unroll
    for (int u = 0; u < U; ++u) items[u] = piece.held[i + u * kStep];
    row.take(items);
  }
  for (; i < piece.count; i += kStep) {
    Pack<T, N> items[1] = {piece.held[i]};
    row.take(items);
  }
  const Moments<A> moments = merge_held(row.part, held_plan.cluster);
  if (thread < kWarp) {
    const bool writes = piece.rank == 0 && thread == 0;
    const Transform<A> t = f.finish(piece.c, moments, writes);
    if (thread == 0) shared = t;
    if (writes && batches != nullptr && piece.c == 0) ++*batches;
  }
  __syncthreads();
  const Transform<A> t = shared;
  BatchNormWalk to = piece.walk(plan);
#pragma unroll 4
  for (i = thread; i < piece.count; i += kStep, to.step(plan)) {
    const Pack<T, N> in = piece.held[i];
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = (static_cast<A>(in[j]) - t.mean) * t.scale + t.shift;
    store_result(y + to.at, round_pack<T, N>(out), streams);
  }
  if (held_plan.cluster > 1) cluster_wait();
}

// math    as batch_norm_backward_write_rows
// grid    one cluster per channel
// passes  1: copied to shared memory, sums, dx written
// bytes   fewest 3Eb = actual
// smem    the block's packs of x, then those of dy
// needs   packs of 16 bytes
// order   as forward
template <class T, int N>
__global__ void __launch_bounds__(kBatchNormThreads, 3)
    batch_norm_backward_held(const T* __restrict__ x, const T* __restrict__ dy, T* __restrict__ dx,
                             const BatchNormRows plan, const BatchNormHeld held_plan,
                             const BackwardFinish<acc_t<T>> f, bool streams) {
  using A = acc_t<T>;
  using Of = SumsOf<T, false>;
  constexpr int U = batch_norm_unroll(N) / 2, kStep = kBatchNormThreads;
  __shared__ Gradient<A> shared;
  const BatchNormPiece<T, N> piece(plan, held_plan);
  Pack<T, N>* const held_dy = piece.held + held_plan.piece;
  const int thread = static_cast<int>(threadIdx.x);
  BatchNormWalk from = piece.walk(plan);
  for (int i = thread; i < piece.count; i += kStep, from.step(plan)) {
    copy_async_once<sizeof(T) * N>(shared_address(piece.held + i), x + from.at);
    copy_async_once<sizeof(T) * N>(shared_address(held_dy + i), dy + from.at);
  }
  commit_copies();
  typename Of::Row row(Of{x, dy, f.mean}, piece.c);
  wait_copies<0>();
  int i = thread;
  for (; i + (U - 1) * kStep < piece.count; i += U * kStep) {
    PackPair<T, N> items[U];
#pragma unroll
    for (int u = 0; u < U; ++u) items[u] = {piece.held[i + u * kStep], held_dy[i + u * kStep]};
    row.take(items);
  }
  for (; i < piece.count; i += kStep) {
    PackPair<T, N> items[1] = {{piece.held[i], held_dy[i]}};
    row.take(items);
  }
  const Sums<A> sums = merge_held(row.part, held_plan.cluster);
  if (thread < kWarp) {
    const Gradient<A> t = f.finish(piece.c, sums, piece.rank == 0 && thread == 0);
    if (thread == 0) shared = t;
  }
  __syncthreads();
  const Gradient<A> t = shared;
  BatchNormWalk to = piece.walk(plan);
#pragma unroll 2
  for (i = thread; i < piece.count; i += kStep, to.step(plan)) {
    const Pack<T, N> x_in = piece.held[i], dy_in = held_dy[i];
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A moved = t.m1 + (static_cast<A>(x_in[j]) - t.mean) * t.m2r;
      out[j] = t.scale * (static_cast<A>(dy_in[j]) - moved);
    }
    store_result(dx + to.at, round_pack<T, N>(out), streams);
  }
  if (held_plan.cluster > 1) cluster_wait();
}

}  // namespace gradus
