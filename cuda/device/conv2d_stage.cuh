// A warpgroup's sums in shared memory as the copy engine takes them to global memory: a box has a
// row of 128 swizzled bytes for each position.
#pragma once

#include "cuda/device/raw.cuh"
#include "cuda/device/wgmma.cuh"

namespace gradus {

// The sums c of Eights * 8 positions and 64 columns, and of the thread's two columns of eights the
// bias, to one box of 16-bit T.
template <class T, int Eights>
__device__ __forceinline__ void stage_halves(uint32_t box, const float* c, float bias0,
                                             float bias1) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const int row = lane / 16 * 8 + lane % 8, vector = warp * 2 + lane / 8 % 2;
  const uint32_t to = box + row * 128 + ((vector ^ (row & 7)) << 4);
#pragma unroll
  for (int j = 0; j < Eights; j += 2) {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = j * 4 + 2 * i;
      const float bias = i % 2 == 0 ? bias0 : bias1;
      if (e < Eights * 4) words[i] = rounded_pair<T>(c[e] + bias, c[e + 1] + bias);
    }
    store_matrices_transposed(to + j * 1024, words);
  }
}

// The same in f32, to two boxes of 32 columns, 4 KB apart.
template <int Eights>
__device__ __forceinline__ void stage_floats(uint32_t boxes, const float* c, float bias0,
                                             float bias1) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane % 4 * 2 + i % 2, column = warp * 16 + i / 2 * 8 + lane / 4;
    const uint32_t to =
        boxes + column / 32 * 4096 + row * 128 + ((column % 32 / 4 ^ row) << 4) + column % 4 * 4;
#pragma unroll
    for (int j = 0; j < Eights; ++j) {
      asm volatile("st.shared.f32 [%0], %1;"
                   :
                   : "r"(to + j * 1024), "f"(c[j * 4 + i] + (i < 2 ? bias0 : bias1))
                   : "memory");
    }
  }
}

}  // namespace gradus
