#include "tests/support/reference_array.h"

#include <stdexcept>

namespace gradus::ref {

size_t Array::offset(std::initializer_list<int64_t> index) const {
  if (static_cast<int>(index.size()) != shape.rank()) {
    throw std::out_of_range("reference: one index per axis expected");
  }
  int64_t offset = 0;
  int axis = 0;
  for (const int64_t i : index) {
    if (i < 0 || i >= shape[axis]) throw std::out_of_range("reference: index outside the shape");
    offset = offset * shape[axis++] + i;
  }
  return static_cast<size_t>(offset);
}

Array Sums::rounded() const {
  Array result{shape, {}};
  for (const Real value : data) result.data.push_back(static_cast<double>(value));
  return result;
}

Array full(const Shape& shape, double value) {
  return {shape, std::vector<double>(static_cast<size_t>(shape.numel()), value)};
}

Array array(const Shape& shape, std::vector<double> values) {
  require(shape.numel() == static_cast<int64_t>(values.size()), "values do not fill the shape");
  return {shape, std::move(values)};
}

void require(bool condition, const char* text) {
  if (!condition) throw std::invalid_argument(std::string("reference: ") + text);
}

Array numeric_gradient(const Function& f, const Array& x, const Array& dy, double h) {
  Array dx = zeros(x.shape);
  Array moved = x;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double above = x[i] + h;
    const double below = x[i] - h;
    moved[i] = above;
    const Array y_above = f(moved);
    moved[i] = below;
    const Array y_below = f(moved);
    moved[i] = x[i];
    require(y_above.numel() == dy.numel(), "numeric_gradient: dy must have the shape of f(x)");

    Real change = 0;
    for (int64_t j = 0; j < dy.numel(); ++j) {
      change += Real(dy[j]) * (Real(y_above[j]) - Real(y_below[j]));
    }
    dx[i] = static_cast<double>(change / (Real(above) - Real(below)));
  }
  return dx;
}

}  // namespace gradus::ref
