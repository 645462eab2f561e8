#include "nn/io/tensor_bytes.h"

#include <bit>
#include <cstring>

#include "autograd/tape.h"

namespace gradus::nn {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

std::vector<std::byte> to_bytes(const Tensor& tensor) {
  const Tensor host = dense(tensor.detach().cpu());
  std::vector<std::byte> bytes(static_cast<size_t>(host.nbytes()));
  if (!bytes.empty()) std::memcpy(bytes.data(), host.raw().data, bytes.size());
  return bytes;
}

Tensor from_bytes(std::span<const std::byte> bytes, DType dtype, const Shape& shape) {
  Tensor tensor = Tensor::empty(shape, {.dtype = dtype});
  check(std::ssize(bytes) == tensor.nbytes(), "from_bytes", tensor, " has ", tensor.nbytes(),
        " bytes, got ", bytes.size());
  if (!bytes.empty()) std::memcpy(tensor.raw().data, bytes.data(), bytes.size());
  return tensor;
}

}  // namespace gradus::nn
