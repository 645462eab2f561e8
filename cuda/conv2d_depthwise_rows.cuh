// Depthwise conv2d on Hopper with a stride of 1, forward and the gradient of the input: what the
// kernels share, and the one for f32.
//
// A block has 128 bytes of channels of up to 32 neighbouring columns of outputs and walks down rows
// of an image. The copy engine brings each row of the input with its halo into a ring in shared
// memory, zeros outside the image: the kernels know no border.
#pragma once

#include <cuda.h>

#include "cuda/device/quotient.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// out[n, i, j, c] = bias[c] + Σ_{r, s} in[n, i + r - pad_h, j + s - pad_w, c] · weights[c][r, s]
struct DepthwiseWalk {
  CUtensorMap in;      // [n, h, w, channels], boxes of columns + 2 pixels of a row x 128 bytes
  CUtensorMap out;     // likewise, of columns pixels
  void* to = nullptr;  // `out` itself
  const void* weights = nullptr;  // [channels, 3, 3]
  const float* bias = nullptr;    // [channels]; or null
  bool flipped = false;           // the filter is turned round
  int channels = 0, out_h = 0, out_w = 0, pad_h = 0, pad_w = 0;
  int rows = 1;  // of outputs of a block
  FastDivisor row_tiles, column_tiles, channel_tiles;
};

// What a block has: rows i0 .. i0 + rows of outputs of image n, columns from j0, channels from c0.
template <class T, int Columns>
struct DepthwiseWalkBlock {
  int n, i0, j0, c0, rows;

  __device__ __forceinline__ explicit DepthwiseWalkBlock(const DepthwiseWalk& p) {
    uint32_t rest = blockIdx.x;
    const auto take = [&](const FastDivisor& tiles) {
      const uint32_t whole = tiles.quotient(rest), tile = rest - whole * tiles.divisor;
      rest = whole;
      return static_cast<int>(tile);
    };
    c0 = take(p.channel_tiles) * (128 / static_cast<int>(sizeof(T)));
    j0 = take(p.column_tiles) * Columns;
    i0 = take(p.row_tiles) * p.rows;
    n = static_cast<int>(rest);
    rows = min(p.rows, p.out_h - i0);
  }
};

// The rows of the input, vectors of a pixel swizzled as the copy engine does. Thread 0 starts the
// copies; a place is filled again behind a barrier of the block that follows its last read.
template <class T, int Columns>
struct DepthwiseRowRing {
  static constexpr int kRows = 6;  // all but one of which are under way
  static constexpr int kBoxBytes = (Columns + 2) * 128;
  static constexpr int kRowBytes = (kBoxBytes + 1023) / 1024 * 1024;
  static constexpr int kBytes = kRows * (kRowBytes + 8);

  const DepthwiseWalk& p;
  const DepthwiseWalkBlock<T, Columns>& block;
  uint32_t base;  // a multiple of 1024; the barriers lie behind the rows
  int place = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ DepthwiseRowRing(const DepthwiseWalk& problem,
                                              const DepthwiseWalkBlock<T, Columns>& of,
                                              uint32_t address)
      : p(problem), block(of), base(address) {}

  __device__ __forceinline__ SharedBarrier full(int i) const {
    return {base + kRows * kRowBytes + 8 * i};
  }
  __device__ __forceinline__ int in_rows() const { return block.rows + 2; }
  __device__ __forceinline__ void copy(int row, int to) const {
    full(to).arrive_expecting(kBoxBytes);
    copy_image(base + to * kRowBytes, p.in, full(to), block.c0, block.j0 - p.pad_w,
               block.i0 - p.pad_h + row, block.n);
  }

  // Starts the first copies. They are on their way to the second-level cache while the kernel
  // before ends.
  __device__ __forceinline__ void start() const {
    start_next_kernel();
    const int first = min(kRows, in_rows());
    if (threadIdx.x == 0) {
      for (int row = 0; row < first; ++row) {
        prefetch_image(p.in, block.c0, block.j0 - p.pad_w, block.i0 - p.pad_h + row, block.n);
      }
      for (int i = 0; i < kRows; ++i) full(i).open(1);
      publish_barriers();
    }
    wait_for_previous_kernel();
    if (threadIdx.x == 0) {
      for (int row = 0; row < first; ++row) copy(row, row);
    }
    __syncthreads();
  }
  // Where the next row lies, when it is there.
  __device__ __forceinline__ uint32_t take() const {
    full(place).wait(parity);
    return base + place * kRowBytes;
  }
  // When all threads have read it; it was row `row` of the input.
  __device__ __forceinline__ void refill(int row) {
    if (threadIdx.x == 0 && row + kRows < in_rows()) copy(row + kRows, place);
    if (++place == kRows) place = 0, parity ^= 1;
  }
};

