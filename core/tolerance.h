// How far a result may be off: one function of its dtype and of the number of values that are
// added up behind it. Tests, `gradus compare` and gradus::compare() judge by it.
//
//   const Tolerance allowed = tolerance(DType::bf16, m);
//   bool ok = share_of_allowed(got, want, DType::bf16, allowed.at(want, scale)) <= 1;
#pragma once

#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace gradus {

// A value w may be off by relative * |w| + of_scale * scale + absolute, where scale is the largest
// magnitude among the values that are added up.
struct Tolerance {
  double relative = 0;
  double of_scale = 0;
  double absolute = 0;

  double at(double want, double scale) const {
    return relative * std::abs(want) + of_scale * scale + absolute;
  }
};

// How the factors of a product are rounded before they are multiplied.
enum class Products : uint8_t { exact, tf32 };

// Tolerance of an op with storage `dtype` whose sums add `reduction_length` values in acc_dtype:
//   relative  half an ulp of the storage, and one for a reference rounded the other way
//             (+ 4 u_acc where nothing is added up, reduction_length = 0: no scale is needed then)
//   of_scale  u_acc * (8 + sqrt(m)): the roundings of the element's own formula, and a random walk
//             of m roundings; a tree or blocked sum stays below, a serial f32 sum of 10^7 does not
//   absolute  one subnormal step of the storage
// Integer dtypes are compared exactly.
Tolerance tolerance(DType dtype, int64_t reduction_length, Products products = Products::exact);

// Half the distance of 1 and the next number of `dtype`, which is floating.
double unit_roundoff(DType dtype);

// The largest finite number of `dtype`, which is floating.
double largest_of(DType dtype);

// Distance of neighbouring values of `dtype` around `value` (never below a subnormal step).
double ulp(double value, DType dtype);

// `value` rounded to `dtype`, back in f64.
double round_to(double value, DType dtype);

// |got - want| as a share of `allowed`, which may be 0. NaN agrees with NaN only; inf with the same
// inf, or with a `want` that overflows `dtype`; infinite where they do not agree.
double share_of_allowed(double got, double want, DType dtype, double allowed);

}  // namespace gradus
