#include "bench/cases/draw.h"

#include <cmath>
#include <random>

namespace gradus {

std::vector<ref::Array> draw_inputs(const OpCase& op_case, DType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<ref::Array> arrays;
  for (const CaseInput& input : op_case.inputs) {
    ref::Array array = ref::zeros(input.shape);
    for (double& value : array.data) {
      if (input.kind == CaseInput::Kind::label) {
        value = static_cast<double>(random() % static_cast<uint64_t>(input.classes));
        continue;
      }
      value = input.mean + input.std * normal(random);
      if (input.positive) value = std::abs(value) + 0.5;
      value = round_to(value, input.dtype(dtype));
    }
    arrays.push_back(std::move(array));
  }
  return arrays;
}

ref::Array draw_upstream(const Shape& shape, DType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  ref::Array dy = ref::zeros(shape);
  for (double& value : dy.data) value = round_to(normal(random), dtype);
  return dy;
}

std::vector<Tensor> make_inputs(const OpCase& op_case, std::span<const ref::Array> arrays,
                                DType dtype, Device device) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const CaseInput& input = op_case.inputs[i];
    const auto format =
        input.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
    Tensor tensor =
        Tensor::from_vector(arrays[i].data, arrays[i].shape,
                            {.dtype = input.dtype(dtype), .device = device, .format = format});
    if (input.is_differentiable()) tensor.set_requires_grad(true);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Tolerance gradient_tolerance(const OpCase& op_case, DType dtype, const ref::Array& y,
                             const ref::Array& dy) {
  Tolerance result = tolerance(dtype, op_case.reduction);
  if (op_case.largest_stored_term)
    result.absolute += ulp(1, dtype) / 2 * op_case.largest_stored_term(y, dy);
  return result;
}

}  // namespace gradus
