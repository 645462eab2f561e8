// Matrix product with an optional bias per column.
//
//   y[m,n]  = Σ_k a[m,k]·b[k,n] + bias[n]
//
// and its backward pass, two products of the same kind and one sum:
//   da = dy·bᵀ,   db = aᵀ·dy,   dbias[n] = Σ_m dy[m,n]
//
// A linear layer is a = x, b = wᵀ: y = x·wᵀ + bias, dx = dy·w, dw = dyᵀ·x.
// Formula: https://pytorch.org/docs/stable/generated/torch.nn.Linear.html
//
// An operand is transposed by its strides alone. Sums are kept in acc_t and rounded once; how k is
// split depends on the shape only (on CUDA also on strides, alignment, precision and the card).
#pragma once

#include "core/backend.h"

namespace gradus {

// A view of rank 2 or 3 as a batch of matrices: element (i, j) at i·ld + j, or at i + j·ld when
// transposed.
struct MatrixLayout {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t cols = 0;
  bool transposed = false;
  int64_t ld = 1;
  int64_t batch_stride = 0;
};

// Whether the strides are those of a MatrixLayout. Row-major is preferred where both would fit.
bool is_matrix(const AnyView& view);
// Throws invalid_argument naming `op` unless is_matrix().
MatrixLayout matrix_layout(const AnyView& view, std::string_view op);

struct Matmul {
  static constexpr std::string_view name = "matmul";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView a;          // [m, k] or [batch, m, k], is_matrix()
  AnyView b;          // [k, n] or [batch, k, n], is_matrix(), dtype of a
  AnyView bias;       // [n], acc_dtype(a.dtype), contiguous; may be not given
  AnyView y;          // [m, n] or [batch, m, n], contiguous, dtype of a or acc_dtype of it
  bool tf32 = false;  // f32 on CUDA: operands may be rounded to TF32

  DType dtype() const { return a.dtype; }
  auto views() const { return list_views(a, b, bias, y); }
  int64_t bytes() const { return a.nbytes() + b.nbytes() + bias.nbytes() + y.nbytes(); }
  int64_t flops() const { return 2 * y.numel() * a.shape[a.shape.rank() - 1]; }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const Matmul&);
void run(Cuda&, const Matmul&);

}  // namespace gradus
