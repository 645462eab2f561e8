// Cross-entropy of logits and one label per row.
//
// A row holds the c logits of one sample (or pixel); n, the axes after the class and their order
// are those of the labels. With e = label_smoothing and weights w (1 where not given):
//
//   z_k = x_k - max x,   p_k = exp(z_k) / Σ exp(z),   -log p_k = log Σ exp(z) - z_k
//   t_k = e/c, and 1 - e more where k is the label                  (what the row should be)
//   loss = Σ_k t_k·w_k·(-log p_k), or 0 where the label is ignore_index
//   mean: Σ loss / Σ w[label] over the rows that count (NaN where none does); sum: Σ loss
//
// backward, with d = dy for none and sum, dy / Σ w[label] for mean
//   dx_k = d·(p_k·Σ_j t_j·w_j - t_k·w_k), or 0 where the label is ignored
//
// Formula: https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
//
// Saved for backward: x, and per row max x and log Σ exp(z). Kept apart, since their sum would lose
// the digits of p when the logits are far from 0. p is recomputed.
//
// A label outside [0, c) that is not ignored makes the loss and its row of dx NaN. The CPU throws
// before it launches anything; CUDA notes a Fault (core/fault.h) and throws when the host next
// waits.
#pragma once

#include "core/backend.h"
#include "core/fault.h"
#include "core/ops/reduction.h"

namespace gradus {

// Rows of x: element k of row r at (r / inner)·c·inner + r % inner + k·inner.
struct ClassRows {
  int64_t rows = 0;
  int64_t c = 0;
  int64_t inner = 1;  // distance of two classes; 1 for [n, c] and channels-last tensors
};

// Throws naming `op` unless x is [n, c, ...], contiguous or channels-last.
ClassRows class_rows(const AnyView& x, std::string_view op);

// Throws the error of `kind` for the first of the labels, contiguous and on the host, that is
// outside [0, classes) and not ignore_index.
void check_host_labels(Fault::Kind kind, const AnyView& labels, int64_t classes,
                       int64_t ignore_index);

struct CrossEntropyForward {
  static constexpr std::string_view name = "cross_entropy_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;        // [n, c, ...], contiguous or channels-last
  AnyView labels;   // [n, ...], u8, i32 or i64, contiguous
  AnyView weight;   // [c], acc, contiguous; may be not given
  AnyView loss;     // [n, ...] for none, else []; acc, contiguous
  AnyView max;      // [n, ...], acc, contiguous
  AnyView log_sum;  // like max
  AnyView divisor;  // [], acc: Σ w[label]; given for mean only
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0.0;
  int64_t ignore_index = -100;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, labels, weight, loss, max, log_sum, divisor); }
  int64_t bytes() const { return x.nbytes() + labels.nbytes() + max.nbytes() + log_sum.nbytes(); }
  int64_t flops() const { return 4 * x.numel(); }
  static Guarantee guarantee() { return {.accumulator = "acc_t per row, f64 over rows"}; }
};

struct CrossEntropyBackward {
  static constexpr std::string_view name = "cross_entropy_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;        // [n, c, ...], as in the forward pass
  AnyView labels;   // [n, ...]
  AnyView weight;   // [c], acc; may be not given
  AnyView max;      // [n, ...], acc, as saved
  AnyView log_sum;  // like max
  AnyView divisor;  // [], acc, as saved; given for mean only
  AnyView dy;       // like loss, acc, contiguous
  AnyView dx;       // like x
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0.0;
  int64_t ignore_index = -100;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, labels, weight, max, log_sum, divisor, dy, dx); }
  int64_t bytes() const { return x.nbytes() + dx.nbytes() + labels.nbytes(); }
  int64_t flops() const { return 5 * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const CrossEntropyForward&);
void run(Cpu&, const CrossEntropyBackward&);
void run(Cuda&, const CrossEntropyForward&);
void run(Cuda&, const CrossEntropyBackward&);

}  // namespace gradus
