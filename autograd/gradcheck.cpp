#include "autograd/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "autograd/grad_mode.h"
#include "core/error.h"
#include "core/launch.h"
#include "core/ops/copy.h"
#include "core/random.h"

namespace gradus {
namespace {

using Values = std::vector<double>;

void require_input(const Tensor& x, size_t i) {
  check(x.dtype() == DType::f64 && x.is_leaf() && x.requires_grad(), "gradcheck",
        "expected f64 leaves that require a gradient, got ", x, " as input ", i);
}

// Of an element counted in row-major order, from the first one.
int64_t distance_of(const Tensor& x, int64_t index) {
  int64_t distance = 0;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    distance += index % x.size(axis) * x.strides()[axis];
    index /= x.size(axis);
  }
  return distance;
}

// Where one place in memory is two elements, a difference moves both and a gradient is of one.
// Looks at each element, since strided inputs may interleave and share nothing.
void require_distinct_elements(const std::vector<Tensor>& inputs) {
  std::map<const double*, size_t> owners;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    const double* first = x.raw().as<double>();
    for (int64_t k = 0; k < x.numel(); ++k) {
      const auto [owner, is_new] = owners.emplace(first + distance_of(x, k), i);
      check(is_new || owner->second != i, "gradcheck", "input ", i, ", ", x,
            ", stores one element for several");
      check(is_new, "gradcheck", "inputs ", owner->second, " and ", i, " share memory");
    }
  }
}

void require_once(const std::vector<Tensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      check(&inputs[i].grad_state() != &inputs[j].grad_state(), "gradcheck", "inputs ", j, " and ",
            i, " are one tensor");
    }
  }
}

// ±[0.5, 1.5): of one size everywhere, equal almost nowhere.
Tensor draw_upstream(const Tensor& y, uint64_t seed) {
  PhiloxSequence random(seed, random_stream::kTensor);
  Values values(static_cast<size_t>(y.numel()));
  for (double& value : values) {
    value = random.uniform(0.5, 1.5);
    if (random.below(2) == 1) value = -value;
  }
  return Tensor::from_vector(values, y.shape(), {.dtype = y.dtype(), .device = y.device()});
}

// The gradients of Σ dy·y, leaving grad() of the inputs as it was. Undefined where none arrived.
std::vector<Tensor> backward_gradients(const Tensor& y, const Tensor& dy,
                                       const std::vector<Tensor>& inputs) {
  std::vector<Tensor> before, grads;
  for (Tensor x : inputs) {
    before.push_back(x.grad());
    x.zero_grad();
  }
  const auto restore = [&] {
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensor x = inputs[i];
      grads.push_back(x.grad());
      x.set_grad(before[i]);
    }
  };
  try {
    y.backward(dy);
  } catch (...) {
    restore();
    throw;
  }
  restore();
  return grads;
}

// One element of a tensor, changed while this lives. Its storage's version stays: the value comes
// back, and graphs that have saved it go on.
class Moved {
 public:
  Moved(const Tensor& x, int64_t index) {
    element_ = x.as_strided({}, {}, x.offset() + distance_of(x, index));
    value_ = element_.item<double>();
  }
  ~Moved() {
    try {
      set(value_);
    } catch (const Error&) {  // no launch works any more: the first error says why
    }
  }
  Moved(const Moved&) = delete;
  Moved& operator=(const Moved&) = delete;

  double value() const { return value_; }
  void set(double value) { launch(Fill{.y = element_.raw(), .value = value}); }

 private:
  Tensor element_;
  double value_;
};

double central_difference(const std::function<Tensor()>& f, const Tensor& x, int64_t index,
                          const Values& dy, double h) {
  Moved element(x, index);
  const double above = element.value() + h, below = element.value() - h;
  element.set(above);
  const Values high = f().to_vector<double>();
  element.set(below);
  const Values low = f().to_vector<double>();
  check(high.size() == dy.size() && low.size() == dy.size(), "finite_differences",
        "expected as many results as the ", dy.size(), " elements of dy, got ", high.size(),
        " and ", low.size());
  long double sum = 0.0L;
  for (size_t k = 0; k < dy.size(); ++k)
    sum += static_cast<long double>(dy[k]) * (high[k] - low[k]);
  return static_cast<double>(sum / (static_cast<long double>(above) - below));
}

