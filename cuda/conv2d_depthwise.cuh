// Depthwise conv2d of channels-last tensors with 3 x 3 filters: one filter per channel, three
// directions.
//
// A block walks down rows of outputs, `columns` of them wide, in 128 bytes of channels. A ring in
// shared memory has the rows of the input that an output row needs; those of later output rows are
// under way. A thread has 8 bytes of channels of 4 neighbouring columns.
#pragma once

#include "core/dtype.h"
#include "cuda/device/conv2d_halo.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

inline constexpr int kDepthwisePixel = 128;  // bytes of channels of a block
inline constexpr int kDepthwiseLanes = 16;   // threads that share a pixel
inline constexpr int kDepthwiseStrip = 4;    // columns of a thread
inline constexpr int kDepthwiseMostStrips = 8;
inline constexpr int kDepthwiseFilterBytes =
    9 * kDepthwiseLanes * 4 * static_cast<int>(sizeof(float));
template <class T>
inline constexpr int kDepthwisePack = 8 / static_cast<int>(sizeof(T));  // channels of a thread
// Rows of outputs whose input is under way, and rows of the ring.
template <int Stride>
inline constexpr int kDepthwiseAhead = Stride == 1 ? 3 : 2;
template <int Stride>
inline constexpr int kDepthwiseSlots = kDepthwiseAhead<Stride>* Stride + 3;

struct DepthwiseShape {
  int channels = 0;
  int in_h = 0, in_w = 0, out_h = 0, out_w = 0;
  int pad_h = 0, pad_w = 0;
  int columns = 1;     // of outputs of a block, a multiple of kDepthwiseStrip
  FastDivisor height;  // out_h
  FastDivisor column_tiles, channel_tiles;
  int64_t rows = 0, rows_per_block = 1;  // of outputs, of all images
};

// out[n, i, j, c] = bias[c] + Σ_{r, s} in[n, i · Stride + r - pad_h, ...] · weights[c][r, s]; the
// gradient of the input with stride 1 is the same with the filter turned round.
struct Depthwise {
  DepthwiseShape shape;
  const void* in = nullptr;
  const void* weights = nullptr;  // [channels, 3, 3]
  const void* bias = nullptr;     // [channels], acc; or null
  void* out = nullptr;
  bool flipped = false;
};

// Weight gradient: partials[slice][r, s][c] = Σ dy[m][c] · x[m ⊕ (r, s)][c]
struct DepthwiseWgrad {
  DepthwiseShape shape;
  const void* x = nullptr;
  const void* dy = nullptr;
  float* partials = nullptr;   // [slices, 9, channels]
  float* bias_sums = nullptr;  // [slices, channels]; or null
};

// What a block has: output rows begin .. end of all images, from column j0 and channel c0 on.
template <class T>
struct DepthwisePlace {
  int64_t slice, begin, end;
  int c0, j0;

  __device__ __forceinline__ explicit DepthwisePlace(const DepthwiseShape& p) {
    const uint32_t rest = p.channel_tiles.quotient(blockIdx.x);
    slice = p.column_tiles.quotient(rest);
    c0 = static_cast<int>(blockIdx.x - rest * p.channel_tiles.divisor) * kDepthwiseLanes *
         kDepthwisePack<T>;
    j0 = static_cast<int>(rest - slice * p.column_tiles.divisor) * p.columns;
    begin = slice * p.rows_per_block;
    end = min(begin + p.rows_per_block, p.rows);
  }
};

// A thread's channels of one pixel in shared memory, as floats.
template <class T>
__device__ __forceinline__ void read_depthwise(float (&to)[kDepthwisePack<T>],
                                               const unsigned char* from) {
  const uint2 word = *reinterpret_cast<const uint2*>(from);
  if constexpr (std::is_same_v<T, BFloat16>) {
    to[0] = __uint_as_float(word.x << 16), to[1] = __uint_as_float(word.x & 0xFFFF0000u);
    to[2] = __uint_as_float(word.y << 16), to[3] = __uint_as_float(word.y & 0xFFFF0000u);
  } else {
    T values[kDepthwisePack<T>];
    memcpy(values, &word, sizeof word);
#pragma unroll
    for (int e = 0; e < kDepthwisePack<T>; ++e) to[e] = static_cast<float>(values[e]);
  }
}

// A thread's share of the copies of rows of an image into slots: at most Most vectors of each row.
template <class T, int Most>
struct DepthwiseRows {
  const T* image;
  const T* from;  // of the next row
  int64_t row;    // elements
  uint32_t to;
  int step_from, step_to, count = 0;
  unsigned inside = 0;  // which of the vectors lie in the image

