// The running statistics of instance normalization. The normalization itself is group_norm with one
// group per channel, and with running statistics batch_norm's evaluation.
//
//   running_mean ← (1 - momentum)·running_mean + momentum·Σ_n mean[n, c] / n
//   running_var  ← (1 - momentum)·running_var  + momentum·Σ_n var[n, c]·s/(s - 1) / n   (unbiased)
//
// Source: Ulyanov, Vedaldi and Lempitsky 2016, https://arxiv.org/abs/1607.08022; the averages as in
// https://pytorch.org/docs/stable/generated/torch.nn.InstanceNorm2d.html
#pragma once

#include "core/backend.h"
#include "core/ops/normalization.h"

namespace gradus {

struct InstanceNormUpdate {
  static constexpr std::string_view name = "instance_norm_update";
  static constexpr Support support{.cpu = dtype_set(TypeList<float, double>{}),
                                   .cuda = dtype_set(TypeList<float, double>{})};

  AnyView mean;          // [n, c], n > 0
  AnyView var;           // [n, c], biased
  AnyView running_mean;  // [c], any stride, updated
  AnyView running_var;   // [c], any stride, updated
  int64_t s = 0;         // elements of a set, at least 2
  double momentum = 0.1;

  DType dtype() const { return mean.dtype; }
  auto views() const { return list_views(mean, var, running_mean, running_var); }
  int64_t bytes() const {
    return mean.nbytes() + var.nbytes() + 2 * (running_mean.nbytes() + running_var.nbytes());
  }
  int64_t flops() const { return 2 * mean.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const InstanceNormUpdate&);
void run(Cuda&, const InstanceNormUpdate&);

}  // namespace gradus
