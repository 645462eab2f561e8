// Element types, and the one visit from a run-time DType to a compile-time type.
//
//   visit(Floating{}, x.dtype, [&](auto type) {
//     using T = typename decltype(type)::type;
//     kernel(View<const T>(x));
//   });
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "core/error.h"
#include "core/half.h"

namespace gradus {

// f32 f64 f16 bf16 carry values and gradients; u8 i32 i64 carry pixels, labels and indices.
enum class DType : uint8_t { f32, f64, f16, bf16, u8, i32, i64 };

constexpr std::string_view to_string(DType dtype) {
  constexpr std::string_view names[] = {"f32", "f64", "f16", "bf16", "u8", "i32", "i64"};
  return names[static_cast<int>(dtype)];
}

// Size of one element in bytes.
constexpr int64_t size_of(DType dtype) {
  constexpr int64_t sizes[] = {4, 8, 2, 2, 1, 4, 8};
  return sizes[static_cast<int>(dtype)];
}

constexpr bool is_floating(DType dtype) { return dtype <= DType::bf16; }
constexpr bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

// The dtype in which sums, statistics and parameter gradients of `dtype` are kept.
constexpr DType acc_dtype(DType dtype) { return is_half(dtype) ? DType::f32 : dtype; }

// "f16" and the like back to a DType; throws invalid_argument naming the choices.
DType parse_dtype(std::string_view text);

template <class T>
struct Type {
  using type = T;
};

template <class... Ts>
struct TypeList {};

using Floating = TypeList<float, double, Half, BFloat16>;
using AllTypes = TypeList<float, double, Half, BFloat16, uint8_t, int32_t, int64_t>;

namespace detail {
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<Half> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
}  // namespace detail

template <class T>
inline constexpr DType dtype_of = detail::DTypeOf<std::remove_const_t<T>>::value;

// The type that sums of T are kept in: float for 16-bit storage, else T itself.
template <class T>
using acc_t = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;

// One element converted: to the 16-bit types with one rounding to nearest even (integers beyond
// 2^53 are rounded to f64 first); from a floating type to an integer towards zero, out of range to
// the nearest end, NaN to 0; between integers modulo 2^bits.
template <class To, class From>
GRADUS_HD To convert_to(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
    return convert_to<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>) {
    using Wide = std::conditional_t<std::is_same_v<From, float>, float, double>;
    return static_cast<To>(static_cast<Wide>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr From above = static_cast<From>(uint64_t(1) << std::numeric_limits<To>::digits);
    constexpr From below = std::is_signed_v<To> ? -above : From(0);
    if (value >= above) return std::numeric_limits<To>::max();
    if (value <= below) return std::numeric_limits<To>::min();
    return value != value ? To(0) : static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// A set of dtypes, as an op declares what a backend supports.
struct DTypeSet {
  uint32_t bits = 0;
  constexpr bool contains(DType dtype) const { return (bits >> static_cast<int>(dtype)) & 1u; }
};

template <class... Ts>
constexpr DTypeSet dtype_set(TypeList<Ts...>) {
  return {((1u << static_cast<int>(dtype_of<Ts>)) | ... | 0u)};
}
inline constexpr DTypeSet kFloating = dtype_set(Floating{});
inline constexpr DTypeSet kAllDTypes = dtype_set(AllTypes{});

namespace detail {
// Out of line: cpu/ files must not define symbols that they share between instruction sets.
[[noreturn]] void fail_visit(DType dtype);
}  // namespace detail

// Calls f(Type<T>{}) for the T of the list that `dtype` names; throws unsupported if none does.
template <class... Ts, class F>
void visit(TypeList<Ts...>, DType dtype, F&& f) {
  const bool found = ((dtype == dtype_of<Ts> ? (f(Type<Ts>{}), true) : false) || ...);
  if (!found) detail::fail_visit(dtype);
}

}  // namespace gradus
