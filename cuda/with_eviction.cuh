// Kernels that tell the second-level cache what to keep, where the tensors do not fit there.
// Host-only.
#pragma once

#include <type_traits>

#include "cuda/device/l2_policy.cuh"
#include "cuda/fits_l2.h"

namespace gradus {

// Calls f(constant of Evict) with the policy for loads of what a kernel reads once: where
// `bytes`, a tensor or as many of them as was measured to be best, do not fit the cache, it is to
// give up results before them. Only loads and copies of 16 bytes can ask for it, and it costs
// tensors that do fit a little: kernels have an instance for each.
template <int kLoadBytes, class F>
void with_eviction(const Cuda& cuda, int64_t bytes, F&& f) {
  using enum Evict;
  if constexpr (kLoadBytes == 16) {
    if (!fits_l2(cuda, bytes)) return f(std::integral_constant<Evict, last>());
  }
  f(std::integral_constant<Evict, normal>());
}

}  // namespace gradus
