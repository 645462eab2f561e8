// Packs of stored values in registers, 16-bit ones two by two, until they are unpacked.
#pragma once

#include "core/dtype.h"
#include "cuda/device/vector.cuh"

namespace gradus {

// N values of T as one access moves them: 16-bit values share a register.
template <class T, int N>
struct Raw {
  word_t<static_cast<int>(sizeof(T)) * N> word;

  __device__ __forceinline__ void load(const T* from) {
    word = *reinterpret_cast<const decltype(word)*>(from);
  }
  __device__ __forceinline__ void unpack(acc_t<T> (&values)[N]) const {
    if constexpr (std::is_same_v<T, BFloat16> && N % 2 == 0) {
      uint32_t pairs[N / 2];
      memcpy(pairs, &word, sizeof word);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        values[2 * i] = __uint_as_float(pairs[i] << 16);
        values[2 * i + 1] = __uint_as_float(pairs[i] & 0xFFFF0000u);
      }
    } else {
      T stored[N];
      memcpy(stored, &word, sizeof word);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = static_cast<acc_t<T>>(stored[i]);
    }
  }
  // Value j, unpacked.
  __device__ __forceinline__ acc_t<T> operator[](int j) const {
    if constexpr (std::is_same_v<T, BFloat16> && N % 2 == 0) {
      uint32_t pairs[N / 2];
      memcpy(pairs, &word, sizeof word);
      return __uint_as_float(j % 2 == 0 ? pairs[j / 2] << 16 : pairs[j / 2] & 0xFFFF0000u);
    } else {
      T stored[N];
      memcpy(stored, &word, sizeof word);
      return static_cast<acc_t<T>>(stored[j]);
    }
  }
  // To nearest even. Values that do not come from arithmetic may lose the sign of a NaN.
  __device__ __forceinline__ void round(const acc_t<T> (&values)[N]) {
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
      uint32_t pairs[N / 2];
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        pairs[i] = rounded_pair<T>(values[2 * i], values[2 * i + 1]);
      }
      memcpy(&word, pairs, sizeof word);
    } else {
      T stored[N];
#pragma unroll
      for (int i = 0; i < N; ++i) stored[i] = static_cast<T>(values[i]);
      memcpy(&word, stored, sizeof word);
    }
  }
  // In one access, also where the compiler would split 16 bytes.
  __device__ __forceinline__ void store(T* to) const {
    if constexpr (sizeof word == 16) {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                   :
                   : "l"(to), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
                   : "memory");
    } else {
      *reinterpret_cast<decltype(word)*>(to) = word;
    }
  }
  // Keeps the compiler from unpacking once for several uses, far apart: that takes twice the
  // registers of 16-bit values.
  __device__ __forceinline__ void forget_unpacked() {
    if constexpr (sizeof(T) == 2 && sizeof word == 16) {
      asm volatile("" : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w));
    }
  }
};

template <int N, class T>
__device__ __forceinline__ Raw<T, N> load_raw(const T* from) {
  Raw<T, N> raw;
  raw.load(from);
  return raw;
}
template <class T, int N>
__device__ __forceinline__ Raw<T, N> round_raw(const acc_t<T> (&values)[N]) {
  Raw<T, N> raw;
  raw.round(values);
  return raw;
}

}  // namespace gradus
