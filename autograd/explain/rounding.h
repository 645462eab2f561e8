// Numbers that carry how far rounding may take whoever computes the same in a dtype: the bound by
// which a diagnosis tells a rounding error from a slip.
//
// The rule: inputs are rounded to the dtype once (not at all where it holds them exactly); each
// operation adds unit·|result| and a subnormal step to what its operands bring along, to first
// order and in the worst case; a sum of m values adds min(m, 8 + sqrt(m))·unit·Σ|values|, as
// core/tolerance.h counts; what overflows the dtype has an infinite error. Cancellation needs no
// rule of its own: x - mu of values far from 0 keeps the absolute error of x and mu.
#pragma once

#include <cmath>
#include <compare>
#include <vector>

#include "core/dtype.h"

namespace gradus::explain {

// What a gradient was computed in: `work` for every operation, inputs and results in `storage`.
struct Precision {
  DType storage = DType::f64;
  DType work = DType::f64;

  DType coarser() const;
  auto operator<=>(const Precision&) const = default;
};

struct Rounding {
  double unit = 0x1p-53, least = 0x1p-1074, most = 0x1.fffffffffffffp1023;

  double of(double value) const {
    return std::abs(value) <= most ? unit * std::abs(value) + least : INFINITY;
  }
};
Rounding rounding_of(DType dtype);

// The precision by which the numbers of this thread are rounded; f64 outside of all scopes.
inline thread_local Precision current_precision;
inline thread_local Rounding work_rounding, storage_rounding;
class RoundingScope {
 public:
  explicit RoundingScope(Precision precision);
  ~RoundingScope();
  RoundingScope(const RoundingScope&) = delete;
  RoundingScope& operator=(const RoundingScope&) = delete;

 private:
  Precision before_;
};

struct Number {
  double value = 0, error = 0;

  Number() = default;
  Number(double exact) : value(exact) {}  // NOLINT: constants mix with numbers
  // An error that nothing is known of, such as that of 0·(1 ± infinity), is infinite.
  Number(double v, double e) : value(v), error(std::isnan(e) ? INFINITY : e) {}
};
using Numbers = std::vector<Number>;

// A number with the rounding of the operation that gives it.
inline Number rounded(double value, double error) {
  return {value, error + work_rounding.of(value)};
}
inline Number operator-(const Number& a) { return {-a.value, a.error}; }
inline Number operator+(const Number& a, const Number& b) {
  return rounded(a.value + b.value, a.error + b.error);
}
inline Number operator-(const Number& a, const Number& b) { return a + -b; }
inline Number operator*(const Number& a, const Number& b) {
  return rounded(a.value * b.value,
                 std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error);
}
inline Number operator/(const Number& a, const Number& b) {
  const double value = a.value / b.value, least = std::abs(b.value) - b.error;
  return rounded(value, least > 0 ? (a.error + std::abs(value) * b.error) / least : INFINITY);
}
inline Number& operator+=(Number& a, const Number& b) { return a = a + b; }
inline Number& operator*=(Number& a, const Number& b) { return a = a * b; }

// base^power of what is not negative; an error that reaches 0 is infinite for negative powers.
Number pow(const Number& base, double power);
Number exp(const Number& x);

// An input as the dtypes of the scope hold it.
Number as_input(double value);
Numbers as_inputs(const std::vector<double>& values);

// Σ, added one by one.
class Sum {
 public:
  void add(const Number& a) {
    value_ += a.value;
    error_ += a.error;
    magnitude_ += std::abs(a.value);
    ++count_;
  }
  Number total() const;

 private:
  double value_ = 0, error_ = 0, magnitude_ = 0, count_ = 0;
};

// How far a claim of the scope's precision may be from the number: twice what the rule gives, since
// there are other ways to write a formula, and the rounding of the result.
double allowance(const Number& number);

std::vector<double> values_of(const Numbers& numbers);

}  // namespace gradus::explain
