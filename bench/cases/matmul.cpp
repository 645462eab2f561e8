#include "autograd/ops/matmul.h"

#include <algorithm>

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

OpCase linear_case(const std::string& name, const Shape& x, int64_t out, bool bias = true) {
  const int64_t in = x[x.rank() - 1], rows = x.numel() / in;
  OpCase result;
  result.function = "linear";
  result.name = "linear_" + name;
  result.inputs = {{.name = "x", .shape = x, .mean = 0.25}, {.name = "w", .shape = {out, in}}};
  if (bias) {
    result.inputs.push_back(
        {.name = "bias", .shape = {out}, .kind = CaseInput::Kind::parameter, .std = 3.0});
  }
  result.forward = [bias](std::span<const Tensor> t) {
    return linear(t[0], t[1], bias ? t[2] : Tensor());
  };
  result.reference = [bias](std::span<const ref::Array> t) {
    return ref::linear(t[0], t[1], bias ? t[2] : ref::Array());
  };
  result.reference_backward = [bias](std::span<const ref::Array> t, const ref::Array& dy) {
    const ref::LinearGradients g = ref::linear_backward(t[0], t[1], dy);
    std::vector<ref::Array> grads{g.dx, g.dw};
    if (bias) grads.push_back(g.db);
    return grads;
  };
  result.reduction = std::max({in + 1, out, rows});
  result.of_shape = [=](const Shape& other) { return linear_case(name, other, out, bias); };
  result.any_rank = true;
  return result;
}

OpCase matmul_case(const std::string& name, const Shape& a, const Shape& b) {
  const int64_t m = a[a.rank() - 2], k = a[a.rank() - 1], n = b[b.rank() - 1];
  // Where one operand is repeated over a batch, its gradient is a sum over that batch too.
  const int64_t repeats = std::max(a.numel() / (m * k), b.numel() / (k * n));
  OpCase result;
  result.name = "matmul_" + name;
  result.inputs = {{.name = "a", .shape = a, .mean = 0.25}, {.name = "b", .shape = b}};
  result.forward = [](std::span<const Tensor> t) { return matmul(t[0], t[1]); };
  result.reference = [](std::span<const ref::Array> t) { return ref::matmul(t[0], t[1]); };
  result.reference_backward = [](std::span<const ref::Array> t, const ref::Array& dy) {
    const ref::MatmulGradients g = ref::matmul_backward(t[0], t[1], dy);
    return std::vector<ref::Array>{g.da, g.db};
  };
  result.reduction = std::max({m, k, n}) * repeats;
  result.of_shape = [=](const Shape& other) {
    Shape follows = b;  // the batch stays as it is
    follows[b.rank() - 2] = other[other.rank() - 1];
    return matmul_case(name, other, follows);
  };
  return result;
}

OpCase benchmark_case(OpCase result) {
  result.benchmark = true;
  return result;
}

}  // namespace

std::vector<OpCase> matmul_cases() {
  return {
      linear_case("tiny", {3, 4}, 2),
      linear_case("no_bias", {5, 3}, 4, false),
      linear_case("leading_axes", {2, 3, 5}, 4),
      linear_case("one_row", {1, 7}, 3),
      linear_case("one_output", {5, 9}, 1),
      linear_case("one_input", {6, 1}, 4),
      linear_case("vector", {6}, 4),
      linear_case("odd", {17, 33}, 29),
      linear_case("tiles", {130, 70}, 259),
      linear_case("many_tiles", {300, 20}, 700),
      linear_case("long_rows", {9, 1100}, 7),
      linear_case("long_batch", {2100, 5}, 3),
      matmul_case("plain", {4, 3}, {3, 5}),
      matmul_case("row_by_column", {1, 40}, {40, 1}),
      matmul_case("column_by_row", {9, 1}, {1, 7}),
      matmul_case("batched", {3, 5, 4}, {3, 4, 6}),
      matmul_case("batched_long", {2, 3, 1500}, {2, 1500, 4}),
      matmul_case("rows", {2, 3, 4}, {4, 5}),
      matmul_case("broadcast_left", {3, 4}, {2, 4, 5}),
      matmul_case("broadcast_both", {2, 1, 3, 4}, {5, 4, 2}),
      benchmark_case(linear_case("128x3136x128", {128, 3136}, 128)),
      benchmark_case(linear_case("512x3136x128", {512, 3136}, 128)),
      benchmark_case(linear_case("128x128x10", {128, 128}, 10)),
      benchmark_case(linear_case("4096x1024x4096", {4096, 1024}, 4096)),
  };
}

}  // namespace gradus
