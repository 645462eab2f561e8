// The activations, each one struct that both backends instantiate. Formulas and names:
// https://pytorch.org/docs/stable/nn.functional.html#non-linear-activation-functions
//
// What a struct says, for a value type V that arithmetic is done in (core/ops/activation_math.h):
//   name   as users write it
//   saves  what the backward pass gets: x, or one bit per element
//   f(x)       the value
//   df(v, dy)  dy · f'(x), where v is x, or passes(x) of an activation with two slopes
// Members are parameters; a struct is at most 16 bytes of them, trivially copyable. Where a limit
// is finite they select, so that no 0·inf makes a NaN of it; LeakyReLU of slope 0 is 0·x at -inf.
#pragma once

#include <string_view>

#include "core/ops/normal_tail.h"

namespace gradus {

enum class Saves : uint8_t { x, mask };

// max(x, 0); NaN passes through. f'(0) = 0.
struct Relu {
  static constexpr std::string_view name = "relu";
  static constexpr Saves saves = Saves::mask;
  template <class V>
  GRADUS_HD V f(V x) const {
    return select(x <= V(0), V(0), x);
  }
  template <class V>
  GRADUS_HD auto passes(V x) const {
    return !(x <= V(0));
  }
  template <class M, class V>
  GRADUS_HD V df(M passes, V dy) const {
    return select(passes, dy, V(0));
  }
};

// min(max(x, 0), 6); f' = 0 at 0 and at 6.
struct Relu6 {
  static constexpr std::string_view name = "relu6";
  static constexpr Saves saves = Saves::mask;
  template <class V>
  GRADUS_HD V f(V x) const {
    return select(x >= V(6), V(6), select(x <= V(0), V(0), x));
  }
  template <class V>
  GRADUS_HD auto passes(V x) const {
    return !((x <= V(0)) | (x >= V(6)));
  }
  template <class M, class V>
  GRADUS_HD V df(M passes, V dy) const {
    return select(passes, dy, V(0));
  }
};

// x where x > 0, else negative_slope·x. f'(0) = negative_slope.
struct LeakyRelu {
  static constexpr std::string_view name = "leaky_relu";
  static constexpr Saves saves = Saves::mask;
  double negative_slope = 0.01;
  template <class V>
  GRADUS_HD V f(V x) const {
    return select(x > V(0), x, x * V(static_cast<scalar_t<V>>(negative_slope)));
  }
  template <class V>
  GRADUS_HD auto passes(V x) const {
    return x > V(0);
  }
  template <class M, class V>
  GRADUS_HD V df(M passes, V dy) const {
    return select(passes, dy, dy * V(static_cast<scalar_t<V>>(negative_slope)));
  }
};

// x where x > 0, else alpha·(e^x - 1).
struct Elu {
  static constexpr std::string_view name = "elu";
  static constexpr Saves saves = Saves::x;
  double alpha = 1;
  template <class V>
  GRADUS_HD V f(V x) const {
    return select(x > V(0), x, expm1_two(x).high * V(static_cast<scalar_t<V>>(alpha)));
  }
  template <class V>
  GRADUS_HD V df(V x, V dy) const {
    return select(x > V(0), dy, dy * (exp_of(x) * V(static_cast<scalar_t<V>>(alpha))));
  }
};

// x·P(Z <= x) of a normal Z. The tail is a product, never 1 - cdf.
struct Gelu {
  static constexpr std::string_view name = "gelu";
  static constexpr Saves saves = Saves::x;
  template <class V>
  GRADUS_HD V f(V x) const {
    if constexpr (kIsSingle<V>) {
      const NormalTail<V> tail(at_most(abs_of(x), V(NormalTail<V>::kMost)));
      return fused(tail.product(), V(-kUnscale), at_least(x, -V(0)));
    } else {
      const V z = at_most(abs_of(x), V(40));
      const Two<V> g = gaussian(z);
      const V share = normal_tail(z, z), tail = fused(g.high, share, g.low * share);
      return select(x < V(0), -tail, x - tail);
    }
  }
  template <class V>
  GRADUS_HD V df(V x, V dy) const {
    V bend;  // P(Z > z) - z·density(z)
    if constexpr (kIsSingle<V>) {
      const NormalTail<V> tail(at_most(abs_of(x), V(NormalTail<V>::kMost)));
      bend = tail.bend() * V(kUnscale);
    } else {
      const V z = at_most(abs_of(x), V(40)), density = V(0.3989422804014327);
      bend = gaussian(z).high * fused(z, -density, normal_tail(z, V(1)));
    }
    return dy * select(x > V(0), V(1) - bend, bend);
  }
};

// x·(1 + tanh(u))/2 with u = √(2/π)·(x + 0.044715·x³), computed as x / (1 + e^(-2u)).
struct GeluTanh {
  static constexpr std::string_view name = "gelu_tanh";
  static constexpr Saves saves = Saves::x;
  // 2·√(2/π) and 0.044715 of it, and what their rounding lost.
  static constexpr double kLinear = 1.5957691216057308, kLinearLow = -9.96931e-17;
  static constexpr double kCubic = 0.07135481627260025, kCubicLow = -6.17515e-19;

