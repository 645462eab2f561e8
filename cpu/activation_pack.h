// A vector register as the value type that activations are computed in, with the primitives that
// core/ops/activation_math.h asks of it.
#pragma once

#include <limits>

#include "core/ops/activation_math.h"
#include "cpu/context.h"
#include "cpu/vector.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace gradus::GRADUS_ISA {

template <class A>
using LaneBits = std::conditional_t<sizeof(A) == 4, int32_t, int64_t>;

// One bit pattern per lane: all ones where a condition holds, else 0.
template <class A>
struct PackMask {
  Vec<LaneBits<A>> lanes;
  friend GRADUS_INLINE PackMask operator|(PackMask a, PackMask b) { return {a.lanes | b.lanes}; }
  friend GRADUS_INLINE PackMask operator&(PackMask a, PackMask b) { return {a.lanes & b.lanes}; }
  GRADUS_INLINE PackMask operator!() const { return {~lanes}; }
};

template <class A>
struct ActivationPack {
  using Scalar = A;
  using Mask = PackMask<A>;
  Vec<A> v;

  ActivationPack() = default;
  GRADUS_INLINE explicit ActivationPack(Vec<A> vector) : v(vector) {}
  template <class N>
  requires(std::is_arithmetic_v<N>) GRADUS_INLINE explicit ActivationPack(N value)
      : v(Vec<A>{} + static_cast<A>(value)) {}

  using Self = ActivationPack;
  friend GRADUS_INLINE Self operator+(Self a, Self b) { return Self(a.v + b.v); }
  friend GRADUS_INLINE Self operator-(Self a, Self b) { return Self(a.v - b.v); }
  friend GRADUS_INLINE Self operator*(Self a, Self b) { return Self(a.v * b.v); }
  friend GRADUS_INLINE Self operator/(Self a, Self b) { return Self(a.v / b.v); }
  friend GRADUS_INLINE Self operator-(Self a) { return Self(-a.v); }
  friend GRADUS_INLINE Mask operator<(Self a, Self b) { return {a.v < b.v}; }
  friend GRADUS_INLINE Mask operator>(Self a, Self b) { return {a.v > b.v}; }
  friend GRADUS_INLINE Mask operator<=(Self a, Self b) { return {a.v <= b.v}; }
  friend GRADUS_INLINE Mask operator>=(Self a, Self b) { return {a.v >= b.v}; }

  friend GRADUS_INLINE Self select(Mask condition, Self a, Self b) {
    return Self(condition.lanes ? a.v : b.v);
  }
  friend GRADUS_INLINE Self fused(Self a, Self b, Self c) { return Self(a.v * b.v + c.v); }
  friend GRADUS_INLINE Self reciprocal_of(Self x) { return Self(A(1) / x.v); }
  friend GRADUS_INLINE Self abs_of(Self x) { return with_bits(bits(x) & magnitude()); }
  friend GRADUS_INLINE Self copysign_of(Self x, Self sign) {
    return with_bits((bits(x) & magnitude()) | (bits(sign) & ~magnitude()));
  }
  friend GRADUS_INLINE Self power_of_two(Self shifted) {
    using Unsigned = std::make_unsigned_t<LaneBits<A>>;
    constexpr int mantissa = sizeof(A) == 4 ? 23 : 52;
    constexpr Unsigned one = sizeof(A) == 4 ? 0x3F800000u : 0x3FF0000000000000u;
    const Vec<Unsigned> raised = ((Vec<Unsigned>)shifted.v << mantissa) + one;
    return Self((Vec<A>)raised);
  }
  friend GRADUS_INLINE Self product_of(Self a, Self b) {
    Vec<A> product = a.v * b.v;
    // The compiler does not see a product any more.
#if defined(GRADUS_ISA_avx512)
    asm("" : "+v"(product));
#elif defined(GRADUS_ISA_avx2)
    asm("" : "+x"(product));
#endif
    return Self(product);
  }
  friend GRADUS_INLINE Self product_error(Self a, Self b, Self product) {
#if defined(GRADUS_ISA_avx512)
    if constexpr (sizeof(A) == 4) {
      return Self((Vec<A>)_mm512_fmsub_ps((__m512)a.v, (__m512)b.v, (__m512)product.v));
    } else {
      return Self((Vec<A>)_mm512_fmsub_pd((__m512d)a.v, (__m512d)b.v, (__m512d)product.v));
    }
#elif defined(GRADUS_ISA_avx2)
    if constexpr (sizeof(A) == 4) {
      return Self((Vec<A>)_mm256_fmsub_ps((__m256)a.v, (__m256)b.v, (__m256)product.v));
    } else {
      return Self((Vec<A>)_mm256_fmsub_pd((__m256d)a.v, (__m256d)b.v, (__m256d)product.v));
    }
#else
    // Dekker 1971, https://doi.org/10.1007/BF01397083: products of halves are exact.
    const Vec<A> a_high = high_half(a.v), b_high = high_half(b.v);
    const Vec<A> a_low = a.v - a_high, b_low = b.v - b_high;
    return Self(a_low * b_low -
                (((product.v - a_high * b_high) - a_low * b_high) - a_high * b_low));
#endif
  }

 private:
  using Bits = Vec<LaneBits<A>>;
  static GRADUS_INLINE Bits bits(Self x) { return (Bits)x.v; }
  static GRADUS_INLINE Self with_bits(Bits b) { return Self((Vec<A>)b); }
  static GRADUS_INLINE Bits magnitude() { return Bits{} + std::numeric_limits<LaneBits<A>>::max(); }
  static GRADUS_INLINE Vec<A> high_half(Vec<A> x) {
    const Vec<A> scaled = x * (sizeof(A) == 4 ? A(4097) : A(134217729));
    return scaled - (scaled - x);
  }
};

// The mask's lanes as the low kLanes<A> bits.
template <class A>
GRADUS_INLINE uint32_t mask_bits(PackMask<A> mask) {
#if defined(GRADUS_ISA_avx512)
  if constexpr (sizeof(A) == 4) return _mm512_movepi32_mask((__m512i)mask.lanes);
  return _mm512_movepi64_mask((__m512i)mask.lanes);
#elif defined(GRADUS_ISA_avx2)
  if constexpr (sizeof(A) == 4)
    return static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask.lanes));
  return static_cast<uint32_t>(_mm256_movemask_pd((__m256d)mask.lanes));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes<A>; ++i) bits |= (mask.lanes[i] != 0 ? 1u : 0u) << i;
  return bits;
#endif
}

// The low kLanes<A> bits as a mask.
template <class A, int... I>
GRADUS_INLINE PackMask<A> mask_of_bits(uint32_t bits, std::integer_sequence<int, I...>) {
  constexpr Vec<LaneBits<A>> each{(LaneBits<A>(1) << I)...};
  const Vec<LaneBits<A>> all = Vec<LaneBits<A>>{} + static_cast<LaneBits<A>>(bits);
  return {(all & each) != 0};
}
template <class A>
GRADUS_INLINE PackMask<A> mask_of_bits(uint32_t bits) {
  return mask_of_bits<A>(bits, std::make_integer_sequence<int, kLanes<A>>());
}

}  // namespace gradus::GRADUS_ISA

namespace gradus {
template <class A>
struct ScalarOf<GRADUS_ISA::ActivationPack<A>> {
  using type = A;
};
}  // namespace gradus
