#include "autograd/saved.h"

#include "core/error.h"

namespace gradus {

Saved::Saved(const Tensor& tensor) {
  if (!tensor.defined()) return;
  tensor_ = tensor.detach();
  version_ = tensor.storage()->version();
}

Tensor Saved::get(std::string_view op, std::string_view tensor_name) const {
  if (!tensor_.defined()) return {};
  const uint64_t now = tensor_.storage()->version();
  if (now != version_) {
    fail(ErrorCode::autograd, op, "its saved ", tensor_name, " ", tensor_,
         " was changed in place: version ", version_, " when saved, ", now, " in backward");
  }
  return tensor_;
}

}  // namespace gradus
