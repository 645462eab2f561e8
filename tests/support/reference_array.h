// The array that the naive references compute on, and the gradient by finite differences.
//
// The references share no code with the kernels they judge: of gradus they know only Shape. They
// take and give f64, row-major (NCHW), and add in long double, so that their own rounding does not
// count against an f64 kernel.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/shape.h"

namespace gradus::ref {

using Real = long double;  // what sums are kept in

struct Array {
  Shape shape;
  std::vector<double> data;  // row-major; an Array without data stands for an absent argument

  bool empty() const { return data.empty(); }
  int64_t numel() const { return static_cast<int64_t>(data.size()); }
  double operator[](int64_t i) const { return data[static_cast<size_t>(i)]; }
  double& operator[](int64_t i) { return data[static_cast<size_t>(i)]; }

  // Element at one index per axis: x.at(n, c, h, w).
  template <class... Index>
  double at(Index... index) const {
    return data[offset({static_cast<int64_t>(index)...})];
  }
  template <class... Index>
  double& at(Index... index) {
    return data[offset({static_cast<int64_t>(index)...})];
  }

 private:
  size_t offset(std::initializer_list<int64_t> index) const;  // throws std::out_of_range
};

Array full(const Shape& shape, double value);
inline Array zeros(const Shape& shape) { return full(shape, 0.0); }

// Sums in Real of the shape of an Array, until all terms are in.
struct Sums {
  Shape shape;
  std::vector<Real> data;

  explicit Sums(const Shape& s) : shape(s), data(static_cast<size_t>(s.numel()), Real(0)) {}
  Real& operator[](int64_t i) { return data[static_cast<size_t>(i)]; }
  Array rounded() const;
};

// The values given must fill the shape, else std::invalid_argument.
Array array(const Shape& shape, std::vector<double> values);

// Refuses what a caller got wrong with std::invalid_argument: a test's own mistake, not an Error.
void require(bool condition, const char* text);

using Function = std::function<Array(const Array&)>;

// d(sum of dy * f(x)) / dx by central differences with step h.
Array numeric_gradient(const Function& f, const Array& x, const Array& dy, double h = 1e-6);

}  // namespace gradus::ref
