#include "autograd/ops/arithmetic.h"

#include "autograd/node.h"
#include "autograd/ops/sum.h"
#include "core/launch.h"
#include "core/ops/arithmetic.h"

namespace gradus {
namespace {

using Kind = Arithmetic::Kind;

std::string_view name_of(Kind kind) {
  constexpr std::string_view names[] = {"add", "sub", "mul", "div"};
  return names[static_cast<int>(kind)];
}

Tensor compute(Kind kind, const Tensor& a, const Tensor& b, double alpha = 1.0) {
  const std::string_view op = name_of(kind);
  check(a.dtype() == b.dtype() && is_floating(a.dtype()), op,
        "expected two tensors of one floating dtype, got ", a, " and ", b);
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), op);
  // The result is stored as the operand that has its shape.
  TensorOptions options = (a.shape() == shape ? a : b).options();
  if (a.shape() != shape && b.shape() != shape) options.format = MemoryFormat::contiguous;
  Tensor y = Tensor::empty(shape, options);
  launch(Arithmetic{.kind = kind, .a = a.raw(), .b = b.raw(), .y = y.raw(), .alpha = alpha});
  return y;
}

// Gradients of 16-bit operands are computed in f32 and rounded once where more than one step makes
// them.
Tensor widened(const Tensor& x) { return x.to(acc_dtype(x.dtype())); }

// y = a + factor b, with factor = alpha for add and -alpha for sub.
struct AddNode final : Node {
  Kind kind;
  double factor;
  Shape a_shape, b_shape;

  std::string_view name() const override { return name_of(kind); }
  void backward(const Tensor& dy, Gradients& grads) override {
    if (grads.wanted(0)) grads.set(0, sum_to(dy, a_shape));
    if (grads.wanted(1)) {
      grads.set(1, factor == 1.0 ? sum_to(dy, b_shape) : times_factor(dy));
    }
  }

 private:
  Tensor times_factor(const Tensor& dy) const {
    if (dy.shape() == b_shape || factor == -1.0) return affine(sum_to(dy, b_shape), factor);
    return affine(sum_to(widened(dy), b_shape), factor).to(dy.dtype());
  }
};

Tensor add_or_sub(Kind kind, const Tensor& a, const Tensor& b, double alpha) {
  Tensor y = compute(kind, a, b, alpha);
  if (auto node = make_node<AddNode>(a, b)) {
    node->kind = kind;
    node->factor = kind == Kind::add ? alpha : -alpha;
    node->a_shape = a.shape();
    node->b_shape = b.shape();
    attach(y, std::move(node));
  }
  return y;
}

struct MulNode final : Node {
  Saved a, b;  // each only where the other's gradient needs it
  Shape a_shape, b_shape;

  std::string_view name() const override { return "mul"; }
  void backward(const Tensor& dy, Gradients& grads) override {
    if (grads.wanted(0)) grads.set(0, product(dy, b.get(name(), "b"), a_shape));
    if (grads.wanted(1)) grads.set(1, product(dy, a.get(name(), "a"), b_shape));
  }

 private:
  static Tensor product(const Tensor& dy, const Tensor& other, const Shape& shape) {
    if (dy.shape() == shape) return mul(dy, other);
    return sum_to(mul(widened(dy), widened(other)), shape).to(dy.dtype());
  }
};

struct DivNode final : Node {
  Saved a, b;  // a only where db is wanted
  Shape a_shape, b_shape;

  std::string_view name() const override { return "div"; }
  void backward(const Tensor& dy, Gradients& grads) override {
    const Tensor divisor = widened(b.get(name(), "b"));
    const Tensor da = div(widened(dy), divisor);
    if (grads.wanted(0)) grads.set(0, sum_to(da, a_shape).to(dy.dtype()));
    // db = -dy a / b^2, as -(dy / b)·(a / b), which overflows no earlier than its result.
    if (grads.wanted(1)) {
      const Tensor ratio = div(widened(a.get(name(), "a")), divisor);
      grads.set(1, affine(sum_to(mul(da, ratio), b_shape), -1.0).to(dy.dtype()));
    }
  }
};

struct AffineNode final : Node {
  double scale;

  std::string_view name() const override { return "affine"; }
  void backward(const Tensor& dy, Gradients& grads) override {
    grads.set(0, scale == 1.0 ? dy : affine(dy, scale));
  }
};

}  // namespace

Tensor add(const Tensor& a, const Tensor& b, double alpha) {
  return add_or_sub(Kind::add, a, b, alpha);
}

Tensor sub(const Tensor& a, const Tensor& b, double alpha) {
  return add_or_sub(Kind::sub, a, b, alpha);
}

Tensor mul(const Tensor& a, const Tensor& b) {
  Tensor y = compute(Kind::mul, a, b);
  if (auto node = make_node<MulNode>(a, b)) {
    if (b.requires_grad()) node->a = Saved(a);
    if (a.requires_grad()) node->b = Saved(b);
    node->a_shape = a.shape();
    node->b_shape = b.shape();
    attach(y, std::move(node));
  }
  return y;
}

Tensor div(const Tensor& a, const Tensor& b) {
  Tensor y = compute(Kind::div, a, b);
  if (auto node = make_node<DivNode>(a, b)) {
    if (b.requires_grad()) node->a = Saved(a);
    node->b = Saved(b);
    node->a_shape = a.shape();
    node->b_shape = b.shape();
    attach(y, std::move(node));
  }
  return y;
}

Tensor affine(const Tensor& x, double scale, double shift) {
  check(is_floating(x.dtype()), "affine", "expected a floating dtype, got ", x);
  Tensor y = empty_like(x);
  launch(Affine{.x = x.raw(), .y = y.raw(), .scale = scale, .shift = shift});
  if (auto node = make_node<AffineNode>(x)) {
    node->scale = scale;
    attach(y, std::move(node));
  }
  return y;
}

// By a tensor of one element, so that the quotient is rounded once; 16-bit tensors divide in f32,
// where the scalar keeps its digits and its range.
Tensor operator/(const Tensor& x, double value) {
  if (is_half(x.dtype())) return (x.to(DType::f32) / value).to(x.dtype());
  return div(x, Tensor::full({}, value, {.dtype = x.dtype(), .device = x.device()}));
}

Tensor operator/(double value, const Tensor& x) {
  if (is_half(x.dtype())) return (value / x.to(DType::f32)).to(x.dtype());
  return div(Tensor::full({}, value, {.dtype = x.dtype(), .device = x.device()}), x);
}

}  // namespace gradus
