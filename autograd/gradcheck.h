// Checks a backward against finite differences of its own forward.
//
//   Tensor x = ..., gamma = ...;  // f64 leaves that require a gradient
//   const GradcheckResult result = gradcheck([&] { return my_layer(x, gamma); }, {x, gamma});
//   std::puts(result.text.c_str());
//   if (!result) return 1;
//
// Method: one backward with a random upstream gradient dy that is constant nowhere, then for each
// element of each input the central difference  Σ dy·(f(x + h) - f(x - h)) / 2h.  An upstream of
// ones, or inputs whose gradient vanishes, hide real mistakes: the check says so when it has no
// power. Use few elements (6 to 12 per set that is normalised) and stay away from kinks.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace gradus {

struct GradcheckOptions {
  double h = 1e-6;     // step
  double atol = 1e-7;  // |got - expected| may be atol + rtol·|expected|
  double rtol = 1e-6;
  double power = 1e-4;  // below this largest expected gradient of an input the check has no power
  uint64_t seed = 1;    // of the upstream gradient
};

struct GradcheckResult {
  bool ok = true;         // every element of every gradient agrees
  bool has_power = true;  // and a wrong one would have been noticed, for every input
  size_t input = 0;       // where the largest error, as a share of what is allowed, is:
  int64_t index = -1;     // its element, counted in row-major order; -1 where nothing was compared
  double got = 0.0;       // what backward gave there
  double expected = 0.0;  // what finite differences gave
  std::string text;       // one line per input; says where, both values, and what has no power

  explicit operator bool() const { return ok; }
};

// f: called again and again with the elements of `inputs` changed in place; must give the same
// result for the same inputs. inputs: f64 leaves that require a gradient, each given and each
// element of all of them stored once, on any device. Their values and gradients are left as they
// were; other leaves that f uses get gradients added. Throws invalid_argument or `autograd` where
// this does not hold.
GradcheckResult gradcheck(const std::function<Tensor()>& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {});

// Those differences for each element of x, which is f64, stores each element once and is changed in
// place meanwhile: the gradient that Σ dy·f should have with respect to x. h: the step of each
// element. Throws invalid_argument for another dtype of x, for other steps, or where f has not as
// many elements as dy.
Tensor finite_differences(const std::function<Tensor()>& f, const Tensor& x, const Tensor& dy,
                          std::span<const double> h);

}  // namespace gradus
