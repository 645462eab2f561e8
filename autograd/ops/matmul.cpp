#include "autograd/ops/matmul.h"

#include <algorithm>

#include "autograd/autocast.h"
#include "autograd/ops/sum.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/matmul.h"
#include "core/ops/sum.h"

namespace gradus {
namespace {

struct LinearNode final : Node {
  Saved x, w;  // [m, in] and [out, in] as multiplied; each only where the other's gradient needs it
  Shape x_shape;
  DType x_dtype, w_dtype;  // of the inputs, before autocast
  bool tf32;

  std::string_view name() const override { return "linear"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

struct MatmulNode final : Node {
  Saved a, b;   // as multiplied; each only where the other's gradient needs it
  Shape batch;  // the leading axes of y
  Shape a_shape, b_shape;
  DType a_dtype, b_dtype;  // of the inputs, before autocast
  bool tf32;

  std::string_view name() const override { return "matmul"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

bool use_tf32() { return matmul_precision() == MatmulPrecision::tf32; }

// `x` as it is multiplied: half under autocast. Without history, since the product's own node gives
// the gradient in the dtype of `x`.
Tensor cast(const Tensor& x) {
  const NoGradGuard no_grad;
  return autocast_operand(x.detach());
}

// The extents but the last, multiplied.
int64_t rows_of(const Shape& shape) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < shape.rank(); ++i) rows *= shape[i];
  return rows;
}

// [..., columns] as one matrix that a kernel can read; copied only where its strides ask for it.
Tensor as_matrix(const Tensor& x) {
  if (x.rank() == 2 && is_matrix(x.raw())) return x;
  const Tensor rows = dense(x);
  const int64_t columns = x.size(-1);
  return rows.as_strided({rows_of(x.shape()), columns}, {std::max<int64_t>(columns, 1), 1},
                         rows.offset());
}

Tensor as_matrices(const Tensor& x) { return is_matrix(x.raw()) ? x : dense(x); }

Tensor transposed(const Tensor& x) { return x.transpose(-2, -1); }

// y[..., m, n] in `dtype`, of operands of rank 2 or 3.
Tensor multiply(const Tensor& a, const Tensor& b, const Tensor& bias, DType dtype, bool tf32) {
  Shape shape = a.shape();
  shape[shape.rank() - 1] = b.size(-1);
  Tensor y = Tensor::empty(shape, {.dtype = dtype, .device = a.device()});
  launch(Matmul{.a = a.raw(), .b = b.raw(), .bias = bias.raw(), .y = y.raw(), .tf32 = tf32});
  return y;
}

// dbias[n] = Σ_m dy[m, n], in acc_dtype.
Tensor sum_rows(const Tensor& dy) {
  const TensorOptions options{.dtype = acc_dtype(dy.dtype()), .device = dy.device()};
  Tensor dbias = Tensor::empty({dy.size(1)}, options);
  AnyView y = dbias.raw();
  y.shape = {1, dy.size(1)};
  y.strides = {dy.size(1), 1};
  launch(Sum{.x = dy.raw(), .y = y});
  return dbias;
}

void check_dtypes(const Tensor& a, const Tensor& b, std::string_view op) {
  const DType dtype = autocast_dtype(a.dtype());
  check(is_floating(dtype) && dtype == autocast_dtype(b.dtype()), op,
        "expected operands of one floating dtype, got ", a, " and ", b);
  check(a.device() == b.device(), op, "all tensors must be on one device, got ", a, " and ", b);
}

void check_linear(const Tensor& x, const Tensor& w, const Tensor& bias) {
  check(w.rank() == 2, "linear", "expected a weight [out, in], got ", w);
  check(x.rank() >= 1 && x.size(-1) == w.size(1), "linear", "expected an input [..., ", w.size(1),
        "] for the weight ", w, ", got ", x);
  check_dtypes(x, w, "linear");
  if (!bias.defined()) return;
  const DType dtype = acc_dtype(x.dtype());
  check(bias.shape() == Shape{w.size(0)} && bias.dtype() == dtype && bias.device() == x.device(),
        "linear", "expected a bias ", dtype, Shape{w.size(0)}, "@", x.device(), ", got ", bias);
}

Shape with_last(Shape shape, int64_t extent) {
  shape[shape.rank() - 1] = extent;
  return shape;
}

}  // namespace

Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  check_linear(input, weight, bias);
  const Tensor x = as_matrix(cast(input)), w = as_matrix(cast(weight));
  const bool tf32 = use_tf32();
  const Tensor row = bias.defined() ? dense(bias) : bias;
  const Tensor rows = multiply(x, transposed(w), row, x.dtype(), tf32);
  const Shape shape = with_last(input.shape(), w.size(0));
  Tensor y = rows.as_strided(shape, strides_of(shape), 0);
  if (auto node = make_node<LinearNode>(input, weight, bias)) {
    if (weight.requires_grad()) node->x = Saved(x);
    if (input.requires_grad()) node->w = Saved(w);
    node->x_shape = input.shape();
    node->x_dtype = input.dtype();
    node->w_dtype = weight.dtype();
    node->tf32 = tf32;
    attach(y, std::move(node));
  }
  return y;
}

void LinearNode::backward(const Tensor& upstream, Gradients& grads) {
  const Tensor dy = as_matrix(upstream.detach());
  if (grads.wanted(0)) {
    const Tensor dx = multiply(dy, w.get(name(), "w"), {}, x_dtype, tf32);
    grads.set(0, dx.as_strided(x_shape, strides_of(x_shape), 0));
  }
  if (grads.wanted(1)) {
    grads.set(1, multiply(transposed(dy), x.get(name(), "x"), {}, w_dtype, tf32));
  }
  if (grads.wanted(2)) grads.set(2, sum_rows(dy));
}

namespace {

Shape leading(const Tensor& x) { return Shape(std::span(x.shape().begin(), x.rank() - 2)); }

Shape with_matrix(Shape batch, const Tensor& matrix) {
  batch.append(matrix.size(-2));
  batch.append(matrix.size(-1));
  return batch;
}

// `x` repeated over the leading axes `batch`, which become one; [rows, columns] for no such axes.
Tensor as_batch(const Tensor& x, const Shape& batch) {
  if (batch.rank() == 0) return as_matrices(x);
  const NoGradGuard no_grad;
  const Shape shape{batch.numel(), x.size(-2), x.size(-1)};
  return as_matrices(x.detach().expand(with_matrix(batch, x)).reshape(shape));
}

// The gradient of an operand from the product over the whole batch: summed, before it is rounded,
// over the axes along which the operand was repeated.
template <class Multiply>
Tensor operand_gradient(const Shape& shape, DType dtype, const Shape& batch, Multiply&& multiply) {
  const int64_t matrix = shape[shape.rank() - 2] * shape[shape.rank() - 1];
  if (batch.numel() * matrix == shape.numel()) return multiply(dtype).reshape(shape);
  const Tensor all = multiply(acc_dtype(dtype));
  return sum_to(all.reshape(with_matrix(batch, all)), shape).to(dtype);
}

}  // namespace

Tensor matmul(const Tensor& left, const Tensor& right) {
  check(left.rank() >= 2 && right.rank() >= 2 && left.size(-1) == right.size(-2), "matmul",
        "expected [..., m, k] and [..., k, n], got ", left, " and ", right);
  check_dtypes(left, right, "matmul");
  if (left.rank() > 2 && right.rank() == 2) {  // one product of all rows
    const Tensor rows = left.reshape({rows_of(left.shape()), left.size(-1)});
    return matmul(rows, right).reshape(with_last(left.shape(), right.size(1)));
  }
  const Shape batch = broadcast_shapes(leading(left), leading(right), "matmul");
  const Tensor a = as_batch(cast(left), batch), b = as_batch(cast(right), batch);
  const bool tf32 = use_tf32();
  const Tensor product = multiply(a, b, {}, a.dtype(), tf32);
  const Shape shape = with_matrix(batch, product);
  Tensor y = product.as_strided(shape, strides_of(shape), 0);
  if (auto node = make_node<MatmulNode>(left, right)) {
    if (right.requires_grad()) node->a = Saved(a);
    if (left.requires_grad()) node->b = Saved(b);
    node->batch = batch;
    node->a_shape = left.shape();
    node->b_shape = right.shape();
    node->a_dtype = left.dtype();
    node->b_dtype = right.dtype();
    node->tf32 = tf32;
    attach(y, std::move(node));
  }
  return y;
}

void MatmulNode::backward(const Tensor& upstream, Gradients& grads) {
  const Tensor dy = as_batch(upstream.detach(), batch);
  if (grads.wanted(0)) {
    const Tensor right = transposed(b.get(name(), "b"));
    grads.set(0, operand_gradient(a_shape, a_dtype, batch, [&](DType dtype) {
                return multiply(dy, right, {}, dtype, tf32);
              }));
  }
  if (grads.wanted(1)) {
    const Tensor left = transposed(a.get(name(), "a"));
    grads.set(1, operand_gradient(b_shape, b_dtype, batch, [&](DType dtype) {
                return multiply(left, dy, {}, dtype, tf32);
              }));
  }
}

}  // namespace gradus
