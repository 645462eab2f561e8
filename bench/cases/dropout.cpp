#include "autograd/ops/dropout.h"

#include <cmath>

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

constexpr uint64_t kSeed = 7;

// keep of every element in row-major order, as core/ops/dropout.h defines it for the first call.
ref::Array keep_of(const Shape& shape, double p, MemoryFormat format) {
  ref::Array keep = ref::zeros(shape);
  const Strides strides = strides_of(shape, format);
  for (int64_t i = 0; i < keep.numel(); ++i) {
    int64_t rest = i, stored = 0;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      stored += rest % shape[axis] * strides[axis];
      rest /= shape[axis];
    }
    const uint32_t word =
        philox(kSeed, random_stream::kTensor, static_cast<uint64_t>(stored / 4)).words[stored % 4];
    keep[i] = (word >> 8) >= std::nearbyint(p * 0x1p24);
  }
  return keep;
}

OpCase dropout_case(std::string name, const Shape& shape, double p, bool channels_last = false) {
  const MemoryFormat format =
      channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
  OpCase result;
  result.name = std::move(name);
  result.inputs = {{.name = "x", .shape = shape, .channels_last = channels_last}};
  result.forward = [p](std::span<const Tensor> in) {
    Generator generator(in[0].device(), kSeed);
    return dropout(in[0], p, true, &generator);
  };
  result.reference = [=](std::span<const ref::Array> in) {
    return ref::dropout(in[0], keep_of(shape, p, format), p);
  };
  result.reference_backward = [=](std::span<const ref::Array>, const ref::Array& dy) {
    return std::vector<ref::Array>{ref::dropout_backward(dy, keep_of(shape, p, format), p)};
  };
  result.of_shape = [=, name = result.name](const Shape& x) {
    return dropout_case(name, x, p, channels_last);
  };
  result.any_rank = !channels_last;
  return result;
}

OpCase benchmark_case(std::string name, const Shape& shape) {
  OpCase result = dropout_case(std::move(name), shape, 0.5);
  result.benchmark = true;
  return result;
}

}  // namespace

std::vector<OpCase> dropout_cases() {
  return {
      dropout_case("tiny", {7}, 0.5),
      dropout_case("odd", {3, 5, 7}, 0.3),
      dropout_case("whole_packs", {4, 64}, 0.1),
      dropout_case("group_plus_one", {257}, 0.5),
      dropout_case("two_tiles", {3, 11111}, 0.75),
      dropout_case("channels_last", {2, 3, 4, 5}, 0.4, true),
      dropout_case("nearly_all", {40}, 0.9),
      benchmark_case("large", {256, 128, 56, 56}),
      benchmark_case("small", {128, 3136}),
  };
}

}  // namespace gradus