std::string position(const Tensor& x, int64_t index) {
  std::string text;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    text = concat(index % x.size(axis), text.empty() ? "" : ",", text);
    index /= x.size(axis);
  }
  return "[" + text + "]";
}

bool are_same(const Values& a, const Values& b) {
  return std::ranges::equal(
      a, b, [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

struct Worst {
  double share = -1.0;  // error / allowed
  int64_t index = -1;
  double got = 0.0, expected = 0.0, allowed = 0.0;
};

// Compares the gradient of one input; appends its line to result.text.
Worst compare_input(const Tensor& x, size_t i, const Values& got, const Values& expected,
                    const GradcheckOptions& options, GradcheckResult& result) {
  Worst worst;
  double largest = 0.0;
  int64_t off = 0;
  for (size_t k = 0; k < expected.size(); ++k) {
    const double allowed = options.atol + options.rtol * std::abs(expected[k]);
    const double error = std::abs(got[k] - expected[k]);
    const double share = std::isnan(error) ? INFINITY : error / allowed;
    if (share > worst.share) {
      worst = {share, static_cast<int64_t>(k), got[k], expected[k], allowed};
    }
    off += share > 1.0;
    largest = std::max(largest, std::abs(expected[k]));
  }
  const bool has_power = largest >= options.power || expected.empty();
  result.has_power = result.has_power && has_power;
  result.ok = result.ok && off == 0;
  result.text += concat("gradcheck: input ", i, ", ", x, ": ", off == 0 ? "ok" : "WRONG");
  if (off != 0) result.text += concat(", ", off, " of ", expected.size(), " elements");
  if (worst.index >= 0) {
    result.text += concat("; worst at ", position(x, worst.index), ": got ", worst.got,
                          ", expected ", worst.expected, ", allowed error ", worst.allowed);
  }
  if (!has_power) {
    result.text += concat("; warning: no power, no expected gradient is above ", largest,
                          ", so that a wrong backward could pass");
  }
  result.text += "\n";
  return worst;
}

}  // namespace

Tensor finite_differences(const std::function<Tensor()>& f, const Tensor& x, const Tensor& dy,
                          std::span<const double> h) {
  check(std::ssize(h) == x.numel(), "finite_differences", "expected ", x.numel(), " steps, got ",
        h.size());
  for (const double step : h)
    check(step > 0, "finite_differences", "a step must be positive, got ", step);
  check(x.dtype() == DType::f64, "finite_differences", "expected an f64 input, got ", x);
  const NoGradGuard no_grad;
  const Values upstream = dy.to_vector<double>();
  Values differences(static_cast<size_t>(x.numel()));
  for (size_t k = 0; k < differences.size(); ++k) {
    differences[k] = central_difference(f, x, static_cast<int64_t>(k), upstream, h[k]);
  }
  return Tensor::from_vector(differences, x.shape(), {.dtype = DType::f64, .device = x.device()});
}

GradcheckResult gradcheck(const std::function<Tensor()>& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options) {
  check(options.h > 0, "gradcheck", "the step h must be positive, got ", options.h);
  check(!inputs.empty(), "gradcheck", "expected at least one input");
  for (size_t i = 0; i < inputs.size(); ++i) require_input(inputs[i], i);
  require_once(inputs);
  require_distinct_elements(inputs);
  const Tensor y = f();
  check(y.dtype() == DType::f64, "gradcheck", "expected a function with f64 results, got ", y);
  const Tensor dy = draw_upstream(y, options.seed);
  const std::vector<Tensor> grads = backward_gradients(y, dy, inputs);

  const NoGradGuard no_grad;
  check(are_same(f().to_vector<double>(), y.to_vector<double>()), "gradcheck",
        "the function gives different values for the same inputs");
  GradcheckResult result;
  double worst_share = -1.0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    const Values steps(static_cast<size_t>(x.numel()), options.h);
    const Values expected = finite_differences(f, x, dy, steps).to_vector<double>();
    const Values got = grads[i] ? grads[i].to_vector<double>() : Values(expected.size(), 0.0);
    const Worst worst = compare_input(x, i, got, expected, options, result);
    if (worst.share > worst_share) {
      worst_share = worst.share;
      result.input = i;
      result.index = worst.index;
      result.got = worst.got;
      result.expected = worst.expected;
    }
  }
  return result;
}

}  // namespace gradus