  // e^(-|2u|) in f64.
  template <class V>
  GRADUS_HD static Two<V> decay(V z) {
    using S = scalar_t<V>;
    // The high part of the linear factor ends in zeros: its difference to the slope is exact.
    constexpr S linear = static_cast<S>(static_cast<int64_t>(kLinear * 0x1p44)) * 0x1p-44;
    constexpr S cubic = static_cast<S>(kCubic);
    constexpr S linear_low = static_cast<S>(kLinear - linear + kLinearLow);
    constexpr S cubic_low = static_cast<S>(kCubic - cubic + kCubicLow);
    const V square = product_of(z, z), square_low = product_error(z, z, square);
    const V bend = product_of(square, V(cubic)), slope = bend + V(linear);
    const V lost = product_error(square, V(cubic), bend) +
                   fused(square_low, V(cubic), fused(square, V(cubic_low), V(linear_low)));
    const V slope_low = ((V(linear) - slope) + bend) + lost;
    const V twice_u = product_of(z, slope);
    const V low = fused(z, slope_low, product_error(z, slope, twice_u));
    return exp_two(Two<V>{-twice_u, -low});
  }
  // In f32 y and its gradient are 0 below the first and x and 1 above the second.
  static constexpr float kLeast = -11, kMost = 8;
  // -2·√(2/π)/ln 2 and 0.044715 of it, each as a short number and the rest: with a square of 12
  // bits, slope is exact.
  static constexpr float kLinear2 = -0x1.26aecp+1f, kLinear2Low = -2.51366981e-7f;
  static constexpr float kCubic2 = -0x1.a5ap-4f, kCubic2Low = -7.44856398e-6f;
  // Of e^(-2u), for a clamped v.
  template <class V>
  GRADUS_HD static SwishParts<V> parts(V v) {
    if constexpr (kIsRounded<V>) {
      return swish_parts(v, fused(v * v, V(kCubic2 + kCubic2Low), V(kLinear2 + kLinear2Low)), V(0));
    } else {
      constexpr float to_32nd = 0x1.8p18f;
      const V square = fused(v, v, V(to_32nd)) - V(to_32nd);
      const V slope = fused(square, V(kCubic2), V(kLinear2));
      const V slope_low = fused(product_error(v, v, square), V(kCubic2 + kCubic2Low),
                                fused(square, V(kCubic2Low), V(kLinear2Low)));
      return swish_parts(v, slope, slope_low);
    }
  }

