// A few bits per lane, stored as one run: bit i of the run is bit i % 8 of byte i / 8.
#pragma once

#include <cstdint>

namespace gradus {

// Joins the `Bits` low bits of 32 / Bits neighbouring lanes to one word, which all of them get. All
// lanes of the warp must call.
template <int Bits>
__device__ __forceinline__ uint32_t join_bits(uint32_t bits, int lane) {
  constexpr int kLanes = 32 / Bits;
  bits <<= lane % kLanes * Bits;
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) bits |= __shfl_xor_sync(~0u, bits, step);
  return bits;
}

// Stores a word of a run of `bytes` bytes, which is aligned to 4, or what there is of it.
__device__ __forceinline__ void store_word(uint8_t* run, int64_t word, uint32_t bits,
                                           int64_t bytes) {
  if (word * 4 + 4 <= bytes) {
    reinterpret_cast<uint32_t*>(run)[word] = bits;
    return;
  }
  for (int64_t byte = word * 4; byte < bytes; ++byte)
    run[byte] = static_cast<uint8_t>(bits >> (byte % 4 * 8));
}

// `Bits` bits (8 at most, or 16) from bit `first` of a run on, a multiple of Bits.
template <int Bits>
__device__ __forceinline__ uint32_t load_bits(const uint8_t* run, int64_t first) {
  if constexpr (Bits == 16) {
    return *reinterpret_cast<const uint16_t*>(run + first / 8);
  } else {
    return static_cast<uint32_t>(run[first / 8]) >> (first % 8);
  }
}

}  // namespace gradus
