// A few bits per lane, stored as one run: bit i of the run is bit i % 8 of byte i / 8.
#pragma once

#include <cstdint>

namespace gradus {

// The bits of `Lanes` neighbouring lanes together, for each of them. All lanes of the warp must
// call.
template <int Lanes>
__device__ __forceinline__ uint32_t join_bits(uint32_t bits) {
#pragma unroll
  for (int step = 1; step < Lanes; step *= 2) bits |= __shfl_xor_sync(~0u, bits, step);
  return bits;
}

// Stores `Bits` bits (2, 4, 8 or 16) of each lane, whose own begin at bit `first` of the run, a
// multiple of Bits; consecutive lanes have consecutive ones. Lanes join to bytes by shuffles, so
// all lanes of the warp must call, those that are not `present` too.
template <int Bits, class I>
__device__ __forceinline__ void store_bits(uint8_t* run, I first, uint32_t bits, bool present) {
  if constexpr (Bits == 16) {
    if (present) *reinterpret_cast<uint16_t*>(run + first / 8) = static_cast<uint16_t>(bits);
  } else {
    constexpr int kLanes = 8 / Bits;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    bits = join_bits<kLanes>(present ? bits << (lane * Bits) : 0);
    if (present && lane == 0) run[first / 8] = static_cast<uint8_t>(bits);
  }
}

// The bits stored so; those above the lowest Bits are others'.
template <int Bits, class I>
__device__ __forceinline__ uint32_t load_bits(const uint8_t* run, I first) {
  if constexpr (Bits == 16) {
    return *reinterpret_cast<const uint16_t*>(run + first / 8);
  } else if constexpr (Bits == 8) {
    return run[first / 8];
  } else {
    return static_cast<uint32_t>(run[first / 8]) >> (first % 8);
  }
}

}  // namespace gradus
