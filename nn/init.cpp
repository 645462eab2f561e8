#include "nn/init.h"

#include <cmath>

#include "core/ops/random.h"

namespace gradus::nn {
namespace {

PhiloxSequence& sequence() {
  thread_local PhiloxSequence values(0, random_stream::kInit);
  thread_local int64_t count = 0;
  const Seeding now = seeding();
  if (count != now.count) {
    values = PhiloxSequence(now.seed, random_stream::kInit);
    count = now.count;
  }
  return values;
}

double bound_of(const Shape& weight_shape) {
  check(weight_shape.rank() >= 2, "init", "expected weights of rank 2 or more, got ", weight_shape);
  checked_numel(weight_shape, "init");  // throws where the product below would overflow
  int64_t fan_in = 1;
  for (int i = 1; i < weight_shape.rank(); ++i) fan_in *= weight_shape[i];
  return fan_in == 0 ? 0.0 : 1.0 / std::sqrt(static_cast<double>(fan_in));
}

}  // namespace

namespace init {

Tensor uniform(const Shape& shape, double low, double high) {
  std::vector<float> values(static_cast<size_t>(checked_numel(shape, "init")));
  for (float& value : values) {
    value = static_cast<float>(sequence().uniform(low, high));
    // It may have been rounded up to high.
    if (low < high && value >= high) value = largest_below<float>(high);
  }
  return Tensor::from_vector(values, shape).set_requires_grad(true);
}

Tensor kaiming_uniform(const Shape& shape) {
  const double bound = bound_of(shape);
  return uniform(shape, -bound, bound);
}

Tensor bias_uniform(const Shape& weight_shape) {
  const double bound = bound_of(weight_shape);
  return uniform({weight_shape[0]}, -bound, bound);
}

Tensor constant(const Shape& shape, double value) {
  return Tensor::full(shape, value).set_requires_grad(true);
}

}  // namespace init
}  // namespace gradus::nn
