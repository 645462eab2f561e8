#include "autograd/ops/layer_norm.h"

#include <cmath>

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

constexpr double kEps = 1e-5;

struct Variant {
  std::string name;
  Shape shape;
  int axes = 1;  // normalized
  bool gamma = true;
  bool beta = true;
  bool channels_last = false;
  double mean = 0.5;
  double std = 2.0;
  bool benchmark = false;
};

OpCase layer_norm_case(const Variant& v) {
  Shape normalized;
  for (int axis = v.shape.rank() - v.axes; axis < v.shape.rank(); ++axis)
    normalized.append(v.shape[axis]);
  OpCase result;
  result.name = v.name;
  result.benchmark = v.benchmark;
  result.inputs = {{.name = "x",
                    .shape = v.shape,
                    .mean = v.mean,
                    .std = v.std,
                    .channels_last = v.channels_last}};
  const auto parameter = [&](const char* name, double mean) {
    result.inputs.push_back(
        {.name = name, .shape = normalized, .kind = CaseInput::Kind::parameter, .mean = mean});
  };
  if (v.gamma) parameter("gamma", 1.0);
  if (v.beta) parameter("beta", 0.0);
  const auto gamma = [v](auto in) { return v.gamma ? in[1] : std::decay_t<decltype(in[0])>(); };
  const auto beta = [v](auto in) { return v.beta ? in.back() : std::decay_t<decltype(in[0])>(); };

  result.forward = [normalized, gamma, beta](std::span<const Tensor> in) {
    return layer_norm(in[0], normalized, gamma(in), beta(in), kEps);
  };
  result.reference = [v, gamma, beta](std::span<const ref::Array> in) {
    return ref::layer_norm(in[0], v.axes, gamma(in), beta(in), kEps).y;
  };
  result.reference_backward = [v, gamma](std::span<const ref::Array> in, const ref::Array& dy) {
    const ref::NormGradients g = ref::layer_norm_backward(in[0], v.axes, gamma(in), dy, kEps);
    std::vector<ref::Array> grads{g.dx};
    if (v.gamma) grads.push_back(g.dgamma);
    if (v.beta) grads.push_back(g.dbeta);
    return grads;
  };
  const int64_t m = normalized.numel();
  result.reduction = std::max(m, v.shape.numel() / m);
  // Far from 0, each x - mean is exact to half an ulp of the mean only.
  result.scale = std::abs(v.mean) > 10 * v.std ? std::abs(v.mean) / v.std : 0;
  return result;
}

}  // namespace

std::vector<OpCase> layer_norm_cases() {
  const Variant variants[] = {
      {.name = "tiny", .shape = {3, 6}},
      {.name = "one_row", .shape = {11}},
      {.name = "rank_3", .shape = {2, 3, 7}},
      {.name = "image_chw", .shape = {3, 2, 3, 4}, .axes = 3},
      {.name = "image_hw", .shape = {2, 3, 4, 4}, .axes = 2},
      {.name = "image_w", .shape = {2, 3, 2, 8}},
      {.name = "image_all", .shape = {2, 3, 2, 2}, .axes = 4},
      {.name = "channels_last_chw", .shape = {3, 5, 4, 3}, .axes = 3, .channels_last = true},
      {.name = "channels_last_all", .shape = {2, 3, 2, 4}, .axes = 4, .channels_last = true},
      {.name = "channels_last_hw", .shape = {2, 3, 4, 4}, .axes = 2, .channels_last = true},
      {.name = "rank_8", .shape = {2, 1, 2, 1, 2, 2, 1, 6}, .axes = 4},
      {.name = "no_gamma", .shape = {5, 12}, .gamma = false},
      {.name = "no_beta", .shape = {5, 12}, .beta = false},
      {.name = "plain", .shape = {5, 12}, .gamma = false, .beta = false},
      {.name = "aligned", .shape = {37, 64}},
      {.name = "warp_and_one", .shape = {70, 33}},
      {.name = "wide", .shape = {9, 1000}},
      {.name = "wider", .shape = {5, 1024}},
      {.name = "odd", .shape = {4, 4097}},
      {.name = "row_4096", .shape = {6, 4096}},
      {.name = "row_5000", .shape = {7, 5000}},
      {.name = "row_8200", .shape = {9, 8200}},
      {.name = "row_16384", .shape = {3, 16384}},
      {.name = "row_16392", .shape = {3, 16392}},
      {.name = "row_20001", .shape = {2, 20001}},
      {.name = "row_24576", .shape = {2, 24576}},
      {.name = "row_65536", .shape = {2, 65536}},
      {.name = "row_70000", .shape = {2, 70000}},
      {.name = "offset", .shape = {12, 256}, .mean = 1e4, .std = 1},
      {.name = "many_rows", .shape = {1031, 5}},
      {.name = "rows_large", .shape = {32768, 4096}, .benchmark = true},
      {.name = "rows_small", .shape = {8192, 1024}, .benchmark = true},
      {.name = "chw", .shape = {256, 64, 32, 32}, .axes = 3, .benchmark = true},
      {.name = "chw_channels_last",
       .shape = {256, 64, 32, 32},
       .axes = 3,
       .channels_last = true,
       .benchmark = true},
  };
  std::vector<OpCase> cases;
  for (const Variant& variant : variants) cases.push_back(layer_norm_case(variant));
  return cases;
}

}  // namespace gradus
