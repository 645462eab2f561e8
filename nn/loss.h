// Losses that keep their options, as in PyTorch:
//
//   const nn::CrossEntropyLoss loss({.label_smoothing = 0.1});
//   loss(model(x), labels).backward();
//
// Each calls the function of autograd/ops/ that it names; shapes, dtypes and errors are said there.
#pragma once

#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/nll_loss.h"
#include "autograd/ops/pointwise_loss.h"

namespace gradus::nn {

// cross_entropy(): https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
class CrossEntropyLoss {
 public:
  explicit CrossEntropyLoss(CrossEntropyOptions options = {}) : options_(std::move(options)) {}
  Tensor operator()(const Tensor& logits, const Tensor& labels) const {
    return cross_entropy(logits, labels, options_);
  }

 private:
  CrossEntropyOptions options_;
};

// nll_loss(): https://pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html
class NLLLoss {
 public:
  explicit NLLLoss(NllLossOptions options = {}) : options_(std::move(options)) {}
  Tensor operator()(const Tensor& log_probs, const Tensor& labels) const {
    return nll_loss(log_probs, labels, options_);
  }

 private:
  NllLossOptions options_;
};

// mse_loss(): https://pytorch.org/docs/stable/generated/torch.nn.MSELoss.html
class MSELoss {
 public:
  explicit MSELoss(Reduction reduction = Reduction::mean) : reduction_(reduction) {}
  Tensor operator()(const Tensor& x, const Tensor& t) const { return mse_loss(x, t, reduction_); }

 private:
  Reduction reduction_;
};

// l1_loss(): https://pytorch.org/docs/stable/generated/torch.nn.L1Loss.html
class L1Loss {
 public:
  explicit L1Loss(Reduction reduction = Reduction::mean) : reduction_(reduction) {}
  Tensor operator()(const Tensor& x, const Tensor& t) const { return l1_loss(x, t, reduction_); }

 private:
  Reduction reduction_;
};

// smooth_l1_loss(): https://pytorch.org/docs/stable/generated/torch.nn.SmoothL1Loss.html
class SmoothL1Loss {
 public:
  explicit SmoothL1Loss(Reduction reduction = Reduction::mean, double beta = 1.0)
      : reduction_(reduction), beta_(beta) {}
  Tensor operator()(const Tensor& x, const Tensor& t) const {
    return smooth_l1_loss(x, t, reduction_, beta_);
  }

 private:
  Reduction reduction_;
  double beta_;
};

// binary_cross_entropy_with_logits():
// https://pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
class BCEWithLogitsLoss {
 public:
  explicit BCEWithLogitsLoss(BceWithLogitsOptions options = {}) : options_(std::move(options)) {}
  Tensor operator()(const Tensor& x, const Tensor& t) const {
    return binary_cross_entropy_with_logits(x, t, options_);
  }

 private:
  BceWithLogitsOptions options_;
};

}  // namespace gradus::nn
