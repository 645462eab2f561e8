// Rounding a pack of results to their storage type, two 16-bit ones per instruction.
#pragma once

#include "core/dtype.h"
#include "cuda/device/vector.cuh"

namespace gradus {

// The values must come from arithmetic, whose NaNs have one pattern on a GPU: the bits are then
// those of static_cast, which keeps a NaN's sign.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> round_pack(const acc_t<T> (&values)[N]) {
  Pack<T, N> pack;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const uint32_t pair = rounded_pair<T>(values[i], values[i + 1]);
      pack[i].bits = static_cast<uint16_t>(pair);
      pack[i + 1].bits = static_cast<uint16_t>(pair >> 16);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) pack[i] = static_cast<T>(values[i]);
  }
  return pack;
}

}  // namespace gradus
