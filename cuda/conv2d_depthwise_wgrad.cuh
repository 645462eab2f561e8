// Depthwise conv2d's weight gradient: see conv2d_depthwise.cuh.
#pragma once

#include "cuda/conv2d_depthwise.cuh"

namespace gradus {

// Weight gradient: partials[slice][r, s][c] = Σ dy[m][c] · x[m ⊕ (r, s)][c]
struct DepthwiseWgrad {
  DepthwiseShape shape;
  const void* x = nullptr;
  const void* dy = nullptr;
  float* partials = nullptr;   // [slices, 9, channels]
  float* bias_sums = nullptr;  // [slices, channels]; or null
};

// Adds the strips' sums in order and writes them: [tap][channel], a tenth one to the bias's.
template <class T, int Sums>
__device__ __forceinline__ void store_depthwise(const DepthwiseWgrad& p,
                                                const DepthwisePlace<T>& block,
                                                const float (&sums)[Sums][kDepthwisePack<T>]) {
  constexpr int V = kDepthwisePack<T>, kWidth = kDepthwiseLanes * V;
  float* const mail = reinterpret_cast<float*>(dynamic_shared());
  const int lane = threadIdx.x % kDepthwiseLanes, strip = threadIdx.x / kDepthwiseLanes;
#pragma unroll
  for (int tap = 0; tap < Sums; ++tap) {
    Pack<float, V> pack;
#pragma unroll
    for (int e = 0; e < V; ++e) pack[e] = sums[tap][e];
    store_pack(mail + (strip * Sums + tap) * kWidth + lane * V, pack);
  }
  __syncthreads();
  const int64_t column_tile = block.j0 / p.shape.columns;
  const int64_t slice = block.slice * p.shape.column_tiles.divisor + column_tile;
  float* const out = p.partials + slice * 9 * p.shape.channels + block.c0;
  for (int e = threadIdx.x; e < Sums * kWidth; e += blockDim.x) {
    const int tap = e / kWidth, c = e % kWidth;
    if (block.c0 + c >= p.shape.channels) continue;
    float sum = 0;
    for (int other = 0; other < static_cast<int>(blockDim.x) / kDepthwiseLanes; ++other) {
      sum += mail[other * Sums * kWidth + e];
    }
    if (Sums > 9 && tap == 9) {
      p.bias_sums[slice * p.shape.channels + block.c0 + c] = sum;
    } else {
      out[static_cast<int64_t>(tap) * p.shape.channels + c] = sum;
    }
  }
}

// math    as at DepthwiseWgrad; Bias: bias_sums[slice][c] = Σ dy[m][c]
// grid    blocks for runs of rows of all images, tiles of columns and of channels (fastest); each
//         run of rows and tile of columns is a slice
// bytes   dy once, x once and its halo again from caches, partials
// smem    the ring, and one of rows of dy; afterwards the threads' sums
// order   rows of a thread in order, then the strips; slices are added by conv2d_reduce
template <class T, int Stride, bool Bias>
__global__ void __launch_bounds__(kDepthwiseThreads)
    conv2d_depthwise_wgrad(const __grid_constant__ DepthwiseWgrad p) {
  wait_for_previous_kernel();
  start_next_kernel();
  using Ring = DepthwiseRing<T, Stride, kDepthwiseWgradStrip>;
  constexpr int V = kDepthwisePack<T>, kStrip = kDepthwiseWgradStrip;
  const DepthwisePlace<T> block(p.shape);
  const int lane = threadIdx.x % kDepthwiseLanes, strip = threadIdx.x / kDepthwiseLanes;
  unsigned char* const shared = dynamic_shared();
  const int dy_bytes = p.shape.columns * kDepthwisePixel;
  unsigned char* const dy_slots = shared + Ring::kSlots * Ring::width(p.shape) * kDepthwisePixel;
  const unsigned char* const mine = shared + strip * kStrip * Stride * kDepthwisePixel + lane * 8;
  const unsigned char* const dy_mine = dy_slots + strip * kStrip * kDepthwisePixel + lane * 8;
  float sums[9 + Bias][V] = {};  // the last one of dy alone
  // Beyond the last column dy is 0, but x there may be infinite.
  const int outputs = p.shape.out_w - block.j0 - strip * kStrip;
  for (int64_t row = block.begin; row < block.end;) {
    const int64_t n = quotient(p.shape.height, row);
    const int i0 = static_cast<int>(row - n * p.shape.out_h);
    const int i1 = static_cast<int>(min(static_cast<int64_t>(p.shape.out_h), i0 + block.end - row));
    row += i1 - i0;
    Ring ring(p.shape, p.x, n, i0, i1, block.j0, block.c0, shared_address(shared));
    DepthwiseRows<T, kStrip / 2> dy_rows(
        static_cast<const T*>(p.dy) + n * p.shape.out_h * p.shape.out_w * p.shape.channels,
        p.shape.out_w, p.shape.channels, block.c0, i0, block.j0, p.shape.columns,
        shared_address(dy_slots));
    int i_next = i0, dy_fill = 0, dy_at = 0;
    const auto dy_after = [&](int at) { return at == Ring::kAhead * dy_bytes ? 0 : at + dy_bytes; };
    const auto copy_dy = [&] {
      if (i_next++ < i1) dy_rows.copy(dy_fill, true);
      dy_fill = dy_after(dy_fill);
      commit_copies();
    };
    __syncthreads();  // the image before has been read
    ring.template copy<3>();
    copy_dy();
#pragma unroll
    for (int k = 1; k < Ring::kAhead; ++k) {
      ring.template copy<Stride>();
      copy_dy();
    }
    for (int i = i0; i < i1; ++i) {
      wait_copies<Ring::kAhead - 1>();
      __syncthreads();
      ring.template copy<Stride>();
      copy_dy();
      float dy[kStrip][V];
#pragma unroll
      for (int q = 0; q < kStrip; ++q)
        read_depthwise<T>(dy[q], dy_mine + dy_at + q * kDepthwisePixel);
      dy_at = dy_after(dy_at);
      if constexpr (Bias) {
#pragma unroll
        for (int q = 0; q < kStrip; ++q) {
#pragma unroll
          for (int e = 0; e < V; ++e) sums[9][e] += dy[q][e];
        }
      }
#pragma unroll
      for (int r = 0; r < 3; ++r) {
        const unsigned char* from = mine + ring.after(ring.first, r);
#pragma unroll
        for (int column = 0; column < Ring::kColumns; ++column) {
          float x[V];
          read_depthwise<T>(x, from + column * kDepthwisePixel);
#pragma unroll
          for (int q = 0; q < kStrip; ++q) {
            const int s = column - q * Stride;
            if (s < 0 || s > 2 || q >= outputs) continue;
#pragma unroll
            for (int e = 0; e < V; ++e) sums[r * 3 + s][e] += dy[q][e] * x[e];
          }
        }
      }
      ring.first = ring.after(ring.first, Stride);
    }
    wait_copies<0>();
  }
  __syncthreads();
  store_depthwise<T>(p, block, sums);
}

}  // namespace gradus
