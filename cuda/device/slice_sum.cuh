// Second stages of sums over slices.
#pragma once

#include "cuda/device/vector.cuh"

namespace gradus {

// Σ of N neighbouring values of slices first, first + step, ... of `slices`, in this order; `size`
// values lie between slices. Loads of Ahead slices are on their way at a time, those that remain at
// the end, too: the loop that the compiler would make of them waits for each.
template <int Ahead, int N, class Acc>
__device__ __forceinline__ Pack<Acc, N> add_slices(const Acc* values, int64_t size, int slices,
                                                   int first, int step) {
  Pack<Acc, N> sum = {};
  const Acc* at = values + first * size;
  const int64_t stride = step * size;
  const auto add = [&](const Pack<Acc, N>(&more)[Ahead]) {
#pragma unroll
    for (int i = 0; i < Ahead; ++i) {
#pragma unroll
      for (int e = 0; e < N; ++e) sum[e] += more[i][e];
    }
  };
  int left = first < slices ? (slices - first - 1) / step + 1 : 0;
#pragma unroll 1
  for (; left >= Ahead; left -= Ahead, at += Ahead * stride) {
    Pack<Acc, N> more[Ahead];
#pragma unroll
    for (int i = 0; i < Ahead; ++i) more[i] = load_pack<N>(at + i * stride);
    add(more);
  }
  if (left > 0) {
    Pack<Acc, N> more[Ahead] = {};
#pragma unroll
    for (int i = 0; i < Ahead - 1; ++i) {
      if (i < left) more[i] = load_pack<N>(at + i * stride);
    }
    add(more);
  }
  return sum;
}

}  // namespace gradus
