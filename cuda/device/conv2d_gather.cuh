// The implicit-GEMM loader: brings one 128-byte slice of the reduction for each row of a tile into
// shared memory, 16 bytes per copy, without ever building the im2col matrix.
//
// A row of the tile is an output pixel; its elements are the input elements that it reads, in the
// order (r, s, channel). Eight neighbouring threads fill one row, each always the same 16 bytes of
// the slice, so that a thread walks through (r, s, channel) by one cursor for all its rows.
// Rows are swizzled: vector v of a row lies at v ^ (row % 8), which keeps both the copies and the
// matrix loads free of bank conflicts.
#pragma once

#include "cuda/device/conv2d_window.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/vector.cuh"

namespace gradus {

template <class T>
inline constexpr int kChunk = 128 / static_cast<int>(sizeof(T));

__device__ __forceinline__ uint32_t swizzled(int row, int vector) {
  return static_cast<uint32_t>(row * 128 + ((vector ^ (row & 7)) << 4));
}

// One convolution as out[pixel][column] = Σ_depth in[pixel ⊕ tap][channel] ·
// weights[column][depth].
struct GatherGemm {
  Gather gather;
  const void* in = nullptr;       // [n, h, w, groups, channels]
  const void* weights = nullptr;  // [groups, columns, depth], depth = (r, s, channel)
  const void* bias = nullptr;     // [groups, columns], acc; or null
  void* out = nullptr;            // [pixels, groups, columns]
  int groups = 1;
  int channels = 0;  // of the input per group, a multiple of 16 bytes
  int columns = 0;   // of the output per group
  int depth = 0;
  int column_tiles = 1;
  bool vector_out = false;  // rows of `out` may be written 16 bytes at a time
};

// Position of a thread's 16 bytes in the reduction.
struct TapCursor {
  int r = 0;
  int s = 0;
  int channel;

  __device__ __forceinline__ TapCursor(const GatherGemm& p, int first) : channel(first) {
    normalize(p);
  }
  __device__ __forceinline__ void advance(const GatherGemm& p, int elements) {
    channel += elements;
    normalize(p);
  }
  __device__ __forceinline__ bool inside(const GatherGemm& p) const { return r < p.gather.h.taps; }

 private:
  __device__ __forceinline__ void normalize(const GatherGemm& p) {
    while (channel >= p.channels && r < p.gather.h.taps) {
      channel -= p.channels;
      if (++s == p.gather.w.taps) {
        s = 0;
        ++r;
      }
    }
  }
};

// The rows of the pixel tile that one thread fills: row, row + Step, ...
template <class T, int Rows, int Step, bool Divided>
struct GatherRows {
  int64_t offset[Rows];  // elements; of the image if Divided, else of the pixel at tap (0, 0)
  int u[Rows], v[Rows];  // coordinates at tap (0, 0)

  __device__ __forceinline__ GatherRows(const GatherGemm& p, int64_t first, int group) {
    const TapAxis &h = p.gather.h, &w = p.gather.w;
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      const int64_t m = first + i * Step;
      const bool inside = m < p.gather.out.pixels;
      const Pixel pixel = pixel_at(p.gather.out, inside ? m : 0);
      u[i] = inside ? pixel.i * h.scale + h.shift : kNoPixel;
      v[i] = pixel.j * w.scale + w.shift;
      int64_t at = pixel.n * h.extent;
      if constexpr (!Divided) at += u[i];
      at *= w.extent;
      if constexpr (!Divided) at += v[i];
      offset[i] = (at * p.groups + group) * p.channels;
    }
  }

  // Starts the copies of the slice at `cursor` into rows of `tile`, whose first is at `row`.
  __device__ __forceinline__ void load(const GatherGemm& p, const TapCursor& cursor, uint32_t tile,
                                       int row) const {
    const TapAxis &h = p.gather.h, &w = p.gather.w;
    const int du = cursor.r * h.step, dv = cursor.s * w.step;
    const int64_t pitch = static_cast<int64_t>(p.groups) * p.channels;
    const int64_t tap = (static_cast<int64_t>(du) * w.extent + dv) * pitch + cursor.channel;
    const T* in = static_cast<const T*>(p.in);
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      const int a = source_of<Divided>(h, u[i] + du), b = source_of<Divided>(w, v[i] + dv);
      const bool valid = cursor.inside(p) && a >= 0 && b >= 0;
      int64_t at = offset[i] + tap;
      if constexpr (Divided) {
        at = offset[i] + (static_cast<int64_t>(a) * w.extent + b) * pitch + cursor.channel;
      }
      copy_async(tile + swizzled(row + i * Step, threadIdx.x % 8), in + (valid ? at : 0), valid);
    }
  }
};

}  // namespace gradus
