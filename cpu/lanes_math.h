// Elementary functions of numbers and of lanes under one name, for formulas that both backends
// share.
#pragma once

#include <cmath>

#include "cpu/exp.h"

namespace gradus::GRADUS_ISA {

// What the formulas of core/ops/ ask of a backend.
struct Math {
  static float exp(float x) { return std::exp(x); }
  static double exp(double x) { return std::exp(x); }
  static Lanes<float> exp(Lanes<float> x) { return exp_lanes<float>(x); }
  static Lanes<double> exp(Lanes<double> x) { return exp_lanes<double>(x); }
  template <class V>
  static V exp_term(V x) {
    return exp(x);
  }
  template <class V>
  static auto exp_terms(V s) {
    return [s](V x) { return exp(x - s); };
  }
  template <class V>
  static V ratio(V a, V b) {
    return a / b;
  }
  template <class V>
  static V share(V part, V whole) {
    return part / whole;
  }
  template <class A>
  static A log(A x) {
    return std::log(x);
  }
  template <class A>
  static A sqrt(A x) {
    return std::sqrt(x);
  }
  // NaN if either is.
  template <class V>
  static V larger(V a, V b) {
    return ((a > b) | (a != a)) ? a : b;
  }
  template <class V>
  static V smaller(V a, V b) {
    return ((a < b) | (a != a)) ? a : b;
  }
};

}  // namespace gradus::GRADUS_ISA
