// Reductions over one axis across x whose threads have all their rows at once.
#pragma once

#include "cuda/launch_kernel.cuh"
#include "cuda/reduce_column_packs.h"
#include "cuda/reduce_items.cuh"
#include "cuda/reduce_log_terms.cuh"

namespace gradus {

// How kReduceThreads threads share out packs of N columns: a power of two across and down.
template <int N, class A>
struct TurnBlock {
  static constexpr int kLeastPad = kFullPack<A>;
  int across, down;
  int pad;  // slots left free after N rows, so that neighbouring lanes that read different rows of
            // one column find them in different banks

  // kDown: as many down, or 0 for any.
  template <int kDown>
  __device__ __forceinline__ static TurnBlock of() {
    const int down = kDown != 0 ? kDown : static_cast<int>(blockDim.y);
    const int per_warp = kWarp * N >> (__ffs(down) - 1);  // columns, where all read N rows
    return {.across = kDown != 0 ? kReduceThreads / kDown : static_cast<int>(blockDim.x),
            .down = down,
            .pad = down > N ? max(per_warp, kLeastPad) : 0};
  }
  // The first slot of this thread's columns.
  __device__ __forceinline__ int slot() const {
    const int row = static_cast<int>(threadIdx.y);
    return (row * across + static_cast<int>(threadIdx.x)) * N + row / N * pad;
  }
};

// The parts of a block's columns, a row for each of the threads above each other.
template <class F, int N, class A>
struct TurnSlots {
  static constexpr int kFirst = [] {  // fields before it follow from the number of elements
    if constexpr (requires { F::kOfCount; }) return F::kOfCount;
    return 0;
  }();
  A of[F::kFields][kReduceThreads * N + kWarp * TurnBlock<N, A>::kLeastPad];
};

// Merges the parts that a block left in `slots` and calls use(column, part) for each column of the
// block. A thread joins N rows of a column, threads side by side have its other rows; where there
// are but few rows, a thread has several columns. Slot c is read by no thread but that of column c.
template <class F, int N, class A, class Use>
__device__ __forceinline__ void merge_turn(const TurnSlots<F, N, A>& slots,
                                           const TurnBlock<N, A>& block, const Use& use) {
  constexpr int kFirst = TurnSlots<F, N, A>::kFirst;
  const auto [across, down, pad] = block;
  const int width = across * N, groups = max(down / N, 1);
  const int thread = static_cast<int>(threadIdx.y) * across + static_cast<int>(threadIdx.x);
  const int group = thread & (groups - 1), shift = __ffs(groups) - 1;
  for (int c = thread >> shift; c < width; c += kReduceThreads >> shift) {
    const auto load = [&](int row) {
      PartOf<F, A> part;
#pragma unroll
      for (int k = 0; k < F::kFields; ++k) {
        part.v[k] = k < kFirst ? A(detail::kLeastRows)
                               : slots.of[k][(group * N + row) * width + group * pad + c];
      }
      return part;
    };
    PartOf<F, A> part;
    if (down >= N) {
      PartOf<F, A> rows[N];
#pragma unroll
      for (int row = 0; row < N; ++row) rows[row] = load(row);
      part = join_parts<F, A>(rows);
    } else {
      part = load(0);
      for (int row = 1; row < down; ++row) part = F::template merge<DeviceMath>(part, load(row));
    }
    for (int mask = 1; mask < groups; mask *= 2) {
      const PartOf<F, A> other = detail::shuffle_xor(part, mask);
      const bool is_upper = (group & mask) != 0;
      const PartOf<F, A> both[2] = {is_upper ? other : part, is_upper ? part : other};
      part = join_parts<F, A>(both);
    }
    if (group == 0) use(c, part);
  }
}

// Reductions whose instructions take as long as memory.
template <class F, class T>
inline constexpr bool kManyInstructions = std::is_same_v<F, reductions::LogSumExp> &&
                                          sizeof(T) == 2;

// Stores what describe(j) has of each column j of a thread, from `slot` on.
template <class F, int N, class A, class Describe>
__device__ __forceinline__ void store_columns(TurnSlots<F, N, A>& slots, int slot,
                                              const Describe& describe) {
  constexpr int kColumns = kFullPack<A>;
#pragma unroll
  for (int j = 0; j < N; j += kColumns) {
    PartOf<F, A> parts[kColumns];
#pragma unroll
    for (int h = 0; h < kColumns; ++h) parts[h] = describe(j + h);
    store_parts<F, TurnSlots<F, N, A>::kFirst>(slots.of, slot + j, parts);
  }
}

// The same of the rows of a thread.
template <class F, int N, int U, class T, class A>
__device__ __forceinline__ void store_rows(TurnSlots<F, N, A>& slots, int slot,
                                           const Pack<T, N> (&rows)[U]) {
  if constexpr (kManyInstructions<F, T>) {
    const LogTerms<T, U, N> terms(rows);
    if (terms.are_usual()) {
      return store_columns(slots, slot, [&](int j) { return terms.usual_part(j); });
    }
  }
  store_columns(slots, slot, [&](int j) {
    A values[U];
    column_values(values, rows, j);
    return F::template of<StoredMath<T>>(values);
  });
}

// math:   y[o] = the reduction of eight rows for each of the threads above each other
// grid:   packs of columns, chunks of rows
// passes: 1
// bytes:  fewest = actual, beside one part per chunk
// smem:   a part per column and thread
// needs:  what ColumnPacks takes, chunks of eight rows per thread; kDown as TurnBlock has it; no
//         stack (bench/log_reduce.md)
// order:  eight rows of a thread as F::of has them, N threads above each other by F::join, then
//         pairwise; fewer than N one after the other
template <class F, int N, int kDown, class T>
__global__ void __launch_bounds__(kReduceThreads, 3)
    reduce_forward_turn(const T* x, const __grid_constant__ ColumnPacks<1> packs,
                        const ReduceOutput<T> output) {
  using A = acc_t<T>;
  constexpr int kRows = detail::kLeastRows;
  __shared__ alignas(16) TurnSlots<F, N, A> slots;
  const auto block = TurnBlock<N, A>::template of<kDown>();
  const uint32_t pack = blockIdx.x * block.across + threadIdx.x;
  const T* from = x + packs.place<N>(0, pack, blockIdx.y * block.down * kRows + threadIdx.y);
  const int64_t step = block.down * packs.row[0];
  wait_for_previous_kernel();
  start_next_kernel();
  if (pack < packs.count) {
    Pack<T, N> rows[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u, from += step) rows[u] = load_pack_once<N>(from);
    store_rows(slots, block.slot(), rows);
  }
  __syncthreads();
  const uint32_t first = blockIdx.x * block.across * N, outputs = packs.count * N;
  merge_turn(slots, block, [&](int c, const PartOf<F, A>& part) {
    const uint32_t o = first + c;
    if (o >= outputs) return;
    if (output.partial != nullptr) {
      output.template write_partial<F>(gridDim.y, outputs, blockIdx.y, o, part);
    } else {
      output.template write<F>(o, part);
    }
  });
}

// Launches the kernel if it takes this plan, or returns false.
template <class F, int N, class T>
bool launch_reduce_turn(Cuda& cuda, const T* x, const ReducePlan<1>& plan,
                        const ReduceOutput<T>& output, std::string_view op) {
  if constexpr (N > 1) {
    if (!takes_turns(plan, N)) return false;
    const ColumnPacks<1> packs(plan);
    const unsigned blocks = exact_blocks(ceil_div(packs.count, plan.block_x), op);
    const int down = kReduceThreads / plan.block_x;
    auto* kernel = reduce_forward_turn<F, N, 0, T>;
    if constexpr (kManyInstructions<F, T>) {
      if (down == 8) kernel = reduce_forward_turn<F, N, 8, T>;
      if (down == 16) kernel = reduce_forward_turn<F, N, 16, T>;
    }
    launch_overlapping(cuda,
                       {.grid = dim3(blocks, static_cast<unsigned>(plan.chunks)),
                        .threads = plan.block_x,
                        .rows = down},
                       kernel, x, packs, output);
    return true;
  } else {
    return false;
  }
}

}  // namespace gradus
