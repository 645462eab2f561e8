#include "autograd/ops/per_channel.h"

#include "core/error.h"

namespace gradus {

void check_per_channel(std::string_view op, std::string_view what, const Tensor& tensor,
                       const Tensor& x) {
  if (!tensor.defined()) return;
  check(tensor.rank() == 1 && tensor.size(0) == x.size(1), op, what,
        " must have one entry for each of the ", x.size(1), " channels of ", x, ", got ", tensor);
  check(tensor.dtype() == acc_dtype(x.dtype()), op, what, " must be ", acc_dtype(x.dtype()),
        " for ", x, ", got ", tensor);
}

void check_running_statistics(std::string_view op, const Tensor& running_mean,
                              const Tensor& running_var, const Tensor& x) {
  check(running_mean.defined() == running_var.defined(), op,
        "running_mean and running_var come together");
  if (!running_mean.defined()) return;
  check_per_channel(op, "running_mean", running_mean, x);
  check_per_channel(op, "running_var", running_var, x);
  check(!running_mean.requires_grad() && !running_var.requires_grad(), op,
        "running statistics have no gradient, got one that requires it");
  for (const Tensor& running : {running_mean, running_var}) {
    check(running.numel() <= 1 || running.strides()[0] != 0, op,
          "running statistics store an element for each channel, got ", running, " with stride 0");
  }
  check(running_mean.raw().data != running_var.raw().data || running_mean.numel() == 0, op,
        "running_mean and running_var are one tensor");
}

Tensor dense_parameter(const Tensor& tensor) {
  return tensor.defined() && !tensor.is_contiguous() ? tensor.detach().contiguous() : tensor;
}

}  // namespace gradus
