// Negative log-likelihood of log-probabilities and one label per row.
//
// Rows, n, c and the axes after the class as in core/ops/cross_entropy.h. With weights w (1 where
// not given):
//
//   loss = -w[label]·x[label], or 0 where the label is ignore_index
//   mean: Σ loss / Σ w[label] over the rows that count (NaN where none does); sum: Σ loss
//
// backward, with d = dy for none and sum, dy / Σ w[label] for mean
//   dx_k = -d·w[label] where k is the label, else 0; all 0 where the label is ignored
//
// Formula: https://pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html. Saved for backward: the
// labels and Σ w; x is not needed.
//
// Wrong labels are handled as by cross-entropy: the row's loss and its dx are NaN on CUDA until the
// host next waits (core/fault.h); the CPU throws at once.
#pragma once

#include "core/ops/cross_entropy.h"

namespace gradus {

struct NllLossForward {
  static constexpr std::string_view name = "nll_loss_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;        // [n, c, ...], contiguous or channels-last
  AnyView labels;   // [n, ...], u8, i32 or i64, contiguous
  AnyView weight;   // [c], acc, contiguous; may be not given
  AnyView loss;     // [n, ...] for none, else []; acc, contiguous
  AnyView divisor;  // [], acc: Σ w[label]; given for mean only
  Reduction reduction = Reduction::mean;
  int64_t ignore_index = -100;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, labels, weight, loss, divisor); }
  // One element per row, of which memory moves 32 bytes at least.
  int64_t bytes() const {
    return labels.nbytes() + weight.nbytes() + loss.nbytes() +
           labels.numel() * (x.numel() * size_of(x.dtype) < 32 ? size_of(x.dtype) : 32);
  }
  int64_t flops() const { return 2 * labels.numel(); }
  static Guarantee guarantee() { return {.accumulator = "acc_t per row, f64 over rows"}; }
};

struct NllLossBackward {
  static constexpr std::string_view name = "nll_loss_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView labels;   // [n, ...]
  AnyView weight;   // [c], acc; may be not given
  AnyView divisor;  // [], acc, as saved; given for mean only
  AnyView dy;       // like loss, acc, contiguous
  AnyView dx;       // like x
  Reduction reduction = Reduction::mean;
  int64_t ignore_index = -100;

  DType dtype() const { return dx.dtype; }
  auto views() const { return list_views(labels, weight, divisor, dy, dx); }
  int64_t bytes() const { return labels.nbytes() + weight.nbytes() + dy.nbytes() + dx.nbytes(); }
  int64_t flops() const { return 2 * labels.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const NllLossForward&);
void run(Cpu&, const NllLossBackward&);
void run(Cuda&, const NllLossForward&);
void run(Cuda&, const NllLossBackward&);

}  // namespace gradus
