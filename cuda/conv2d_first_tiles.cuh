// First layers' weight gradient: the tiles of dy and x that a block walks through.
#pragma once

#include "cuda/conv2d_first_tensor.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// Asks the second-level cache for `bytes` from `from` on, both multiples of 16; does nothing on
// devices before 9.0. That may be before wait_for_previous_kernel(), too: what the kernel before
// still writes, it writes there.
__device__ __forceinline__ void prefetch_run([[maybe_unused]] const void* from,
                                             [[maybe_unused]] int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(from), "r"(bytes) : "memory");
#endif
}

// A tile of dy in shared memory, [pixel][K channels], as vectors of 16 bytes: a pixel's change
// places, so that those of neighbouring pixels that are read together lie in different banks.
template <class T, int K>
struct FirstDyTile {
  static constexpr int kVectors = K / kFullPack<T>, kPitch = kVectors * 16;
  static_assert(kVectors == 4 || kVectors % 8 == 0);
  // What a pixel's vectors are XORed with; it has the pixel's place in any eight.
  static __device__ __forceinline__ int turn(int pixel) {
    return kVectors == 4 ? pixel / 2 % 4 : pixel % 8;
  }
  static __device__ __forceinline__ int place(int pixel, int vector) {
    return pixel * kPitch + (vector ^ turn(pixel)) * 16;
  }
};

// A thread's share of the copies of dy: a vector of every so many pixels.
template <class T, int K>
struct FirstUpstream {
  using Tile = FirstDyTile<T, K>;
  static constexpr int kStep = 256 / Tile::kVectors;
  static_assert(kStep % 8 == 0);  // all of a thread's pixels have one turn
  const FirstConv& p;
  int pixel0, k;
  uint32_t to;

  __device__ __forceinline__ FirstUpstream(const FirstConv& problem, int k0, uint32_t tiles_at)
      : p(problem),
        pixel0(threadIdx.x / Tile::kVectors),
        k(k0 + threadIdx.x % Tile::kVectors * kFullPack<T>),
        to(tiles_at + Tile::place(pixel0, threadIdx.x % Tile::kVectors)) {}

  // Zeros beyond the pixels that exist, up to `padded`.
  __device__ __forceinline__ void copy(int tile, int offset, int padded) const {
    const FirstTile at(p, tile);
    const T* const dy = static_cast<const T*>(p.dy);
    const T* from = dy + (at.pixel(p) + pixel0) * p.k + k;
    const int valid = k < p.k ? at.valid : 0;
    uint32_t place = to + offset;
#pragma unroll 4
    for (int pixel = pixel0; pixel < padded; pixel += kStep) {
      copy_async_streamed(place, pixel < valid ? from : dy, pixel < valid);
      place += kStep * Tile::kPitch, from += static_cast<int64_t>(kStep) * p.k;
    }
  }
};

// As FirstInput, of values of 4 bytes, which are copied without registers.
template <int Channels>
struct FirstInputCopies {
  static constexpr int kHeld = 3, kThreads = 256;
  const FirstConv& p;
  int64_t offsets[kHeld];
  int rows[kHeld];

  __device__ __forceinline__ explicit FirstInputCopies(const FirstConv& problem) : p(problem) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) place(threadIdx.x + i * kThreads, offsets[i], rows[i]);
  }
  __device__ __forceinline__ void place(int e, int64_t& offset, int& row) const {
    const int pixel = e / Channels;
    place_first(p, pixel, offset, row);
    offset += (e - pixel * Channels) * p.x_strides.c;
  }
  __device__ __forceinline__ void start(int tile, float* to) const {
    const FirstTile at(p, tile);
    const int u0 = at.i0 * p.scale_h + p.shift_h;
    const float* const x = static_cast<const float*>(p.x);
    const float* const from = x + at.n * p.x_strides.n + u0 * p.x_strides.h;
    const int size = p.tile.halo_rows * p.tile.halo_columns * Channels;
    const auto copy = [&](int e, int64_t offset, int row) {
      const bool inside = static_cast<unsigned>(u0 + row) < static_cast<unsigned>(p.in_h);
      copy_async_word(shared_address(to + e), inside ? from + offset : x, inside);
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int e = threadIdx.x + i * kThreads;
      if (e < size) copy(e, offsets[i], rows[i]);
    }
#pragma unroll 1
    for (int e = threadIdx.x + kHeld * kThreads; e < size; e += kThreads) {
      int64_t offset;
      int row;
      place(e, offset, row);
      copy(e, offset, row);
    }
  }
};

