#include "core/ops/arithmetic.h"

#include "cuda/map_broadcast.cuh"

namespace gradus {
namespace {

// The kind is the same for all threads, so that choosing it per element costs no divergence, and
// one kernel per dtype serves all four.
template <class A>
struct Binary {
  Arithmetic::Kind kind;
  A alpha;
  __device__ A operator()(A a, A b) const {
    switch (kind) {
      case Arithmetic::Kind::add:
        return a + alpha * b;
      case Arithmetic::Kind::sub:
        return a - alpha * b;
      case Arithmetic::Kind::mul:
        return a * b;
      default:
        return a / b;
    }
  }
};

template <class A>
struct ScaleShift {
  A scale, shift;
  __device__ A operator()(A x) const { return scale * x + shift; }
};

}  // namespace

void run(Cuda& cuda, const Arithmetic& args) {
  const StridedPlan<3> plan = plan_map_pair(args.y, args.a, args.b);
  visit(Floating{}, args.y.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    const Binary<A> f{args.kind, static_cast<A>(args.alpha)};
    if (map_broadcast<T>(cuda, plan, args.y, args.a, args.b, f)) return;
    map_elements<T>(cuda, plan, args.y, args.a, args.b, f);
  });
}

void run(Cuda& cuda, const Affine& args) {
  visit(Floating{}, args.y.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    map_elements<T>(cuda, args.y, args.x,
                    ScaleShift<A>{static_cast<A>(args.scale), static_cast<A>(args.shift)});
  });
}

}  // namespace gradus
