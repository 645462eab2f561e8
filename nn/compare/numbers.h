// The values of a tensor on any device, as f64 in the order of its indices.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/backend.h"
#include "core/tensor.h"

namespace gradus {

// What f(begin, end) gives for consecutive parts of [0, n), in order; they run on all threads.
template <class F>
auto map_parts(size_t n, const F& f) {
  constexpr size_t kPart = 16384;
  std::vector<decltype(f(size_t{}, size_t{}))> results((n + kPart - 1) / kPart);
  run_parallel(cpu(), std::ssize(results), [&](int64_t part) {
    const size_t i = static_cast<size_t>(part);
    results[i] = f(i * kPart, std::min(n, (i + 1) * kPart));
  });
  return results;
}

// The largest of f(i) over [0, n); 0 of none.
template <class F>
double largest_of(size_t n, const F& f) {
  const std::vector<double> parts = map_parts(n, [&](size_t i, size_t end) {
    double largest = 0;
    for (; i < end; ++i) largest = std::max(largest, f(i));
    return largest;
  });
  return parts.empty() ? 0 : *std::ranges::max_element(parts);
}

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
  return largest_of(values.size(),
                    [&](size_t i) { return std::isfinite(values[i]) ? std::abs(values[i]) : 0; });
}

}  // namespace gradus