// The tiles of a block, every gridDim.x-th one, two at a time in shared memory: dy of K channels
// and x, where in x each pixel's window begins, and a window of zeros.
template <class T, int Channels, int K>
struct FirstWgradTiles {
  using Dy = FirstDyTile<T, K>;
  static constexpr int kPixels = 32 / static_cast<int>(sizeof(T));  // dy is padded to multiples
  static constexpr bool kCopied = sizeof(T) == 4;                   // x
  using Input = std::conditional_t<kCopied, FirstInputCopies<Channels>, FirstInput<T, Channels>>;
  const FirstConv& p;
  int padded, dy_size, x_size;
  unsigned char* dy;
  int* table;
  T* x;
  FirstUpstream<T, K> upstream;
  Input input;

  __device__ __forceinline__ FirstWgradTiles(const FirstConv& problem, int k0)
      : p(problem),
        padded((p.tile.rows * p.out_w + kPixels - 1) / kPixels * kPixels),
        dy_size(padded * Dy::kPitch),
        x_size(p.tile.halo_rows * p.tile.halo_columns * Channels),
        dy(dynamic_shared()),
        table(reinterpret_cast<int*>(dy + 2 * dy_size)),
        x(reinterpret_cast<T*>(table + padded)),
        upstream(p, k0, shared_address(dy)),
        input(p) {}

  // As soon as may be: what the kernel prepares meanwhile follows. The first tile of dy is on its
  // way to the second-level cache while the kernel before ends.
  __device__ __forceinline__ void start() {
    start_next_kernel();
    if (threadIdx.x == 0 && blockIdx.y == 0) {
      const FirstTile at(p, blockIdx.x);
      prefetch_run(static_cast<const T*>(p.dy) + at.pixel(p) * p.k,
                   at.valid * p.k * static_cast<int>(sizeof(T)));
    }
    wait_for_previous_kernel();
    fetch(blockIdx.x, 0);
    fill_first_table<Channels>(p, table, padded);
    for (int i = threadIdx.x; i < p.window; i += blockDim.x) x[2 * x_size + i] = T(0.0f);
  }
  // add(dy, x, pixels that exist, where zeros lie from x on) for each tile. There is one barrier to
  // a tile: behind it the tile is there, and no thread reads the one before, which the next
  // replaces.
  template <class Add>
  __device__ __forceinline__ void walk(const Add& add) {
    int tile = blockIdx.x, turn = 0;
    arrive(tile, 0);
    for (const int step = static_cast<int>(gridDim.x); tile < p.tiles; tile += step, turn ^= 1) {
      wait_copies<0>();
      __syncthreads();
      fetch(tile + step, 1 - turn);
      add(dy + turn * dy_size, x + turn * x_size, FirstTile(p, tile).valid, (2 - turn) * x_size);
      arrive(tile + step, 1 - turn);
    }
    __syncthreads();
  }

 private:
  __device__ __forceinline__ void fetch(int tile, int turn) {
    if (tile >= p.tiles) return;
    upstream.copy(tile, turn * dy_size, padded);
    if constexpr (kCopied) {
      input.start(tile, x + turn * x_size);
    } else {
      input.start(tile);
    }
    commit_copies();
  }
  __device__ __forceinline__ void arrive(int tile, int turn) {
    if constexpr (!kCopied) input.finish(tile, x + turn * x_size);
  }
};

}  // namespace gradus