  // From row u on, `width` pixels from column v on.
  __device__ __forceinline__ DepthwiseRows(const T* data, int w, int channels, int c0, int u, int v,
                                           int width, uint32_t slots)
      : image(data), row(static_cast<int64_t>(w) * channels) {
    constexpr int kVectors = kDepthwisePixel / 16;
    const int column = threadIdx.x / kVectors, step = blockDim.x / kVectors;
    const int c = c0 + threadIdx.x % kVectors * kFullPack<T>;
    from = data + (static_cast<int64_t>(u) * w + v + column) * channels + c;
    to = slots + threadIdx.x * 16;
    step_from = step * channels, step_to = blockDim.x * 16;
#pragma unroll
    for (int i = 0; i < Most; ++i) {
      const int at = column + i * step;
      if (at >= width) continue;
      count = i + 1;
      if (static_cast<unsigned>(v + at) < static_cast<unsigned>(w) && c < channels)
        inside |= 1 << i;
    }
  }

  // Starts copying the next row into the slot at `offset`; zeros where there is none.
  __device__ __forceinline__ void copy(int offset, bool exists) {
    const unsigned valid = exists ? inside : 0;
#pragma unroll
    for (int i = 0; i < Most; ++i) {
      const bool is = (valid >> i & 1) != 0;
      if (i < count) {
        copy_async_streamed(to + offset + i * step_to, is ? from + i * step_from : image, is);
      }
    }
    from += row;
  }
};

// The ring, for the rows i0 .. i1 of outputs of one image: whoever walks calls next() before each.
template <class T, int Stride>
struct DepthwiseRing {
  static constexpr int kAhead = kDepthwiseAhead<Stride>, kSlots = kDepthwiseSlots<Stride>;
  static constexpr int kColumns = (kDepthwiseStrip - 1) * Stride + 3;  // that a thread reads

  const DepthwiseShape& p;
  DepthwiseRows<T, kDepthwiseStrip * Stride / 2 + 1> rows;
  int slot_bytes, u, u_end;  // the next row of the input to copy
  int fill = 0, first = 0;   // where it goes; where the window begins

  static __device__ __forceinline__ int width(const DepthwiseShape& shape) {
    return (shape.columns - 1) * Stride + 3;
  }
  __device__ __forceinline__ DepthwiseRing(const DepthwiseShape& shape, const void* in, int64_t n,
                                           int i0, int i1, int j0, int c0, uint32_t slots)
      : p(shape),
        rows(static_cast<const T*>(in) + n * shape.in_h * shape.in_w * shape.channels, shape.in_w,
             shape.channels, c0, i0 * Stride - shape.pad_h, j0 * Stride - shape.pad_w, width(shape),
             slots),
        slot_bytes(width(shape) * kDepthwisePixel),
        u(i0 * Stride - shape.pad_h),
        u_end(u + (i1 - i0 - 1) * Stride + 3) {}

  __device__ __forceinline__ int after(int slot, int steps) const {
    const int next = slot + steps * slot_bytes, all = kSlots * slot_bytes;
    return next >= all ? next - all : next;
  }
  // Starts copying the rows of one more output row: Count of them, those that are needed.
  template <int Count>
  __device__ __forceinline__ void copy() {
#pragma unroll
    for (int t = 0; t < Count; ++t, ++u, fill = after(fill, 1)) {
      if (u < u_end) rows.copy(fill, static_cast<unsigned>(u) < static_cast<unsigned>(p.in_h));
    }
  }
};

// The filters and biases of a thread's channels. They come through shared memory, since a thread's
// own lie apart in global memory.
template <class T>
struct DepthwiseFilter {
  static constexpr int V = kDepthwisePack<T>, kWidth = kDepthwiseLanes * V;
  float weights[9][V], bias[V] = {};

