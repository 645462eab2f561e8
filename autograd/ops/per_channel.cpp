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

Tensor dense_parameter(const Tensor& tensor) {
  return tensor.defined() && !tensor.is_contiguous() ? tensor.detach().contiguous() : tensor;
}

}  // namespace gradus
