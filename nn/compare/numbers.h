// The values of a tensor on any device, as f64 in the order of its indices.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "core/tensor.h"

namespace gradus {

// A tensor that is so already is not copied.
class Numbers {
 public:
  explicit Numbers(const Tensor& tensor)
      : tensor_(tensor.detach().to(kCpu).to(DType::f64).contiguous()),
        values_(tensor_.raw().as<double>(), static_cast<size_t>(tensor_.numel())) {}

  size_t size() const { return values_.size(); }
  double operator[](size_t i) const { return values_[i]; }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  Tensor tensor_;
  std::span<const double> values_;
};

// Of the finite ones.
inline double largest_size(const Numbers& values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

}  // namespace gradus
