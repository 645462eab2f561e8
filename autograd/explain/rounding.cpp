#include "autograd/explain/rounding.h"

#include <algorithm>

#include "core/tolerance.h"

namespace gradus::explain {
namespace {

void enter(Precision precision) {
  current_precision = precision;
  work_rounding = rounding_of(precision.work);
  storage_rounding = rounding_of(precision.storage);
}

}  // namespace

DType Precision::coarser() const {
  return unit_roundoff(work) > unit_roundoff(storage) ? work : storage;
}

Rounding rounding_of(DType dtype) {
  return {unit_roundoff(dtype), ulp(0.0, dtype), largest_of(dtype)};
}

RoundingScope::RoundingScope(Precision precision) : before_(current_precision) { enter(precision); }
RoundingScope::~RoundingScope() { enter(before_); }

Number pow(const Number& base, double power) {
  const double value = std::pow(base.value, power);
  const double share = base.error / std::abs(base.value);
  if (!(share < 1)) {
    const double most = std::pow(std::abs(base.value) + base.error, power);
    return {value, power > 0 ? most + work_rounding.of(most) : INFINITY};
  }
  // (1 - share)^-|power| - 1 bounds both sides.
  const double moved = std::expm1(-std::abs(power) * std::log1p(-share));
  // pow() goes by way of exp and log in some libraries.
  const double steps = 2 + (power == -0.5 ? 0 : std::abs(power * std::log(std::abs(base.value))));
  return {value, std::abs(value) * moved + steps * work_rounding.of(value)};
}

Number exp(const Number& x) {
  const double value = std::exp(x.value);
  // Of an x far below 0, such as a mask, no error makes more than 0.
  const double moved = value > 0 ? value * std::expm1(x.error) : std::exp(x.value + x.error);
  const double steps = (1 + std::abs(x.value)) * work_rounding.unit * value;
  return {value, moved + steps + work_rounding.of(value)};
}

Number as_input(double value) {
  return {value, std::abs(round_to(value, current_precision.coarser()) - value)};
}

Numbers as_inputs(const std::vector<double>& values) {
  Numbers numbers(values.size());
  std::ranges::transform(values, numbers.begin(), as_input);
  return numbers;
}

Number Sum::total() const {
  const double roundings = std::min(count_, 8 + std::sqrt(count_));
  return {value_, error_ + roundings * work_rounding.of(magnitude_)};
}

double allowance(const Number& number) {
  constexpr double kOtherFormulas = 2;
  return kOtherFormulas * number.error + storage_rounding.of(number.value);
}

std::vector<double> values_of(const Numbers& numbers) {
  std::vector<double> values(numbers.size());
  std::ranges::transform(numbers, values.begin(), &Number::value);
  return values;
}

}  // namespace gradus::explain
