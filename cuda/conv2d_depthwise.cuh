// Depthwise conv2d of channels-last tensors with 3 x 3 filters, one per channel: forward and the
// gradient of the input, and what the weight gradient shares with them.
//
// A block walks down rows of outputs, `columns` of them wide, in 128 bytes of channels. A ring in
// shared memory has the rows of the input that an output row needs; those of later output rows are
// under way. A thread has 8 bytes of channels of a strip of neighbouring columns.
#pragma once

#include "core/dtype.h"
#include "cuda/conv2d_depthwise_plan.h"
#include "cuda/device/conv2d_halo.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

inline constexpr int kDepthwisePixel = 128;  // bytes of channels of a block
inline constexpr int kDepthwiseLanes = 16;   // threads that share a pixel
inline constexpr int kDepthwiseThreads = kDepthwiseLanes * kDepthwiseMostStrips;
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
  int columns = 1;        // of outputs of a block, whole strips
  FastDivisor height;     // out_h
  FastDivisor row_tiles;  // of an image: of the gather
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

// The ring, for the rows i0 .. i1 of outputs of one image. A thread has Strip columns of them.
template <class T, int Stride, int Strip>
struct DepthwiseRing {
  static constexpr int kAhead = kDepthwiseAhead<Stride>, kSlots = kDepthwiseSlots<Stride>;
  static constexpr int kColumns = (Strip - 1) * Stride + 3;  // that a thread reads

  const DepthwiseShape& p;
  DepthwiseRows<T, Strip * Stride / 2 + 1> rows;
  int slot_bytes, u, u_end;  // the next row of the input to copy
  int fill = 0, first = 0;   // where it goes; the first row that is still read

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
  // Starts copying the rows of the first kAhead output rows.
  __device__ __forceinline__ void start() {
    copy<3>();
    commit_copies();
#pragma unroll
    for (int k = 1; k < kAhead; ++k) {
      copy<Stride>();
      commit_copies();
    }
  }
  // Where the next row to read lies, which is read once only.
  __device__ __forceinline__ int take() {
    const int slot = first;
    first = after(first, 1);
    return slot;
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

// A thread's sums of the output rows that a row of the input is part of, in turn.
template <class T, int Stride>
struct DepthwiseSums {
  static constexpr int V = kDepthwisePack<T>, kStrip = kDepthwiseStrip;
  static constexpr int kLive = 2 / Stride + 1;
  float of[kLive][kStrip][V] = {};

  // Adds row Row, `from` in the ring, of the window of the output row whose sums are of[Turn]. It
  // belongs to those of later rows, too, and begins the last of them.
  template <int Turn, int Row>
  __device__ __forceinline__ void add(const unsigned char* from, const DepthwiseFilter<T>& filter) {
    if constexpr (Row % Stride == 0) {
#pragma unroll
      for (int q = 0; q < kStrip; ++q) {
#pragma unroll
        for (int e = 0; e < V; ++e) of[(Turn + Row / Stride) % kLive][q][e] = filter.bias[e];
      }
    }
#pragma unroll
    for (int column = 0; column < (kStrip - 1) * Stride + 3; ++column) {
      float x[V];
      read_depthwise<T>(x, from + column * kDepthwisePixel);
#pragma unroll
      for (int q = 0; q < kStrip; ++q) {
        const int s = column - q * Stride;
        if (s < 0 || s > 2) continue;
#pragma unroll
        for (int r = 0; r < 3; ++r) {
          if ((Row - r) % Stride != 0) continue;
          float(&sums)[V] = of[(Turn + (Row - r) / Stride + kLive) % kLive][q];
#pragma unroll
          for (int e = 0; e < V; ++e) sums[e] += x[e] * filter.weights[r * 3 + s][e];
        }
      }
    }
  }
};

// math    as at Depthwise
// grid    blocks for tiles of rows of an image, of columns and of channels (fastest)
// bytes   in once, its halo again from caches, out once
// smem    the filters, the ring
// needs   channels a multiple of 16 bytes, in 16-byte aligned
// order   each output is summed by one thread, in the order (r, s)
template <class T, int Stride>
__global__ void __launch_bounds__(kDepthwiseThreads)
    conv2d_depthwise(const __grid_constant__ Depthwise p) {
  using Ring = DepthwiseRing<T, Stride, kDepthwiseStrip>;
  constexpr int V = kDepthwisePack<T>, kStrip = kDepthwiseStrip;
  const DepthwisePlace<T> block(p.shape);
  const int n = static_cast<int>(p.shape.row_tiles.quotient(static_cast<uint32_t>(block.slice)));
  const int row_tile = static_cast<int>(block.slice - int64_t{n} * p.shape.row_tiles.divisor);
  const int rows = static_cast<int>(p.shape.rows_per_block), i0 = row_tile * rows;
  const int i1 = min(i0 + rows, p.shape.out_h);
  unsigned char* const slots = dynamic_shared() + kDepthwiseFilterBytes;
  Ring ring(p.shape, p.in, n, i0, i1, block.j0, block.c0, shared_address(slots));
  wait_for_previous_kernel();
  start_next_kernel();
  ring.start();
  const DepthwiseFilter<T> filter(p, block.c0, reinterpret_cast<float*>(dynamic_shared()));
  const int lane = threadIdx.x % kDepthwiseLanes, strip = threadIdx.x / kDepthwiseLanes;
  const int c = block.c0 + lane * V, j = block.j0 + strip * kStrip;
  const int columns = c < p.shape.channels ? p.shape.out_w - j : 0;  // that exist
  const unsigned char* const mine = slots + strip * kStrip * Stride * kDepthwisePixel + lane * 8;
  const int64_t pitch = static_cast<int64_t>(p.shape.out_w) * p.shape.channels;
  T* out = static_cast<T*>(p.out) + (static_cast<int64_t>(n) * p.shape.out_h + i0) * pitch +
           static_cast<int64_t>(j) * p.shape.channels + c;
  DepthwiseSums<T, Stride> sums;
  wait_copies<Ring::kAhead - 1>();
  __syncthreads();
  sums.template add<0, 0>(mine + ring.take(), filter);
  if constexpr (Stride == 1) sums.template add<0, 1>(mine + ring.take(), filter);
  int i = i0;
  const auto finish = [&](auto turn) {  // row i of outputs
    constexpr int kTurn = decltype(turn)::value;
    if (i >= i1) return;
    wait_copies<Ring::kAhead - 1>();
    __syncthreads();
    ring.template copy<Stride>();
    commit_copies();
    if constexpr (Stride == 2) sums.template add<kTurn, 1>(mine + ring.take(), filter);
    sums.template add<kTurn, 2>(mine + ring.take(), filter);
#pragma unroll
    for (int q = 0; q < kStrip; ++q) {
      if (q < columns) store_pack(out + q * p.shape.channels, narrow_pack<T>(sums.of[kTurn][q]));
    }
    ++i, out += pitch;
  };
  while (i < i1) {
    finish(std::integral_constant<int, 0>{});
    finish(std::integral_constant<int, 1>{});
    if constexpr (Stride == 1) finish(std::integral_constant<int, 2>{});
  }
}

}  // namespace gradus
