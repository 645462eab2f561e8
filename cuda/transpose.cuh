// Batches of matrices copied so that their rows become columns, as between NCHW and channels-last.
#pragma once

#include <string_view>

#include "cuda/context.h"
#include "cuda/device/strided_plan.h"
#include "cuda/device/vector.cuh"
#include "cuda/plan.h"

namespace gradus {

// The rows of a matrix lie together in x, its columns in y.
struct Transpose {
  int64_t rows = 0, columns = 0;
  int64_t x_row_stride = 0, y_column_stride = 0;
  StridedPlan<2> batch;  // offsets of a matrix in y and in x
};

// Where a block's tile of a matrix begins; rows of tiles are walked fastest, then columns.
struct TransposeTile {
  int64_t matrix, row, column;
};

struct TransposeTiles {
  int64_t rows, columns;  // of a tile
  int64_t down, across;   // tiles of a matrix

  TransposeTiles(const Transpose& p, int64_t tile_rows, int64_t tile_columns)
      : rows(tile_rows),
        columns(tile_columns),
        down(ceil_div(p.rows, tile_rows)),
        across(ceil_div(p.columns, tile_columns)) {}

  __device__ __forceinline__ TransposeTile at(int64_t block) const {
    const int64_t matrix = block / (down * across), tile = block - matrix * (down * across);
    const int64_t column = tile / down;
    return {matrix, (tile - column * down) * rows, column * columns};
  }
};

inline constexpr int kTransposeSide = 32;
inline constexpr int kTransposeRows = 8;  // of a tile, that a block's threads take at a time
inline constexpr int kTransposeThreads = kTransposeSide * kTransposeRows;
inline constexpr int kTransposePack = 4;

// grid:  1-D, one block per tile of 32 x 32
// bytes: fewest = actual: each element is read once and written once, both along its line
// smem:  32 x 33 words; the 33rd column keeps the transposed access free of bank conflicts
template <class Word>
__global__ void __launch_bounds__(kTransposeThreads)
    transpose_in_shared_memory(Word* __restrict__ y, const Word* __restrict__ x,
                               const __grid_constant__ Transpose p,
                               const __grid_constant__ TransposeTiles tiles) {
  __shared__ Word tile[kTransposeSide][kTransposeSide + 1];
  const TransposeTile first = tiles.at(blockIdx.x);
  const StridedOffsets<2> at = p.batch.offsets(first.matrix);
  const int lane = threadIdx.x % kTransposeSide, line = threadIdx.x / kTransposeSide;
  // 1 read along the rows of x
  for (int i = line; i < kTransposeSide; i += kTransposeRows) {
    if (first.row + i < p.rows && first.column + lane < p.columns) {
      tile[i][lane] = x[at.at[1] + (first.row + i) * p.x_row_stride + first.column + lane];
    }
  }
  __syncthreads();
  // 2 write along the columns, which y has together
  for (int i = line; i < kTransposeSide; i += kTransposeRows) {
    if (first.row + lane < p.rows && first.column + i < p.columns) {
      y[at.at[0] + (first.column + i) * p.y_column_stride + first.row + lane] = tile[lane][i];
    }
  }
}

// A thread turns 4 x 4 elements in its registers; a warp reads runs of 32 elements and writes runs
// of 16, whole sectors of memory.
//
// grid:  1-D, a block per tile; a warp has 16 rows x 32 columns of it
// bytes: fewest = actual
// needs: rows, columns and strides multiples of 4; x and y aligned to 4 elements
template <class Word>
__global__ void __launch_bounds__(kTransposeThreads)
    transpose_in_registers(Word* __restrict__ y, const Word* __restrict__ x,
                           const __grid_constant__ Transpose p,
                           const __grid_constant__ TransposeTiles tiles) {
  constexpr int N = kTransposePack;
  const TransposeTile first = tiles.at(blockIdx.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warps_down = static_cast<int>(tiles.rows) / (4 * N);
  const int64_t row = first.row + warp % warps_down * (4 * N) + lane / 8 * N;
  const int64_t column = first.column + warp / warps_down * (8 * N) + lane % 8 * N;
  if (row >= p.rows || column >= p.columns) return;
  const StridedOffsets<2> at = p.batch.offsets(first.matrix);
  Pack<Word, N> in[N];
#pragma unroll
  for (int i = 0; i < N; ++i)
    in[i] = load_pack<N>(x + at.at[1] + (row + i) * p.x_row_stride + column);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    Pack<Word, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = in[i][j];
    store_pack(y + at.at[0] + (column + j) * p.y_column_stride + row, out);
  }
}

// Whether transpose_in_registers() can take it.
template <class Word>
bool is_packed(const Transpose& p, const Word* y, const Word* x) {
  constexpr int N = kTransposePack;
  bool packed =
      pack_width(sizeof(Word), {y, x}, {p.rows, p.columns, p.x_row_stride, p.y_column_stride}) >= N;
  for (int axis = 0; axis < p.batch.rank; ++axis) {
    for (int t = 0; t < 2; ++t) packed = packed && p.batch.strides[t][axis] % N == 0;
  }
  return packed;
}

template <class Word>
void transpose(Cuda& cuda, std::string_view op, Word* y, const Word* x, const Transpose& p) {
  const auto launch = [&](auto kernel, const TransposeTiles& tiles) {
    const int64_t blocks = p.batch.count * tiles.down * tiles.across;
    kernel<<<exact_blocks(blocks, op), kTransposeThreads, 0, cuda.stream()>>>(y, x, p, tiles);
  };
  if constexpr (sizeof(Word) == 2 || sizeof(Word) == 4) {
    if (is_packed(p, y, x)) {
      const int64_t rows = p.columns <= 32 ? 128 : p.rows <= 32 ? 32 : 64;
      return launch(transpose_in_registers<Word>, {p, rows, 4096 / rows});
    }
  }
  launch(transpose_in_shared_memory<Word>, {p, kTransposeSide, kTransposeSide});
}

}  // namespace gradus
