#include "autograd/ops/reduce.h"

#include <cmath>

#include "autograd/node.h"
#include "autograd/ops/axis_set.h"
#include "core/launch.h"
#include "core/ops/reduce.h"

namespace gradus {
namespace {

struct ReduceNode final : Node {
  std::string_view op;
  ReduceKind kind;
  double correction;
  Shape kept_shape;
  Saved x, stat0, stat1;

  std::string_view name() const override { return op; }
  void backward(const Tensor& dy, Gradients& grads) override {
    const Tensor from = x.get(op, "x");
    const Tensor first = stat0.defined() ? stat0.get(op, "stat0") : Tensor();
    const Tensor second = stat1.defined() ? stat1.get(op, "stat1") : Tensor();
    const Tensor upstream = dy.reshape(kept_shape).contiguous();
    const Tensor dx = empty_like(from);
    if (dx.numel() != 0) {
      launch(ReduceBackward{.kind = kind,
                            .x = from.raw(),
                            .dy = upstream.raw(),
                            .stat0 = first.raw(),
                            .stat1 = second.raw(),
                            .dx = dx.raw(),
                            .correction = correction});
    }
    grads.set(0, dx);
  }
};

// What sets without elements reduce to.
template <class F>
double value_of_empty() {
  using A = double;
  struct Math {
    static A sqrt(A value) { return std::sqrt(value); }
    static A log(A value) { return std::log(value); }
  };
  return F::template finish<Math>(F::template identity<A>(), 0.0).y;
}

template <class F>
Tensor reduce(const Tensor& x, const std::vector<int>& axes, bool keepdim, double correction = 0) {
  constexpr std::string_view op = F::name;
  check(is_floating(x.dtype()), op, "expected a floating dtype, got ", x);
  const ReducedShapes shapes = reduced_shapes(x.shape(), axis_set(x, axes, op), keepdim);
  const TensorOptions options{.dtype = x.dtype(), .device = x.device()};
  const TensorOptions wide{.dtype = acc_dtype(x.dtype()), .device = x.device()};
  const auto node = make_node<ReduceNode>(x);
  Tensor kept, stat0, stat1;
  if (x.numel() == 0) {
    check(!F::kExactY || shapes.kept.numel() == 0, op,
          "expected at least one element along the reduced axes, got ", x);
    kept = Tensor::full(shapes.kept, value_of_empty<F>(), options);
    stat0 = kept;
  } else {
    kept = Tensor::empty(shapes.kept, options);
    const bool saves = node && !with_backend(x.device(), [&](auto& backend) {
                         return finds_statistics(backend, reduce_kind<F>, x.raw(), kept.raw());
                       });
    if (saves && !saves_y<F>(x.dtype())) stat0 = Tensor::empty(shapes.kept, wide);
    if (saves && F::kStat1) stat1 = Tensor::empty(shapes.kept, wide);
    launch(ReduceForward{.kind = reduce_kind<F>,
                         .x = x.raw(),
                         .y = kept.raw(),
                         .stat0 = stat0.raw(),
                         .stat1 = stat1.raw(),
                         .correction = correction});
    if (saves && !stat0.defined()) stat0 = kept;
  }
  Tensor y = kept.reshape(shapes.result);
  if (node) {
    node->op = op;
    node->kind = reduce_kind<F>;
    node->correction = correction;
    node->kept_shape = shapes.kept;
    node->x = Saved(x);
    if (stat0.defined()) node->stat0 = Saved(stat0);
    if (stat1.defined()) node->stat1 = Saved(stat1);
    attach(y, node);
  }
  return y;
}

void check_correction(double correction, std::string_view op) {
  check(correction >= 0, op, "expected a correction of at least 0, got ", correction);
}

}  // namespace

Tensor max(const Tensor& x, const std::vector<int>& axes, bool keepdim) {
  return reduce<reductions::Max>(x, axes, keepdim);
}

Tensor min(const Tensor& x, const std::vector<int>& axes, bool keepdim) {
  return reduce<reductions::Min>(x, axes, keepdim);
}

Tensor prod(const Tensor& x, const std::vector<int>& axes, bool keepdim) {
  return reduce<reductions::Prod>(x, axes, keepdim);
}

Tensor norm2(const Tensor& x, const std::vector<int>& axes, bool keepdim) {
  return reduce<reductions::Norm2>(x, axes, keepdim);
}

Tensor logsumexp(const Tensor& x, const std::vector<int>& axes, bool keepdim) {
  return reduce<reductions::LogSumExp>(x, axes, keepdim);
}

Tensor var(const Tensor& x, const std::vector<int>& axes, double correction, bool keepdim) {
  check_correction(correction, "var");
  return reduce<reductions::Var>(x, axes, keepdim, correction);
}

Tensor std(const Tensor& x, const std::vector<int>& axes, double correction, bool keepdim) {
  check_correction(correction, "std");
  return reduce<reductions::Std>(x, axes, keepdim, correction);
}

}  // namespace gradus
