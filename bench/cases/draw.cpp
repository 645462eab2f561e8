#include "bench/cases/draw.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace gradus {
namespace {

// The values of a large array repeat, as drawing them takes longer than what is done with them.
template <class F>
void fill(ref::Array& array, const F& draw) {
  constexpr size_t kDrawn = 1048583;  // a prime: no two planes are alike
  std::vector<double>& values = array.data;
  const size_t drawn = std::min(values.size(), kDrawn);
  std::generate_n(values.begin(), drawn, draw);
  for (size_t i = drawn; i < values.size(); ++i) values[i] = values[i - drawn];
}

}  // namespace

std::vector<ref::Array> draw_inputs(const OpCase& op_case, DType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<ref::Array> arrays;
  for (const CaseInput& input : op_case.inputs) {
    ref::Array array = ref::zeros(input.shape);
    fill(array, [&] {
      if (input.kind == CaseInput::Kind::label)
        return static_cast<double>(random() % static_cast<uint64_t>(input.classes));
      double value = input.mean + input.std * normal(random);
      if (input.positive) value = std::abs(value) + 0.5;
      return round_to(value, input.dtype(dtype));
    });
    arrays.push_back(std::move(array));
  }
  return arrays;
}

ref::Array draw_upstream(const Shape& shape, DType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  ref::Array dy = ref::zeros(shape);
  fill(dy, [&] { return round_to(normal(random), dtype); });
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
