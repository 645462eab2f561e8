// The weight gradient as a matrix product: dw[k][(r, s, channel)] = Σ_pixel dy[pixel][k] ·
// x[pixel ⊕ (r, s)][channel], its loader for one stretch of pixels.
#pragma once

#include "cuda/device/conv2d_gather.cuh"

namespace gradus {

struct WgradGemm {
  Gather gather;             // over the pixels of dy
  const void* x = nullptr;   // [n, h, w, groups, channels]
  const void* dy = nullptr;  // [pixels, groups, dy_channels]
  void* partials = nullptr;  // [slices, groups, rows, depth], acc
  int groups = 1;
  int channels = 0;     // of x per group, a multiple of 16 bytes
  int dy_channels = 0;  // of dy per group, a multiple of 16 bytes
  int rows = 0;         // of those, the ones that are not padding
  int depth = 0;        // taps · channels
  int row_tiles = 1, column_tiles = 1;
  int64_t slice_pixels = 0;
};

// What a pixel of dy says about x: where tap (0, 0) is.
struct PixelEntry {
  int64_t offset;  // elements; may lie outside x
  int u, v;
};

// One thread's share of a tile [Depth][Width] with 16-byte copies: one vector of each Step-th row.
template <class T, int Width, int Threads>
struct TileShare {
  static constexpr int kPerRow = Width / kFullPack<T>;
  static constexpr int kStep = Threads / kPerRow;
  int row = static_cast<int>(threadIdx.x) / kPerRow;
  int first = static_cast<int>(threadIdx.x) % kPerRow * kFullPack<T>;
  __device__ __forceinline__ bool takes_part() const { return row < kStep; }
};

template <class T, class Tile>
struct WgradLoader {
  using ShareA = TileShare<T, Tile::kRows, Tile::kThreads>;
  using ShareB = TileShare<T, Tile::kColumns, Tile::kThreads>;

  const WgradGemm& p;
  int group;
  ShareA a;
  ShareB b;
  bool a_inside, b_inside;  // this thread's columns exist
  int du, dv;               // its tap
  int64_t a_offset, b_offset;

  __device__ __forceinline__ WgradLoader(const WgradGemm& problem, int g, int row0, int column0)
      : p(problem), group(g) {
    a_inside = row0 + a.first < p.dy_channels;
    a_offset = static_cast<int64_t>(group) * p.dy_channels + row0 + a.first;
    const int position = column0 + b.first;
    b_inside = position < p.depth;
    const int tap = position / p.channels, channel = position - tap * p.channels;
    du = tap / p.gather.w.taps * p.gather.h.step;
    dv = tap % p.gather.w.taps * p.gather.w.step;
    b_offset = (static_cast<int64_t>(du) * p.gather.w.extent + dv) * p.groups * p.channels +
               static_cast<int64_t>(group) * p.channels + channel;
  }

  // Entries of pixels m0, m0 + 1, ... of one stretch; those at or beyond `end` find nothing.
  __device__ __forceinline__ void fill(PixelEntry* entries, int64_t m0, int64_t end) const {
    for (int i = threadIdx.x; i < Tile::kDepth; i += Tile::kThreads) {
      const bool inside = m0 + i < end;
      const Pixel pixel = pixel_at(p.gather.out, inside ? m0 + i : 0);
      const int u = pixel.i * p.gather.h.scale + p.gather.h.shift;
      const int v = pixel.j * p.gather.w.scale + p.gather.w.shift;
      const int64_t at = (pixel.n * p.gather.h.extent + u) * p.gather.w.extent + v;
      entries[i] = {at * p.groups * p.channels, inside ? u : kNoPixel, v};
    }
  }

  __device__ __forceinline__ void load(T* a_tile, T* b_tile, const PixelEntry* entries, int64_t m0,
                                       int64_t end) const {
    const T* dy = static_cast<const T*>(p.dy);
    if (a.takes_part()) {
#pragma unroll
      for (int row = a.row, i = 0; i < (Tile::kDepth + ShareA::kStep - 1) / ShareA::kStep;
           ++i, row += ShareA::kStep) {
        if (row >= Tile::kDepth) break;
        const bool valid = a_inside && m0 + row < end;
        const int64_t at = (m0 + row) * p.groups * p.dy_channels + a_offset;
        copy_async(shared_address(a_tile + row * Tile::kPitchA + a.first), dy + (valid ? at : 0),
                   valid);
      }
    }
    const T* x = static_cast<const T*>(p.x);
    if (b.takes_part()) {
#pragma unroll
      for (int row = b.row, i = 0; i < (Tile::kDepth + ShareB::kStep - 1) / ShareB::kStep;
           ++i, row += ShareB::kStep) {
        if (row >= Tile::kDepth) break;
        const PixelEntry entry = entries[row];
        const bool valid = b_inside && source_of<false>(p.gather.h, entry.u + du) >= 0 &&
                           source_of<false>(p.gather.w, entry.v + dv) >= 0;
        copy_async(shared_address(b_tile + row * Tile::kPitchB + b.first),
                   x + (valid ? entry.offset + b_offset : 0), valid);
      }
    }
  }
};

}  // namespace gradus
