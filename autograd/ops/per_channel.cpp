#include "autograd/ops/per_channel.h"

#include <cstdint>

#include "core/error.h"
#include "core/share_memory.h"

namespace gradus {

void check_per_channel(std::string_view op, std::string_view what, const Tensor& tensor,
                       const Tensor& x) {
  if (!tensor.defined()) return;
  check(tensor.rank() == 1 && tensor.size(0) == x.size(1), op, what,
        " must have one entry for each of the ", x.size(1), " channels of ", x, ", got ", tensor);
  check(tensor.dtype() == acc_dtype(x.dtype()), op, what, " must be ", acc_dtype(x.dtype()),
        " for ", x, ", got ", tensor);
}

namespace {

// Of two tensors [c] of one dtype.
bool share_elements(const Tensor& a, const Tensor& b) {
  const int64_t last = a.numel() - 1, step_a = a.strides()[0], step_b = b.strides()[0];
  if (last < 0 || !share_memory(*a.storage(), *b.storage())) return false;
  const auto address = [](const Tensor& t) { return reinterpret_cast<intptr_t>(t.raw().data); };
  const int64_t distance = (address(b) - address(a)) / size_of(a.dtype());
  if (distance > last * step_a || -distance > last * step_b) return false;
  if (last == 0) return true;
  if (step_a == step_b) return distance % step_a == 0;
  for (int64_t i = 0; i <= last; ++i) {
    const int64_t from_b = i * step_a - distance;
    if (from_b >= 0 && from_b <= last * step_b && from_b % step_b == 0) return true;
  }
  return false;
}

}  // namespace

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
  check(!share_elements(running_mean, running_var), op,
        "running_mean and running_var share elements");
}

Tensor dense_parameter(const Tensor& tensor) {
  return tensor.defined() && !tensor.is_contiguous() ? tensor.detach().contiguous() : tensor;
}

}  // namespace gradus