// Where a kernel's shared memory starts, at a multiple of 1024, and what the ring takes of it.
__device__ __forceinline__ uint32_t depthwise_rows_base() {
  return (shared_address(dynamic_shared()) + 1023) / 1024 * 1024;
}
template <class T, int Columns>
inline constexpr int kDepthwiseRowsShared = DepthwiseRowRing<T, Columns>::kBytes + 1024;

// f(row, turn) for each row of the input, turn = row % 3. Row `row` of the outputs begins with it
// and takes its turn; row - 2, whose turn is the next one's, ends.
template <class F>
__device__ __forceinline__ void walk_depthwise_rows(int rows, const F& f) {
  for (int row = 0; row < rows; row += 3) {
    f(row, std::integral_constant<int, 0>{});
    if (row + 1 < rows) f(row + 1, std::integral_constant<int, 1>{});
    if (row + 2 < rows) f(row + 2, std::integral_constant<int, 2>{});
  }
}

// A thread's 4 channels of a column.
struct DepthwiseFloats {
  static constexpr int V = 4;
  float weights[V * 9] = {}, bias[V] = {};
  uint32_t offsets[3];    // of the column's pixels in a row of the ring
  float sums[3][V] = {};  // of the output rows that a row of the input is part of, in turn

  __device__ __forceinline__ DepthwiseFloats(const DepthwiseWalk& p, int c, int column,
                                             int vector) {
#pragma unroll
    for (int s = 0; s < 3; ++s) {
      offsets[s] = (column + s) * 128 + ((vector ^ ((column + s) & 7)) << 4);
    }
    if (c >= p.channels) return;
    const float* const from = static_cast<const float*>(p.weights) + static_cast<int64_t>(c) * 9;
    load_values<V * 9>(weights, from);
    if (p.flipped) {
#pragma unroll
      for (int e = 0; e < V; ++e) {
#pragma unroll
        for (int tap = 0; tap < 4; ++tap) {
          const float first = weights[e * 9 + tap];
          weights[e * 9 + tap] = weights[e * 9 + 8 - tap], weights[e * 9 + 8 - tap] = first;
        }
      }
    }
    if (p.bias == nullptr) return;
#pragma unroll
    for (int e = 0; e < V; ++e) bias[e] = p.bias[c + e];
  }

  // Adds a row of the input; sums[Turn] are those of the output row that it begins.
  template <int Turn>
  __device__ __forceinline__ void add(const unsigned char* row) {
#pragma unroll
    for (int e = 0; e < V; ++e) sums[Turn][e] = bias[e];
#pragma unroll
    for (int s = 0; s < 3; ++s) {
      const auto x = load_pack<V>(reinterpret_cast<const float*>(row + offsets[s]));
#pragma unroll
      for (int r = 0; r < 3; ++r) {
#pragma unroll
        for (int e = 0; e < V; ++e)
          sums[(Turn + 3 - r) % 3][e] += x[e] * weights[e * 9 + r * 3 + s];
      }
    }
  }
};

// math    as at DepthwiseWalk
// grid    blocks for tiles of channels (fastest), of columns and of rows, and images
// passes  one; a thread has 4 channels of a column
// bytes   in once, two rows of it again for each tile of rows, out once
// smem    the ring
// needs   channels a multiple of 4, the filters aligned to 16 bytes
// order   each output is summed by one thread, in the order (r, s)
template <int Columns>
__global__ void __launch_bounds__(Columns * 8, 96 / Columns)
    conv2d_depthwise_rows(const __grid_constant__ DepthwiseWalk p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const DepthwiseWalkBlock<float, Columns> block(p);
  const uint32_t base = depthwise_rows_base();
  const unsigned char* const shared = dynamic_shared() + (base - shared_address(dynamic_shared()));
  DepthwiseRowRing<float, Columns> ring(p, block, base);
  ring.start();
  const int vector = threadIdx.x % 8, column = threadIdx.x / 8, c = block.c0 + vector * 4;
  DepthwiseFloats floats(p, c, column, vector);
  const int64_t pitch = static_cast<int64_t>(p.out_w) * p.channels;
  float* out = static_cast<float*>(p.to) +
               (static_cast<int64_t>(block.n) * p.out_h + block.i0) * pitch +
               static_cast<int64_t>(block.j0 + column) * p.channels + c;
  const bool exists = c < p.channels && block.j0 + column < p.out_w;
  walk_depthwise_rows(ring.in_rows(), [&](int row, auto turn) {
    constexpr int kTurn = decltype(turn)::value;
    floats.add<kTurn>(shared + (ring.take() - base));
    __syncthreads();
    ring.refill(row);
    if (row < 2) return;
    if (exists) store_rounded(out, floats.sums[(kTurn + 1) % 3]);
    out += pitch;
  });
#endif
}

}  // namespace gradus
