#include "tests/support/reference_activation.h"

#include <cmath>
#include <numbers>
#include <string>

namespace gradus::ref {
namespace {

using Parameters = ActivationParameters;

Real sigmoid(Real x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
Real sigmoid_slope(Real x) { return sigmoid(x) * sigmoid(-x); }

// x times a share that falls to 0 faster than x grows: the limit at -inf is 0.
Real shared(Real x, Real share) { return share == 0 ? x < 0 ? Real(-0.0) : Real(0) : x * share; }

// log(1 + exp(x)) without overflow.
Real log1p_exp(Real x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

Real normal_cdf(Real x) { return std::erfc(-x / std::numbers::sqrt2_v<Real>) / 2; }
Real normal_pdf(Real x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi_v<Real>); }

// gelu_tanh = x * (1 + tanh(u)) / 2 = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3).
constexpr Real kCubic = 0.044715L;
Real twice_u(Real x) {
  return 2 * std::sqrt(2 / std::numbers::pi_v<Real>) * (x + kCubic * x * x * x);
}
Real twice_u_slope(Real x) {
  return 2 * std::sqrt(2 / std::numbers::pi_v<Real>) * (1 + 3 * kCubic * x * x);
}

struct Formula {
  const char* name;
  Real (*f)(Real x, Parameters);
  Real (*df)(Real x, Parameters);
};

// Comparisons are written so that NaN takes the branch that returns it.
const Formula kFormulas[] = {
    {"relu", [](Real x, Parameters) { return x <= 0 ? Real(0) : x; },
     [](Real x, Parameters) { return x <= 0 ? Real(0) : Real(1); }},
    {"relu6", [](Real x, Parameters) { return x <= 0   ? Real(0)
                                              : x >= 6 ? Real(6)
                                                       : x; },
     [](Real x, Parameters) { return x <= 0 || x >= 6 ? Real(0) : Real(1); }},
    {"leaky_relu", [](Real x, Parameters p) { return x > 0 ? x : p.a * x; },
     [](Real x, Parameters p) { return x > 0 ? Real(1) : Real(p.a); }},
    {"elu", [](Real x, Parameters p) { return x > 0 ? x : p.a * std::expm1(x); },
     [](Real x, Parameters p) { return x > 0 ? Real(1) : p.a * std::exp(x); }},
    {"gelu", [](Real x, Parameters) { return shared(x, normal_cdf(x)); },
     [](Real x, Parameters) { return normal_cdf(x) + shared(x, normal_pdf(x)); }},
    {"gelu_tanh", [](Real x, Parameters) { return shared(x, sigmoid(twice_u(x))); },
     [](Real x, Parameters) {
       const Real slope = sigmoid_slope(twice_u(x));
       return sigmoid(twice_u(x)) + (slope == 0 ? Real(0) : x * slope * twice_u_slope(x));
     }},
    {"silu", [](Real x, Parameters) { return shared(x, sigmoid(x)); },
     [](Real x, Parameters) { return sigmoid(x) + shared(x, sigmoid_slope(x)); }},
    {"mish", [](Real x, Parameters) { return shared(x, std::tanh(log1p_exp(x))); },
     [](Real x, Parameters) {
       const Real t = std::tanh(log1p_exp(x));
       const Real cosh = std::cosh(log1p_exp(x));  // d tanh = 1 / cosh^2
       return t + shared(x, sigmoid(x) / (cosh * cosh));
     }},
    {"sigmoid", [](Real x, Parameters) { return sigmoid(x); },
     [](Real x, Parameters) { return sigmoid_slope(x); }},
    {"tanh", [](Real x, Parameters) { return std::tanh(x); },
     [](Real x, Parameters) { return 1 / (std::cosh(x) * std::cosh(x)); }},
    {"softplus", [](Real x, Parameters p) { return p.a * x > p.b ? x : log1p_exp(p.a * x) / p.a; },
     [](Real x, Parameters p) { return p.a * x > p.b ? Real(1) : sigmoid(p.a * x); }},
    {"hardswish",
     [](Real x, Parameters) { return x <= -3  ? Real(0)
                                     : x >= 3 ? x
                                              : x * (x + 3) / 6; },
     [](Real x, Parameters) { return x <= -3  ? Real(0)
                                     : x >= 3 ? Real(1)
                                              : x / 3 + Real(0.5); }},
    {"hardsigmoid",
     [](Real x, Parameters) { return x <= -3  ? Real(0)
                                     : x >= 3 ? Real(1)
                                              : (x + 3) / 6; },
     [](Real x, Parameters) { return x > -3 && x < 3 ? Real(1) / 6 : Real(0); }},
};

const Formula& formula(std::string_view name) {
  for (const Formula& candidate : kFormulas) {
    if (candidate.name == name) return candidate;
  }
  require(false, ("activation: there is none called " + std::string(name)).c_str());
  return kFormulas[0];
}

}  // namespace

Array activation(std::string_view name, const Array& x, ActivationParameters parameters) {
  const Formula& chosen = formula(name);
  Array y = x;
  for (double& value : y.data) value = static_cast<double>(chosen.f(value, parameters));
  return y;
}

Array activation_backward(std::string_view name, const Array& x, const Array& dy,
                          ActivationParameters parameters) {
  require(dy.shape == x.shape, "activation: dy must have the shape of x");
  const Formula& chosen = formula(name);
  Array dx = x;
  for (int64_t i = 0; i < x.numel(); ++i) {
    dx[i] = static_cast<double>(dy[i] * chosen.df(x[i], parameters));
  }
  return dx;
}

}  // namespace gradus::ref
