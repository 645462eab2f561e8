// Batch normalization of contiguous tensors that do not fit L2, in training: one launch that reads
// memory once. Its blocks sum one channel after the other, and between them write the channels that
// were summed a while before, whose inputs L2 still holds.
#pragma once

#include "cuda/batch_norm_rows.cuh"

namespace gradus {

// What the blocks of a launch leave for each other, by channel.
template <class Part, class Terms>
struct BatchNormBoard {
  Part* parts;         // [c, chunks]
  Terms* terms;        // [c]
  unsigned* summed;    // [c]: chunks, 0 at first
  unsigned* finished;  // [c]: 1 where terms are there, 0 at first

  static size_t bytes(const BatchNormRows& rows) {
    return static_cast<size_t>(rows.c) *
           (static_cast<size_t>(rows.chunks) * sizeof(Part) + sizeof(Terms) + 2 * sizeof(unsigned));
  }
  BatchNormBoard(void* memory, const BatchNormRows& rows)
      : parts(static_cast<Part*>(memory)),
        terms(reinterpret_cast<Terms*>(parts + rows.c * rows.chunks)),
        summed(reinterpret_cast<unsigned*>(terms + rows.c)),
        finished(summed + rows.c) {}

  // Whether this block's part is a channel's last one; its threads then see all of them.
  __device__ __forceinline__ bool add(int64_t c, int64_t chunks, int64_t chunk,
                                      const Part& part) const {
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
      parts[c * chunks + chunk] = part;
      __threadfence();
      is_last = atomicAdd(summed + c, 1u) == chunks - 1;
    }
    __syncthreads();
    if (is_last) __threadfence();
    return is_last;
  }
  __device__ __forceinline__ void finish(int64_t c, const Terms& of_c) const {
    terms[c] = of_c;
    __threadfence();
    atomicExch(finished + c, 1u);
  }
  __device__ __forceinline__ Terms wait(int64_t c) const {
    while (atomicAdd(finished + c, 0u) == 0) __nanosleep(100);
    __threadfence();
    return terms[c];
  }
};

// math    counts[i] = 0, and one batch more
// grid    one block
static __global__ void __launch_bounds__(kBatchNormThreads)
    batch_norm_clear_board(unsigned* counts, int64_t count, int64_t* batches) {
  wait_for_previous_kernel();
  start_next_kernel();
  for (int64_t i = threadIdx.x; i < count; i += kBatchNormThreads) counts[i] = 0;
  if (batches != nullptr && threadIdx.x == 0) ++*batches;
}

// math    forward  y = (x - mean)·rstd·gamma + beta
//         backward dx = gamma·rstd·(dy - m1 - (x - mean)·m2r), m2r = rstd·m2; training only
// grid    for each step a block per chunk of channel `step`, and one per slice of channel
//         `step` - lag. A block that waits for a channel waits for blocks of lower numbers, which
//         have started before it (as the scans of CUB rely on).
// passes  1 moments or sums of a chunk, 2 the channel's numbers, by the last block that has one,
//         3 a slice written
// bytes   fewest 2Eb and 3Eb, as long as L2 holds the inputs of `lag` channels
// smem    one part per warp, the channel's numbers
// order   part_of_range; a thread's chunks, lanes, warps: fixed by the plan
template <class Of, class Finish, int N>
__global__ void __launch_bounds__(kBatchNormThreads, Of::kInputs == 1 ? 4 : 3)
    batch_norm_waves(const Of of, typename Of::Element* __restrict__ to, const BatchNormRows plan,
                     const BatchNormWaves waves, const Finish f,
                     const BatchNormBoard<typename Of::Part, typename Finish::Terms> board) {
  using Part = typename Of::Part;
  using Terms = typename Finish::Terms;
  wait_for_previous_kernel();
  const int64_t step = waves.by_step.quotient(blockIdx.x);
  const int64_t block = blockIdx.x - step * waves.per_step;
  if (block >= plan.chunks) {
    const int64_t c = step - waves.lag;
    if (c < 0) return;
    const BatchNormRange range(plan, c, block - plan.chunks, plan.slice);
    write_range<N, Terms>(of, to, plan, range, L2Policy<Evict::first>(), true, [&](Terms& terms) {
      if (threadIdx.x == 0) terms = board.wait(c);
    });
    return;
  }
  const int64_t c = step;
  if (c >= plan.c) return;
  const BatchNormRange range(plan, c, block, plan.chunk);
  Part part = merge_block(part_of_range<N>(of, plan, range, L2Policy<Evict::last>()));
  if (!board.add(c, plan.chunks, block, part)) return;
  part = Part{};
  for (int64_t chunk = threadIdx.x; chunk < plan.chunks; chunk += kBatchNormThreads)
    part = merge(part, board.parts[c * plan.chunks + chunk]);
  part = merge_block(part);
  if (threadIdx.x == 0) board.finish(c, f.finish(c, part, true));
}

}  // namespace gradus
