// Packs on their way through a kernel: loaded past L1 where it touches each once, unpacked, rounded
// and stored in whole accesses.
#pragma once

#include "cuda/device/raw.cuh"

namespace gradus {

// load_pack for what is read once: it goes past L1. Not ld.global.nc, which may not read what a
// kernel before writes while this one waits for it.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack_once(const T* from) {
  if constexpr (sizeof(Pack<T, N>) < 16) {
    return load_pack<N>(from);
  } else {
    uint4 word;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(from));
    Pack<T, N> pack;
    memcpy(&pack, &word, sizeof word);
    return pack;
  }
}

template <class T, int N>
__device__ __forceinline__ void widen_pack(acc_t<T> (&values)[N], const Pack<T, N>& pack) {
  Raw<T, N> raw;
  memcpy(&raw.word, &pack, sizeof pack);
  raw.unpack(values);
}

// N neighbouring values, in accesses of up to 16 bytes.
template <int N, class T>
__device__ __forceinline__ void load_values(acc_t<T>* values, const T* from) {
  constexpr int kStep = N < kFullPack<T> ? N : kFullPack<T>;
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    const Raw<T, kStep> raw = load_raw<kStep>(from + i);
#pragma unroll
    for (int j = 0; j < kStep; ++j) values[i + j] = raw[j];
  }
}

// The values rounded to T; `to` lies in global memory.
template <class T, int N>
__device__ __forceinline__ void store_rounded(T* to, const acc_t<T> (&values)[N]) {
  Raw<T, N> raw;
  raw.round(values);
  raw.store(to);
}

}  // namespace gradus
