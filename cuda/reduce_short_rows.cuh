// Reductions of short rows that lie one behind the other and that no 16-byte access divides: a
// block copies a run of rows to shared memory, and a few lanes work on each there.
#pragma once

#include "cuda/device/run.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/reduce_items.cuh"
#include "cuda/reduce_short_rows_plan.h"

namespace gradus {

// The values from `from` on, `lanes` apart, merged into a part.
template <class F, int U, class T>
__device__ __forceinline__ void take_values(PartOf<F, acc_t<T>>& part, const T* from, int lanes) {
  acc_t<T> values[U];
#pragma unroll
  for (int u = 0; u < U; ++u) values[u] = load_raw<1>(from + u * lanes)[0];
  part = F::template merge<DeviceMath>(part, F::template of<StoredMath<T>>(values));
}

// math:   y[o] = the reduction of row o
// grid:   1-D, a block per plan.rows rows
// bytes:  fewest = actual
// smem:   the rows
// order:  a lane's values, lanes apart, in groups of up to 8, then lanes pairwise
template <class F, class T>
__global__ void __launch_bounds__(kReduceThreads, 4)
    reduce_forward_short_rows(const T* x, const ReduceShortRows plan,
                              const ReduceOutput<T> output) {
  using A = acc_t<T>;
  const int thread = static_cast<int>(threadIdx.x), lanes = plan.lanes, c = plan.c;
  const int64_t first = int64_t{blockIdx.x} * plan.rows;
  const auto rows = static_cast<int>(min(int64_t{plan.rows}, plan.outputs - first));
  const T* const from = x + first * c;
  T* const held = reinterpret_cast<T*>(dynamic_shared()) + place_in_pack(from);
  wait_for_previous_kernel();
  hold_run(held, from, rows * c);
  finish_copies();
  start_next_kernel();
  const int lane = thread & (lanes - 1);
  for (int row = thread / lanes; row < plan.rows; row += kReduceThreads / lanes) {
    PartOf<F, A> part = F::template identity<A>();
    int i = row < rows ? lane : c;
    const T* const values = held + row * c;
    for (; i + 7 * lanes < c; i += 8 * lanes) take_values<F, 8>(part, values + i, lanes);
    if (i + 3 * lanes < c) {
      take_values<F, 4>(part, values + i, lanes);
      i += 4 * lanes;
    }
    for (; i < c; i += lanes) take_values<F, 1>(part, values + i, lanes);
    for (int mask = 1; mask < lanes; mask *= 2) {
      const PartOf<F, A> other = detail::shuffle_xor(part, mask);
      part = (lane & mask) != 0 ? F::template merge<DeviceMath>(other, part)
                                : F::template merge<DeviceMath>(part, other);
    }
    if (lane == 0 && row < rows) output.template write<F>(first + row, part);
  }
}

// Launches it where it suits; else false.
template <class F, class T>
bool launch_reduce_short_rows(Cuda& cuda, const T* x, const ReducePlan<1>& plan,
                              const ReduceOutput<T>& output, std::string_view op) {
  const ReduceShortRows rows = plan_reduce_short_rows(plan, sizeof(T));
  if (rows.outputs == 0) return false;
  const LaunchShape shape{.grid = exact_blocks(ceil_div(rows.outputs, int64_t{rows.rows}), op),
                          .threads = kReduceThreads,
                          .shared_bytes = static_cast<size_t>(rows.shared_bytes),
                          .carveout = cudaSharedmemCarveoutMaxShared};
  launch_overlapping(cuda, shape, reduce_forward_short_rows<F, T>, x, rows, output);
  return true;
}

}  // namespace gradus
