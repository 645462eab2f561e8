// How long the second-level cache keeps what a kernel loads.
#pragma once

#include "cuda/device/raw.cuh"

namespace gradus {

namespace detail {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
inline constexpr bool kHasL2Policies = true;
#else
inline constexpr bool kHasL2Policies = false;
#endif
}  // namespace detail

// An operand of loads, made once per thread. Cards without it load as ever.
class L2Policy {
 public:
  // `longest`: the cache gives up all else first; otherwise as by any load.
  __device__ __forceinline__ explicit L2Policy(bool longest) {
    if constexpr (detail::kHasL2Policies) {
      if (longest) {
        asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(word_));
      } else {
        asm("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(word_));
      }
    }
  }

  // For accesses of 16 bytes; smaller ones are loaded as by any load.
  template <class T, int N>
  __device__ __forceinline__ void load(Raw<T, N>& raw, const T* from) const {
    if constexpr (detail::kHasL2Policies && sizeof raw.word == 16) {
      asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=r"(raw.word.x), "=r"(raw.word.y), "=r"(raw.word.z), "=r"(raw.word.w)
                   : "l"(from), "l"(word_));
    } else {
      raw.load(from);
    }
  }
  template <int N, class T>
  __device__ __forceinline__ Pack<T, N> load_pack(const T* from) const {
    Raw<T, N> raw;
    load(raw, from);
    Pack<T, N> pack;
    memcpy(&pack, &raw.word, sizeof pack);
    return pack;
  }

 private:
  uint64_t word_ = 0;
};

}  // namespace gradus
