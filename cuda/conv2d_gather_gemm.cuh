// The kernel behind conv2d forward and backward to the input, for any stride, padding, dilation and
// groups, and its launcher. Instantiated per dtype in conv2d_gather_*.cu.
#pragma once

#include "cuda/conv2d_kernels.h"
#include "cuda/device/conv2d_tile.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// Bias, conversion and coalesced stores of the tile in `staging`.
template <class T, class Tile>
__device__ __forceinline__ void store_tile(const GatherGemm& p, const acc_t<T>* staging, int pitch,
                                           int64_t m0, int column0, int group) {
  constexpr int kPerRow = Tile::kColumns / kFullPack<T>;
  const auto* bias = static_cast<const acc_t<T>*>(p.bias);
  for (int v = threadIdx.x; v < Tile::kRows * kPerRow; v += Tile::kThreads) {
    const int row = v / kPerRow, first = v % kPerRow * kFullPack<T>, column = column0 + first;
    if (m0 + row >= p.gather.out.pixels || column >= p.columns) continue;
    const int64_t channel = static_cast<int64_t>(group) * p.columns + column;
    T* to = static_cast<T*>(p.out) + (m0 + row) * p.groups * p.columns + channel;
    Pack<T, kFullPack<T>> values;
#pragma unroll
    for (int e = 0; e < kFullPack<T>; ++e) {
      acc_t<T> value = staging[row * pitch + first + e];
      if (bias != nullptr && column + e < p.columns) value += bias[channel + e];
      values[e] = static_cast<T>(value);
    }
    if (p.vector_out) {
      store_pack(to, values);
    } else {
#pragma unroll
      for (int e = 0; e < kFullPack<T>; ++e) {
        if (column + e < p.columns) to[e] = values[e];
      }
    }
  }
}

// math    out[m][k] = bias[k] + Σ_{r,s,c} in[m ⊕ (r, s)][c] · weights[k][r, s, c]
// grid    one block per tile of kRows pixels x kColumns channels of a group; channel tiles fastest
// passes  one; the reduction in slices of 128 bytes, copied Stages - 1 slices ahead
// bytes   fewest: in, weights and out once; actual: in once per tap, nearly all from caches
// smem    Stages x (kRows + kColumns) x 128 bytes, reused to write out whole rows
// needs   channels a multiple of 16 bytes, in and weights 16-byte aligned
// order   each output is summed by one thread, in the order (r, s, c)
template <class T, class Tile, int Stages, bool Divided>
__global__ void __launch_bounds__(Tile::kThreads)
    conv2d_gather_gemm(const __grid_constant__ GatherGemm p) {
  constexpr int kStep = Tile::kThreads / 8;  // rows that all threads together fill in one go
  constexpr int kStageBytes = (Tile::kRows + Tile::kColumns) * 128;
  static_assert(kStep % 8 == 0 && Tile::kRows % kStep == 0 && Tile::kColumns % kStep == 0);

  const int64_t tile = blockIdx.x / p.column_tiles;
  const int column0 = blockIdx.x % p.column_tiles * Tile::kColumns;
  const int group = static_cast<int>(tile % p.groups);
  const int64_t m0 = tile / p.groups * Tile::kRows;
  const int row = threadIdx.x / 8;
  unsigned char* const shared = dynamic_shared();

  const GatherRows<T, Tile::kRows / kStep, kStep, Divided> rows(p, m0 + row, group);
  const T* const weights = static_cast<const T*>(p.weights) +
                           (static_cast<int64_t>(group) * p.columns + column0 + row) * p.depth;
  TapCursor cursor(p, threadIdx.x % 8 * kFullPack<T>);
  int at = threadIdx.x % 8 * kFullPack<T>;

  const auto load = [&](int stage) {
    const uint32_t a = shared_address(shared + stage * kStageBytes), b = a + Tile::kRows * 128;
    rows.load(p, cursor, a, row);
#pragma unroll
    for (int i = 0; i < Tile::kColumns / kStep; ++i) {
      const bool valid = at < p.depth && column0 + row + i * kStep < p.columns;
      const int64_t from = valid ? static_cast<int64_t>(i) * kStep * p.depth + at : 0;
      copy_async(b + swizzled(row + i * kStep, threadIdx.x % 8),
                 valid ? weights + from : static_cast<const T*>(p.weights), valid);
    }
    cursor.advance(p, kChunk<T>);
    at += kChunk<T>;
  };

  const int slices = (p.depth + kChunk<T> - 1) / kChunk<T>;
  for (int i = 0; i < Stages - 1; ++i) {
    if (i < slices) load(i);
    commit_copies();
  }
  Tile product;
  int stage = 0, next = Stages - 1;
  for (int i = 0; i < slices; ++i) {
    wait_copies<Stages - 2>();
    __syncthreads();
    if (i + Stages - 1 < slices) load(next);
    commit_copies();
    const unsigned char* a = shared + stage * kStageBytes;
    product.multiply(a, a + Tile::kRows * 128);
    stage = stage + 1 == Stages ? 0 : stage + 1;
    next = next + 1 == Stages ? 0 : next + 1;
  }
  wait_copies<0>();
  __syncthreads();

  auto* staging = reinterpret_cast<acc_t<T>*>(shared);
  product.put(staging, Tile::kColumns + 8);
  __syncthreads();
  store_tile<T, Tile>(p, staging, Tile::kColumns + 8, m0, column0, group);
}

template <class T, class Tile, int Stages, bool Divided>
void launch_gather_gemm(Cuda& cuda, GatherGemm p) {
  constexpr size_t kCopies = Stages * (Tile::kRows + Tile::kColumns) * 128;
  constexpr size_t kStaging = Tile::kRows * (Tile::kColumns + 8) * sizeof(acc_t<T>);
  p.column_tiles = (p.columns + Tile::kColumns - 1) / Tile::kColumns;
  const int64_t row_tiles = (p.gather.out.pixels + Tile::kRows - 1) / Tile::kRows;
  const int64_t blocks = row_tiles * p.groups * p.column_tiles;
  launch_kernel(cuda,
                {dim3(exact_blocks(blocks, "conv2d")), Tile::kThreads, std::max(kCopies, kStaging)},
                conv2d_gather_gemm<T, Tile, Stages, Divided>, p);
}

}  // namespace gradus
