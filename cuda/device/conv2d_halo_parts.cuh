// What the gathers over halo tiles share: weights into shared memory, results out of registers; see
// conv2d_halo_product.cuh for what is between.
#pragma once

#include "cuda/device/conv2d_halo.cuh"
#include "cuda/device/split_tf32.cuh"
#include "cuda/device/stream.cuh"

namespace gradus {

// Row of output channel `o` in shared memory. A lane's results lie in columns 2t, 2t + 1 of each
// 8-column product; with this order those of kFullPack / 2 products are neighbouring channels, and
// leave as one 16-byte store.
template <class T>
__device__ __forceinline__ int weight_row(int o) {
  constexpr int kV = kFullPack<T>;
  return o / (4 * kV) * (4 * kV) + o % kV / 2 * 8 + o / kV % 4 * 2 + o % 2;
}

// One word of the weights, of input channels `i` on.
template <class T>
__device__ __forceinline__ uint32_t halo_weight(const T* at, int stride, int count) {
  if constexpr (sizeof(T) == 4) {
    return count > 0 ? __float_as_uint(*at) : 0;
  } else {
    const uint32_t low = count > 0 ? at[0].bits : 0, high = count > 1 ? at[stride].bits : 0;
    return low | high << 16;
  }
}

// All taps of a square filter, in the order that the kernel multiplies them: forward that of
// memory, backward turned round.
template <int Count, bool Backward, class T>
__device__ __forceinline__ void load_halo_taps(uint32_t (&words)[Count], const T* at, int stride,
                                               int count) {
#pragma unroll
  for (int tap = 0; tap < Count; ++tap) {
    words[tap] = halo_weight(at + (Backward ? Count - 1 - tap : tap), stride, count);
  }
}

// Writes one word of the weights: rounded to TF32 if f32, or Split into a big and a small part,
// which lie Steps * 32 bytes apart.
template <class T, int Steps, bool Split>
__device__ __forceinline__ void write_halo_weight(unsigned char* to, uint32_t word) {
  uint32_t* const place = reinterpret_cast<uint32_t*>(to);
  if constexpr (Split) {
    const SplitFloat parts = split_tf32(__uint_as_float(word));
    place[0] = __float_as_uint(parts.big);
    place[Steps * 8] = __float_as_uint(parts.small);
  } else {
    place[0] = sizeof(T) == 4 ? round_to_tf32(word) : word;
  }
}

// Bytes of the weights of one tap and output channel in shared memory.
template <int Steps, bool Split>
inline constexpr int kHaloWeightBytes = Steps*(Split ? 64 : 32);

// Weights of the block's output channels, [channel][tap][in], into shared memory. Taps: of both
// axes if known when compiled, and then all of the filter's, so that a thread's loads are under way
// together and know their places; else 0.
template <class T, int Steps, int Taps, bool Split>
__device__ __forceinline__ void fill_halo_weights(const HaloGather& p, const HaloAxis& h,
                                                  const HaloAxis& w, unsigned char* to, int pitch,
                                                  int columns, int column0, int group) {
  constexpr int kWords = Steps * 8, kPerWord = 4 / static_cast<int>(sizeof(T));
  const T* from = static_cast<const T*>(p.weights) + static_cast<int64_t>(group) * p.weight_group;
  const bool along_in = p.weight_in < p.weight_out;  // which of the two neighbours in memory
#pragma unroll 1
  for (int e = threadIdx.x; e < columns * kWords; e += blockDim.x) {
    const int o = along_in ? e / kWords : e % columns;
    const int word = along_in ? e % kWords : e / columns, i = word * kPerWord;
    const int count = column0 + o < p.columns ? p.channels - i : 0;
    const T* at = from + static_cast<int64_t>(column0 + o) * p.weight_out +
                  static_cast<int64_t>(i) * p.weight_in;
    unsigned char* const place = to + weight_row<T>(o) * pitch + word * 4;
    if constexpr (Taps > 0) {
      uint32_t words[Taps * Taps];
      if (h.index[0] == 0) {
        load_halo_taps<Taps * Taps, false>(words, at, p.weight_in, count);
      } else {
        load_halo_taps<Taps * Taps, true>(words, at, p.weight_in, count);
      }
#pragma unroll
      for (int tap = 0; tap < Taps * Taps; ++tap) {
        write_halo_weight<T, Steps, Split>(place + tap * kHaloWeightBytes<Steps, Split>,
                                           words[tap]);
      }
    } else {
      for (int r = 0; r < h.taps; ++r) {
        for (int s = 0; s < w.taps; ++s) {
          const int tap = h.index[r] * p.weight_row + w.index[s];
          write_halo_weight<T, Steps, Split>(
              place + (r * w.taps + s) * kHaloWeightBytes<Steps, Split>,
              halo_weight(at + tap, p.weight_in, count));
        }
      }
    }
  }
}

// An image, and a row and a column within the phase.
struct HaloPlace {
  int n, i, j;
};

// Of a pixel in its tile.
__device__ __forceinline__ HaloPlace halo_place(const HaloGather& p, int pixel) {
  const int n = static_cast<int>(p.tile_area.quotient(pixel));
  const int rest = pixel - n * static_cast<int>(p.tile_area.divisor);
  const int i = static_cast<int>(p.tile_width.quotient(rest));
  return {n, i, rest - i * static_cast<int>(p.tile_width.divisor)};
}

// Of a tile's first pixel.
__device__ __forceinline__ HaloPlace halo_start(const HaloGather& p, int tile) {
  const int rest = static_cast<int>(p.column_tiles.quotient(tile));
  const int column_tile = tile - rest * static_cast<int>(p.column_tiles.divisor);
  const int images = static_cast<int>(p.row_tiles.quotient(rest));
  const int row_tile = rest - images * static_cast<int>(p.row_tiles.divisor);
  return {images * p.tile.images, row_tile * p.tile.rows, column_tile * p.tile.columns};
}

// A tile's outputs: where its first pixel and channel go, and how many of its pixels, in order, and
// of its columns exist.
template <class T>
struct HaloOutput {
  T* to;
  const float* bias;
  int end, end_column;

