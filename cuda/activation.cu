#include "core/ops/activation.h"

#include "cuda/map.cuh"

namespace gradus {
namespace {

template <class F>
struct Value {
  template <class A>
  __device__ A operator()(A x) const {
    return F::f(x);
  }
};

template <class F>
struct Gradient {
  template <class A>
  __device__ A operator()(A saved, A dy) const {
    return F::df(saved, dy);
  }
};

}  // namespace

void run(Cuda& cuda, const ActivationForward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    visit_activation(args.activation, [&](auto function) {
      map_elements<T>(cuda, args.y, args.x, Value<typename decltype(function)::type>{});
    });
  });
}

void run(Cuda& cuda, const ActivationBackward& args) {
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    visit_activation(args.activation, [&](auto function) {
      map_elements<T>(cuda, args.dx, args.saved, args.dy,
                      Gradient<typename decltype(function)::type>{});
    });
  });
}

}  // namespace gradus
