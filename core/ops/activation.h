// Activations: y = f(x), element by element. Each is one struct, shared by both backends; adding
// one takes the struct, its entry in `Activations` and a function in autograd/ops/activation.h.
#pragma once

#include "core/backend.h"

namespace gradus {

// What a struct says, for a value type V that arithmetic is done in:
//   name          as users write it
//   saves_output  whether df wants y (true) or x (false)
//   f(x)          the value
//   df(v, dy)     dy · f'(x), from v = y or x
// They select where a product could make 0·inf, so that what is cut off stays exactly 0.

// y = max(x, 0); NaN passes through. f'(0) = 0.
struct Relu {
  static constexpr std::string_view name = "relu";
  static constexpr bool saves_output = true;
  template <class V>
  GRADUS_HD static V f(V x) {
    return x <= V(0) ? V(0) : x;
  }
  template <class V>
  GRADUS_HD static V df(V y, V dy) {
    return y <= V(0) ? V(0) : dy;
  }
};

using Activations = TypeList<Relu>;

// An entry of `Activations`, by its place there.
enum class Activation : uint8_t {};

namespace detail {
template <class F, class... Fs>
constexpr Activation activation_index(TypeList<Fs...>) {
  uint8_t index = 0, found = 0;
  ((found = std::is_same_v<F, Fs> ? index : found, ++index), ...);
  return Activation{found};
}

template <class... Fs, class G>
void visit_activation(TypeList<Fs...>, Activation activation, G&& g) {
  uint8_t index = 0;
  ((static_cast<uint8_t>(activation) == index++ ? g(Type<Fs>{}) : void()), ...);
}
}  // namespace detail

template <class F>
inline constexpr Activation activation_of = detail::activation_index<F>(Activations{});

// Calls g(Type<F>{}) for the struct F that `activation` stands for.
template <class G>
void visit_activation(Activation activation, G&& g) {
  detail::visit_activation(Activations{}, activation, g);
}

struct ActivationForward {
  static constexpr std::string_view name = "activation_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  Activation activation;
  AnyView x;  // any shape and strides
  AnyView y;  // the shape of x, any strides, no element twice; may be x itself

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, y); }
  int64_t bytes() const { return x.nbytes() + y.nbytes(); }
  int64_t flops() const { return x.numel(); }
  static Guarantee guarantee() { return {}; }
};

struct ActivationBackward {
  static constexpr std::string_view name = "activation_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  Activation activation;
  AnyView saved;  // y where saves_output, else x; any strides
  AnyView dy;     // the same shape, any strides
  AnyView dx;     // the same shape, any strides, no element twice; may be dy itself

  DType dtype() const { return dx.dtype; }
  auto views() const { return list_views(saved, dy, dx); }
  int64_t bytes() const { return saved.nbytes() + dy.nbytes() + dx.nbytes(); }
  int64_t flops() const { return dx.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const ActivationForward&);
void run(Cpu&, const ActivationBackward&);
void run(Cuda&, const ActivationForward&);
void run(Cuda&, const ActivationBackward&);

}  // namespace gradus