  __device__ __forceinline__ HaloOutput(const HaloGather& p, const HaloAxis& h, const HaloAxis& w,
                                        const HaloPlace& start, int column0, int group) {
    const int64_t row = static_cast<int64_t>(start.n) * p.out_h + h.first + start.i * p.step_h;
    const int64_t pixel = (row * p.out_w + w.first + start.j * p.step_w) * p.groups + group;
    to = static_cast<T*>(p.out) + pixel * p.columns + column0;
    bias = p.bias == nullptr ? nullptr
                             : static_cast<const float*>(p.bias) + group * p.columns + column0;
    end = (p.tile.images > 1 ? (p.images - start.n) * p.tile.rows : h.outputs - start.i) *
          p.tile.columns;
    end_column = w.outputs - start.j;
  }
};

// Where each pixel of a tile begins in the tile of the input, `pitch` bytes a pixel, and where it
// goes: the same for every tile. `rows`: those that exist.
__device__ __forceinline__ void fill_halo_tables(const HaloGather& p, int rows, int pitch,
                                                 int pixels, int padded, int* sources,
                                                 HaloTarget* targets) {
  for (int e = threadIdx.x; e < padded; e += blockDim.x) {
    const HaloPlace at = halo_place(p, min(e, pixels - 1));
    const int from = at.n * p.tile.halo_rows + at.i * p.scale_h;
    const int to = at.n * p.out_h + at.i * p.step_h;
    sources[e] = (from * p.tile.halo_columns + at.j * p.scale_w) * pitch;
    targets[e] = {
        e < pixels && at.i < rows ? (to * p.out_w + at.j * p.step_w) * p.groups * p.columns : -1,
        at.j};
  }
}

// Adds the bias and writes a warp's 16 pixels: those before `end` whose column is before
// `end_column`.
template <class T, int N>
__device__ __forceinline__ void store_halo(const HaloGather& p, const float (&c)[N / 8][4],
                                           const HaloTarget* targets, int end, int end_column,
                                           T* out, const float* bias, int columns) {
  constexpr int kV = kFullPack<T>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pixel = half * 8 + lane / 4;
    const HaloTarget target = targets[pixel];
    if (pixel >= end || target.offset < 0 || target.column >= end_column) continue;
#pragma unroll
    for (int pack = 0; pack < N / (4 * kV); ++pack) {
      const int column = pack * 4 * kV + lane % 4 * kV;
      if (column >= columns) continue;
      float sums[kV];
#pragma unroll
      for (int e = 0; e < kV; ++e) {
        sums[e] = c[pack * (kV / 2) + e / 2][half * 2 + e % 2];
        if (bias != nullptr && column + e < columns) sums[e] += bias[column + e];
      }
      T* to = out + target.offset + column;
      if (p.vector_out) {
        store_rounded(to, sums);
      } else {
        const auto values = narrow_pack<T>(sums);
#pragma unroll
        for (int e = 0; e < kV; ++e) {
          if (column + e < columns) to[e] = values[e];
        }
      }
    }
  }
}

}  // namespace gradus
