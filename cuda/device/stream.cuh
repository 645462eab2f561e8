// Packs on their way through a kernel that touches each once: loaded past L1, unpacked, rounded and
// stored as whole accesses.
#pragma once

#include "cuda/device/round.cuh"

namespace gradus {

// load_pack for what is read once and never written while the kernel runs: it goes past L1.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack_once(const T* from) {
  if constexpr (sizeof(Pack<T, N>) < 16) {
    return load_pack<N>(from);
  } else {
    uint4 word;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(from));
    Pack<T, N> pack;
    memcpy(&pack, &word, sizeof word);
    return pack;
  }
}

// The elements as A; bf16 ones come out of the word that two of them share by one instruction each.
template <class A, class T, int N>
__device__ __forceinline__ void widen_pack(A (&values)[N], const Pack<T, N>& pack) {
  if constexpr (std::is_same_v<T, BFloat16> && std::is_same_v<A, float> && N % 2 == 0) {
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      uint32_t pair;
      memcpy(&pair, &pack[j], sizeof pair);
      values[j] = __uint_as_float(pair << 16);
      values[j + 1] = __uint_as_float(pair & 0xFFFF0000u);
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = static_cast<A>(pack[j]);
  }
}

// The values rounded to T, as one access: compilers have been seen to store the words of a pack one
// by one. `to` lies in global memory.
template <class T, int N>
__device__ __forceinline__ void store_rounded(T* to, const acc_t<T> (&values)[N]) {
  const Pack<T, N> pack = round_pack<T>(values);
  if constexpr (sizeof pack == 16) {
    uint4 word;
    memcpy(&word, &pack, sizeof word);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word.x), "r"(word.y),
                 "r"(word.z), "r"(word.w)
                 : "memory");
  } else {
    store_pack(to, pack);
  }
}

}  // namespace gradus
