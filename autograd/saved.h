// A tensor kept for the backward pass, guarded against later in-place writes.
#pragma once

#include "core/tensor.h"

namespace gradus {

// Holds the data without its history, so that a saved output makes no cycle.
class Saved {
 public:
  Saved() = default;
  explicit Saved(const Tensor& tensor);

  bool defined() const { return tensor_.defined(); }
  // The tensor; throws `autograd` naming op, tensor and both versions when it was written to since.
  Tensor get(std::string_view op, std::string_view tensor_name) const;

 private:
  Tensor tensor_;
  uint64_t version_ = 0;
};

}  // namespace gradus
