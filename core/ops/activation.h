// Activations: y = f(x), element by element; the functions are in core/ops/activation_functions.h.
// Adding one takes its struct there, its entry in `Activations` here and a function in
// autograd/ops/activation.h.
#pragma once

#include <cstring>

#include "core/backend.h"
#include "core/ops/activation_functions.h"

namespace gradus {

using Activations = TypeList<Relu, Relu6, LeakyRelu, Elu, Gelu, GeluTanh, Silu, Mish, Sigmoid, Tanh,
                             Softplus, Hardswish, Hardsigmoid>;

// Any of `Activations`, with its parameters, by value.
struct Activation {
  uint8_t index = 0;  // its place there
  alignas(double) unsigned char parameters[16] = {};

  template <class F>
  static Activation of(const F& function = {});
  friend bool operator==(const Activation& a, const Activation& b) {
    return a.index == b.index && std::memcmp(a.parameters, b.parameters, 16) == 0;
  }
};

namespace detail {
template <class F, class... Fs>
constexpr uint8_t activation_index(TypeList<Fs...>) {
  uint8_t index = 0, found = sizeof...(Fs);
  ((found = std::is_same_v<F, Fs> ? index : found, ++index), ...);
  return found;
}

template <class F, class G>
inline __attribute__((always_inline)) void call_with_activation(const Activation& activation,
                                                                G&& g) {
  F function;
  if constexpr (!std::is_empty_v<F>) {
    std::memcpy(&function, activation.parameters, sizeof function);
  }
  g(function);
}

template <class... Fs, class G>
inline __attribute__((always_inline)) void visit_activation(TypeList<Fs...>,
                                                            const Activation& activation, G&& g) {
  uint8_t index = 0;
  ((activation.index == index++ ? call_with_activation<Fs>(activation, g) : void()), ...);
}
}  // namespace detail

template <class F>
Activation Activation::of(const F& function) {
  static_assert(sizeof(F) <= sizeof(parameters) && std::is_trivially_copyable_v<F>);
  constexpr uint8_t index = detail::activation_index<F>(Activations{});
  Activation activation{.index = index};
  if constexpr (!std::is_empty_v<F>) {
    std::memcpy(activation.parameters, &function, sizeof function);
  }
  return activation;
}

// Calls g(F) with the function that `activation` holds.
template <class G>
inline __attribute__((always_inline)) void visit_activation(const Activation& activation, G&& g) {
  detail::visit_activation(Activations{}, activation, g);
}

// Bytes of the mask of `count` elements.
constexpr int64_t mask_bytes(int64_t count) { return count / 8 + (count % 8 != 0); }

struct ActivationForward {
  static constexpr std::string_view name = "activation_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  Activation activation;
  AnyView x;     // any shape and strides
  AnyView y;     // the shape of x, any strides, no element twice; may be x itself
  AnyView mask;  // u8 [mask_bytes(numel)], of an activation that saves a mask; may be not given.
                 // Bit i % 8 of byte i / 8 is passes(x) of the i-th element in memory; x and y are
                 // then dense in one order. Bits beyond the last element are 0.

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, y, mask); }
  int64_t bytes() const { return x.nbytes() + y.nbytes() + mask.nbytes(); }
  int64_t flops() const { return x.numel(); }
  static Guarantee guarantee() { return {.accumulator = "none"}; }
};

struct ActivationBackward {
  static constexpr std::string_view name = "activation_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  Activation activation;
  AnyView
      saved;   // x, the shape of dx, any strides; or the mask, and dy and dx are dense in one order
  AnyView dy;  // the shape of dx, any strides
  AnyView dx;  // any strides, no element twice; may be dy itself

  DType dtype() const { return dx.dtype; }
  auto views() const { return list_views(saved, dy, dx); }
  int64_t bytes() const { return saved.nbytes() + dy.nbytes() + dx.nbytes(); }
  int64_t flops() const { return dx.numel(); }
  static Guarantee guarantee() { return {.accumulator = "none"}; }
};

void run(Cpu&, const ActivationForward&);
void run(Cpu&, const ActivationBackward&);
void run(Cuda&, const ActivationForward&);
void run(Cuda&, const ActivationBackward&);

}  // namespace gradus
