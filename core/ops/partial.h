// What reductions share: the description of part of a set, for a value type V that is a number or a
// vector of numbers (one set per lane).
#pragma once

#include <type_traits>

#include "core/host_device.h"

// Before a loop over the elements of a small array that is to stay in registers.
#if defined(__CUDA_ARCH__)
#define GRADUS_UNROLL _Pragma("unroll")
#elif defined(__CUDACC__)
#define GRADUS_UNROLL
#else
#define GRADUS_UNROLL _Pragma("GCC unroll 32")
#endif

namespace gradus {

// K values that describe part of a set. They say which in an enum of their own.
template <class V, int K>
struct Partial {
  V v[K];
};

namespace detail {
template <class V, bool = std::is_arithmetic_v<V>>
struct NumberOf {
  using type = V;
};
template <class V>
struct NumberOf<V, false> {
  using type = std::decay_t<decltype(V{}[0])>;
};
}  // namespace detail

// The numbers that a V holds.
template <class V>
using number_t = typename detail::NumberOf<V>::type;

// `value` in every lane.
template <class V>
GRADUS_HD V constant(double value) {
  return V{} + static_cast<number_t<V>>(value);
}

// Sum and product of U values, halves folded onto each other; U is a power of two. By recursion, so
// that no compiler leaves the array in memory.
template <class V, int U>
GRADUS_HD V fold_sum(const V (&values)[U]) {
  if constexpr (U == 1) {
    return values[0];
  } else {
    V sums[U / 2];
    GRADUS_UNROLL
    for (int i = 0; i < U / 2; ++i) sums[i] = values[i] + values[i + U / 2];
    return fold_sum(sums);
  }
}
template <class V, int U>
GRADUS_HD V fold_product(const V (&values)[U]) {
  if constexpr (U == 1) {
    return values[0];
  } else {
    V products[U / 2];
    GRADUS_UNROLL
    for (int i = 0; i < U / 2; ++i) products[i] = values[i] * values[i + U / 2];
    return fold_product(products);
  }
}

// What a reduction gives for a whole set: y, and the statistics that its gradient needs.
template <class A>
struct Reduced {
  A y;
  A stat0 = A(0);
  A stat1 = A(0);
};

}  // namespace gradus