  template <class V>
  GRADUS_HD V f(V x) const {
    if constexpr (kIsSingle<V>) {
      const V floor = at_least(x, V(kLeast)), v = at_most(floor, V(kMost));
      return swish_of(floor, v, parts(v));
    } else {
      const V z = at_most(abs_of(x), V(32));  // e^(-|2u|) is 0 there
      return select(x < V(0), -z, x) * sigmoid_of(x < V(0), decay(z));
    }
  }
  template <class V>
  GRADUS_HD V df(V x, V dy) const {
    using S = scalar_t<V>;
    if constexpr (kIsSingle<V>) {
      const V v = at_most(at_least(x, V(kLeast)), V(kMost));
      const V slope = fused(v * v, V(static_cast<S>(3 * kCubic)), V(static_cast<S>(kLinear)));
      return dy * swish_slope(v * slope, parts(v));
    } else {
      const V z = at_most(abs_of(x), V(32)), e = decay(z).high;
      const V share = reciprocal_of(V(1) + e);  // sigmoid(|2u|)
      // z·sigmoid'·(2u)' is even but for its sign.
      const V slope = fused(z * z, V(static_cast<S>(3 * kCubic)), V(static_cast<S>(kLinear)));
      const V bend = z * slope * share;
      return dy * select(x > V(0), fused(bend, e * share, share), e * share * (V(1) - bend));
    }
  }
};

// x·sigmoid(x). In f64 below -708 the result is as exact as the subnormal e^x that it is made of.
struct Silu {
  static constexpr std::string_view name = "silu";
  static constexpr Saves saves = Saves::x;
  // In f32 y and its gradient are 0 below the first and x and 1 above the second.
  static constexpr float kLeast = -110, kMost = 32;
  // Of e^-v, for a clamped v.
  template <class V>
  GRADUS_HD static SwishParts<V> parts(V v) {
    return swish_parts(v, V(kMinusLog2E), V(kMinusLog2ELow));
  }
  template <class V>
  GRADUS_HD V f(V x) const {
    if constexpr (kIsSingle<V>) {
      const V floor = at_least(x, V(kLeast)), v = at_most(floor, V(kMost));
      return swish_of(floor, v, parts(v));
    } else {
      const V z = at_least(x, V(-1000));  // -inf has the limit -0
      return z * sigmoid_of(x < V(0), exp_two(-abs_of(x)));
    }
  }
  template <class V>
  GRADUS_HD V df(V x, V dy) const {
    if constexpr (kIsSingle<V>) {
      const V v = at_most(at_least(x, V(kLeast)), V(kMost));
      return dy * swish_slope(v, parts(v));
    } else {
      const V z = at_most(abs_of(x), V(1000)), e = exp_of(-abs_of(x));
      const V share = reciprocal_of(V(1) + e), bend = z * share;
      return dy * select(x > V(0), fused(bend, e * share, share), e * share * (V(1) - bend));
    }
  }
};

// x·tanh(softplus(x)); with e = e^x and n = e·(e + 2) the tanh is n / (n + 2), and 1 from x = 20
// on.
struct Mish {
  static constexpr std::string_view name = "mish";
  static constexpr Saves saves = Saves::x;
  template <class V>
  GRADUS_HD V f(V x) const {
    const V z = at_least(at_most(x, V(20)), V(-1000));
    const Two<V> e = exp_two(z), s = sum_of(V(2), e.high);
    const V n = product_of(e.high, s.high);
    const V low =
        product_error(e.high, s.high, n) + fused(e.high, s.low, e.low * (s.high + e.high));
    const Two<V> sum = sum_of(V(2), n);
    const V share = quotient_of(Two<V>{n, low}, Two<V>{sum.high, sum.low + low});
    return select(x > V(20), x, z * share);
  }
  template <class V>
  GRADUS_HD V df(V x, V dy) const {
    const V z = at_least(at_most(x, V(20)), V(-1000));
    const V e = exp_of(z), n = e * (e + V(2)), share = reciprocal_of(n + V(2));
    // tanh + x·(1 - tanh²)·sigmoid(x)
    const V bend = z * (V(4) * e * (e + V(1))) * share;
    return dy * select(x > V(20), V(1), (n + bend) * share);
  }
};

// 1 / (1 + e^-x); the gradient from x, since 1 - y cancels.
struct Sigmoid {
  static constexpr std::string_view name = "sigmoid";
  static constexpr Saves saves = Saves::x;
  template <class V>
  GRADUS_HD V f(V x) const {
    if constexpr (kIsSingle<V> && !kIsRounded<V>) {
      return sigmoid_of(x);
    } else {
      return sigmoid_of(x < V(0), exp_two(-abs_of(x)));
    }
  }
  template <class V>
  GRADUS_HD V df(V x, V dy) const {
    const V e = exp_of(-abs_of(x)), share = reciprocal_of(V(1) + e);
    return dy * (e * share * share);
  }
};

// tanh(x); the gradient 1/cosh² from x, since 1 - y² cancels.
struct Tanh {
  static constexpr std::string_view name = "tanh";
  static constexpr Saves saves = Saves::x;
  template <class V>
  GRADUS_HD V f(V x) const {
    return tanh_of(x);
  }
  template <class V>
  GRADUS_HD V df(V x, V dy) const {
    const V e = exp_of(V(-2) * abs_of(x)), share = reciprocal_of(V(1) + e);
    return dy * (V(4) * e * share * share);
  }
};

// log(1 + e^(beta·x)) / beta, and x where beta·x > threshold.
struct Softplus {
  static constexpr std::string_view name = "softplus";
  static constexpr Saves saves = Saves::x;
  double beta = 1, threshold = 20;
  template <class V>
  GRADUS_HD V f(V x) const {
    const V b = V(static_cast<scalar_t<V>>(beta)), t = x * b;
    const V sum = select(t < V(0), V(0), t) + log1p_of(exp_of(-abs_of(t)));
    return select(t > V(static_cast<scalar_t<V>>(threshold)), x, sum * (V(1) / b));
  }
  template <class V>
  GRADUS_HD V df(V x, V dy) const {
    const V t = x * V(static_cast<scalar_t<V>>(beta));
    return select(t > V(static_cast<scalar_t<V>>(threshold)), dy, dy * Sigmoid().f(t));
  }
};

// x·min(max(x + 3, 0), 6)/6; f' = 0 at -3 and 1 at 3.
struct Hardswish {
  static constexpr std::string_view name = "hardswish";
  static constexpr Saves saves = Saves::x;
  template <class V>
  GRADUS_HD V f(V x) const {
    const V middle = x * (x + V(3)) / V(6);
    return select(x <= V(-3), V(0), select(x >= V(3), x, middle));
  }
  template <class V>
  GRADUS_HD V df(V x, V dy) const {
    const V middle = dy * (x / V(3) + V(0.5));
    return select(x <= V(-3), V(0), select(x >= V(3), dy, middle));
  }
};

// min(max(x + 3, 0), 6)/6; f' = 0 at both ends and at NaN.
struct Hardsigmoid {
  static constexpr std::string_view name = "hardsigmoid";
  static constexpr Saves saves = Saves::mask;
  template <class V>
  GRADUS_HD V f(V x) const {
    using S = scalar_t<V>;
    constexpr S sixth = S(1) / S(6),
                sixth_low = kIsSingle<V> ? S(1.0 / 6 - sixth) : S(9.25185853854297e-18);
    const V share = at_most(at_least(x + V(3), V(0)), V(6));
    return kIsRounded<V> ? share * V(sixth)
                         : fused(share, V(sixth), product_of(share, V(sixth_low)));
  }
  template <class V>
  GRADUS_HD auto passes(V x) const {
    return (x > V(-3)) & (x < V(3));
  }
  template <class M, class V>
  GRADUS_HD V df(M passes, V dy) const {
    return select(passes, dy / V(6), V(0));
  }
};

}  // namespace gradus
