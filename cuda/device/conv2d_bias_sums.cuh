// The gradient of a bias from the tiles of dy that a weight gradient has in shared memory anyway.
#pragma once

#include "core/dtype.h"
#include "cuda/device/vector.cuh"

namespace gradus {

// Sums over the pixels of tiles [pixel][Channels], whole 16-byte vectors: a thread has one vector
// of every so many pixels.
// order   pixels of a thread in order, then the threads
template <class T, int Channels>
struct BiasSums {
  using Acc = acc_t<T>;
  static constexpr int kV = kFullPack<T>, kVectors = Channels / kV;
  Acc sums[kV] = {};

  // Bytes of shared memory that store() needs.
  static constexpr int shared_bytes(int threads) {
    return threads * kV * static_cast<int>(sizeof(Acc));
  }

  // Adds the first `pixels` of a tile, whose vectors lie place(pixel, vector) bytes from `tile`.
  template <class Place>
  __device__ __forceinline__ void take(const unsigned char* tile, int pixels, const Place& place) {
    const int vector = threadIdx.x % kVectors, step = blockDim.x / kVectors;
    for (int pixel = threadIdx.x / kVectors; pixel < pixels; pixel += step) {
      const auto dy = load_pack<kV>(reinterpret_cast<const T*>(tile + place(pixel, vector)));
#pragma unroll
      for (int e = 0; e < kV; ++e) sums[e] += static_cast<Acc>(dy[e]);
    }
  }

  // Writes the sums of `channels` channels, as far as the tile has them. All threads call it; what
  // `shared` held is lost.
  // needs   a multiple of kVectors threads
  __device__ __forceinline__ void store(Acc* shared, Acc* out, int channels) const {
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kV; ++e) shared[threadIdx.x * kV + e] = sums[e];  // [row][channel]
    __syncthreads();
    const int rows = blockDim.x / kVectors;
    for (int c = threadIdx.x; c < min(channels, Channels); c += blockDim.x) {
      Acc sum = 0;
      for (int row = 0; row < rows; ++row) sum += shared[row * Channels + c];
      out[c] = sum;
    }
    __syncthreads();
  }
};

}  // namespace gradus
