// logsumexp of columns of 16-bit values, for the kernel that is bound by its instructions
// otherwise.
#pragma once

#include "core/ops/reductions.h"
#include "cuda/device/raw.cuh"
#include "cuda/reduce_items.cuh"

namespace gradus {

// Of two pairs of neighbouring 16-bit values the larger ones; NaN if either is.
template <class T>
__device__ __forceinline__ uint32_t larger_pair(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<T, Half>) {
    asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  } else {
    asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  }
  return a;
}

// U rows of N neighbouring columns and the columns' maxima, which are compared two by two as they
// are stored.
template <class T, int U, int N>
class LogTerms {
 public:
  __device__ __forceinline__ explicit LogTerms(const Pack<T, N> (&rows)[U]) : rows_(rows) {
#pragma unroll
    for (int p = 0; p < N / 2; ++p) {
      maxima_[p] = word(rows[0], p);
#pragma unroll
      for (int u = 1; u < U; ++u) maxima_[p] = larger_pair<T>(maxima_[p], word(rows[u], p));
    }
  }

  // Whether all maxima are below 2^16 in magnitude, where exp_terms has one form.
  __device__ __forceinline__ bool are_usual() const {
    uint32_t most = 0;
#pragma unroll
    for (int p = 0; p < N / 2; ++p) most = larger_pair<T>(most, maxima_[p] & 0x7FFF7FFFu);
    const auto [low, high] = values(most);
    return low < 65536 && high < 65536;
  }

  // What LogSumExp::of has of column j, where they are.
  __device__ __forceinline__ Partial<float, 2> usual_part(int j) const {
    const auto [low, high] = values(maxima_[j / 2]);
    const float max = j % 2 == 0 ? low : high;
    const auto exp_of = DeviceHalfMath::exp_terms(max, true);
    float terms[U];
    column_values(terms, rows_, j);
#pragma unroll
    for (int u = 0; u < U; ++u) terms[u] = exp_of(terms[u]);
    return {max, fold_sum(terms)};
  }

 private:
  struct Pair {
    float low, high;
  };
  __device__ __forceinline__ static uint32_t word(const Pack<T, N>& row, int p) {
    uint32_t pair;
    memcpy(&pair, &row[2 * p], sizeof pair);
    return pair;
  }
  __device__ __forceinline__ static Pair values(uint32_t pair) {
    Raw<T, 2> raw;
    raw.word = pair;
    return {raw[0], raw[1]};
  }

  const Pack<T, N> (&rows_)[U];
  uint32_t maxima_[N / 2];
};

}  // namespace gradus
