// How long the second-level cache keeps what a kernel loads.
#pragma once

#include "cuda/device/raw.cuh"
#include "cuda/device/shared.cuh"

namespace gradus {

namespace detail {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
inline constexpr bool kHasL2Policies = true;
#else
inline constexpr bool kHasL2Policies = false;
#endif
}  // namespace detail

// When the second-level cache gives up a line: before all others, four of five before them, as it
// sees fit, or after them.
enum class Evict : uint8_t { first, most_first, normal, last };

// Loads and copies of 16 bytes that ask for it, where the card can; otherwise any. Made once per
// thread.
template <Evict kEvict>
class L2Policy {
 public:
  __device__ __forceinline__ L2Policy() {
    if constexpr (kExists && kEvict == Evict::first) {
      asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(word_));
    } else if constexpr (kExists && kEvict == Evict::most_first) {
      asm("createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %0, 0f3F4CCCCD;"  // 0.8
          : "=l"(word_));
    } else if constexpr (kExists) {
      asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(word_));
    }
  }

  template <class T, int N>
  __device__ __forceinline__ void load(Raw<T, N>& raw, const T* from) const {
    if constexpr (kExists && sizeof raw.word == 16) {
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
  // As copy_async_once.
  template <int Bytes>
  __device__ __forceinline__ void copy_async(uint32_t destination, const void* source) const {
    if constexpr (kExists && Bytes == 16) {
      asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
                   :
                   : "r"(destination), "l"(source), "l"(word_)
                   : "memory");
    } else {
      copy_async_once<Bytes>(destination, source);
    }
  }

 private:
  static constexpr bool kExists = kEvict != Evict::normal && detail::kHasL2Policies;
  uint64_t word_ = 0;
};

}  // namespace gradus
