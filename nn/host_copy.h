// Copies on the host: what they are made of may be written to meanwhile.
#pragma once

#include <vector>

#include "nn/module.h"

namespace gradus::nn {

// Without history, and in memory of its own wherever `tensor` is.
inline Tensor host_copy(const Tensor& tensor) {
  const Tensor plain = tensor.detach();
  return plain.device() == kCpu ? plain.clone() : plain.cpu();
}

inline std::vector<NamedTensor> host_copies(std::vector<NamedTensor> tensors) {
  for (NamedTensor& entry : tensors) entry.tensor = host_copy(entry.tensor);
  return tensors;
}

}  // namespace gradus::nn