  // `shared`: room for the block's filters, 9 * kWidth floats.
  __device__ __forceinline__ DepthwiseFilter(const Depthwise& p, int block_c0, float* shared) {
    const int channels = min(kWidth, p.shape.channels - block_c0),
              lane = threadIdx.x % kDepthwiseLanes;
    const T* const from = static_cast<const T*>(p.weights) + static_cast<int64_t>(block_c0) * 9;
    for (int e = threadIdx.x; e < 9 * kWidth; e += blockDim.x) {
      const int channel = e / 9, tap = e % 9;
      shared[(p.flipped ? 8 - tap : tap) * kWidth + channel] =
          channel < channels ? static_cast<float>(from[e]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int tap = 0; tap < 9; ++tap) {
      const auto pack = load_pack<V>(shared + tap * kWidth + lane * V);
#pragma unroll
      for (int e = 0; e < V; ++e) weights[tap][e] = pack[e];
    }
    if (p.bias == nullptr || lane * V >= channels) return;
#pragma unroll
    for (int e = 0; e < V; ++e)
      bias[e] = static_cast<const float*>(p.bias)[block_c0 + lane * V + e];
  }
};

// math    as at Depthwise
// grid    blocks for runs of rows, tiles of columns and of channels (fastest)
// bytes   in once, its halo again from caches, out once
// smem    the filters, the ring
// needs   channels a multiple of 16 bytes, in 16-byte aligned
// order   each output is summed by one thread, in the order (r, s)
template <class T, int Stride>
__global__ void __launch_bounds__(kDepthwiseLanes* kDepthwiseMostStrips)
    conv2d_depthwise(const __grid_constant__ Depthwise p) {
  using Ring = DepthwiseRing<T, Stride>;
  constexpr int V = kDepthwisePack<T>, kStrip = kDepthwiseStrip;
  const DepthwisePlace<T> block(p.shape);
  const int lane = threadIdx.x % kDepthwiseLanes, strip = threadIdx.x / kDepthwiseLanes;
  const int c = block.c0 + lane * V, j = block.j0 + strip * kStrip;
  const int columns = c < p.shape.channels ? p.shape.out_w - j : 0;  // that exist
  const DepthwiseFilter<T> filter(p, block.c0, reinterpret_cast<float*>(dynamic_shared()));
  unsigned char* const slots = dynamic_shared() + kDepthwiseFilterBytes;
  const unsigned char* const mine = slots + strip * kStrip * Stride * kDepthwisePixel + lane * 8;
  const int64_t pitch = static_cast<int64_t>(p.shape.out_w) * p.shape.channels;
  T* out = static_cast<T*>(p.out) + block.begin * pitch + j * p.shape.channels + c;
  for (int64_t row = block.begin; row < block.end;) {
    const int64_t n = quotient(p.shape.height, row);
    const int i0 = static_cast<int>(row - n * p.shape.out_h);
    const int i1 = static_cast<int>(min(static_cast<int64_t>(p.shape.out_h), i0 + block.end - row));
    row += i1 - i0;
    Ring ring(p.shape, p.in, n, i0, i1, block.j0, block.c0, shared_address(slots));
    __syncthreads();  // the image before has been read
    ring.template copy<3>();
    commit_copies();
#pragma unroll
    for (int k = 1; k < Ring::kAhead; ++k) {
      ring.template copy<Stride>();
      commit_copies();
    }
    for (int i = i0; i < i1; ++i, out += pitch) {
      wait_copies<Ring::kAhead - 1>();
      __syncthreads();
      ring.template copy<Stride>();
      commit_copies();
      float sums[kStrip][V];
#pragma unroll
      for (int q = 0; q < kStrip; ++q) {
#pragma unroll
        for (int e = 0; e < V; ++e) sums[q][e] = filter.bias[e];
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
            if (s < 0 || s > 2) continue;
#pragma unroll
            for (int e = 0; e < V; ++e) sums[q][e] += x[e] * filter.weights[r * 3 + s][e];
          }
        }
      }
      ring.first = ring.after(ring.first, Stride);
#pragma unroll
      for (int q = 0; q < kStrip; ++q) {
        if (q < columns) store_pack(out + q * p.shape.channels, narrow_pack<T>(sums[q]));
      }
    }
  }
}

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
// grid    as above; a slice for each run of rows and tile of columns
// bytes   dy once, x once and its halo again from caches, partials
// smem    the ring, and one of rows of dy; afterwards the threads' sums
// order   rows of a thread in order, then the strips; slices are added by conv2d_reduce
template <class T, int Stride, bool Bias>
__global__ void __launch_bounds__(kDepthwiseLanes* kDepthwiseMostStrips)
    conv2d_depthwise_wgrad(const __grid_constant__ DepthwiseWgrad p) {
  start_next_kernel();
  using Ring = DepthwiseRing<T, Stride>;
  constexpr int V = kDepthwisePack<T>, kStrip = kDepthwiseStrip;
  const DepthwisePlace<T> block(p.shape);
  const int lane = threadIdx.x % kDepthwiseLanes, strip = threadIdx.x / kDepthwiseLanes;
  unsigned char* const shared = dynamic_shared();
  const int dy_bytes = p.shape.columns * kDepthwisePixel;
  unsigned char* const dy_slots = shared + Ring::kSlots * Ring::width(p.shape) * kDepthwisePixel;
  const unsigned char* const mine = shared + strip * kStrip * Stride * kDepthwisePixel + lane * 8;
  const unsigned char* const dy_mine = dy_slots + strip * kStrip * kDepthwisePixel + lane * 8;
  float sums[9 + Bias][V] = {};  // the last one of dy alone
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
            if (s < 0 || s > 2) continue;
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
