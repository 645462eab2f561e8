#include "autograd/ops/instance_norm.h"

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

constexpr double kEps = 1e-5;

struct Variant {
  std::string name;
  Shape shape;
  bool training = true;
  bool affine = true;
  bool channels_last = false;
};

OpCase instance_norm_case(const Variant& v) {
  const Shape per_channel{v.shape[1]};
  OpCase result;
  result.name = v.name;
  result.inputs = {
      {.name = "x", .shape = v.shape, .mean = 0.5, .std = 2.0, .channels_last = v.channels_last}};
  if (v.affine) {
    result.inputs.push_back(
        {.name = "gamma", .shape = per_channel, .kind = CaseInput::Kind::parameter, .mean = 1.0});
    result.inputs.push_back(
        {.name = "beta", .shape = per_channel, .kind = CaseInput::Kind::parameter});
  }
  if (!v.training) {
    result.inputs.push_back(
        {.name = "running_mean", .shape = per_channel, .kind = CaseInput::Kind::state});
    result.inputs.push_back({.name = "running_var",
                             .shape = per_channel,
                             .kind = CaseInput::Kind::state,
                             .positive = true});
  }
  const auto gamma = [v](auto in) { return v.affine ? in[1] : std::decay_t<decltype(in[0])>(); };
  const auto beta = [v](auto in) { return v.affine ? in[2] : std::decay_t<decltype(in[0])>(); };
  const int64_t c = v.shape[1];
  result.forward = [v, gamma, beta](std::span<const Tensor> in) {
    InstanceNormState state;
    if (!v.training) state = {.running_mean = in[in.size() - 2], .running_var = in[in.size() - 1]};
    return instance_norm(in[0], gamma(in), beta(in), state, {.training = v.training, .eps = kEps});
  };
  result.reference = [v, c, gamma, beta](std::span<const ref::Array> in) {
    if (v.training) return ref::group_norm(in[0], c, gamma(in), beta(in), kEps).y;
    return ref::batch_norm_eval(in[0], gamma(in), beta(in), kEps, in[in.size() - 2],
                                in[in.size() - 1]);
  };
  result.reference_backward = [v, c, gamma](std::span<const ref::Array> in, const ref::Array& dy) {
    std::vector<ref::Array> grads;
    const auto take = [&](const auto& g) {
      grads.push_back(g.dx);
      if (v.affine) grads.insert(grads.end(), {g.dgamma, g.dbeta});
    };
    if (v.training) {
      take(ref::group_norm_backward(in[0], c, gamma(in), dy, kEps));
    } else {
      take(ref::batch_norm_eval_backward(in[0], gamma(in), dy, kEps, in[in.size() - 2],
                                         in[in.size() - 1]));
    }
    return grads;
  };
  const int64_t s = v.shape.numel() / (v.shape[0] * c);
  result.reduction = (v.affine ? v.shape[0] : 1) * s;
  return result;
}

}  // namespace

std::vector<OpCase> instance_norm_cases() {
  const Variant variants[] = {
      {.name = "tiny", .shape = {2, 2, 3}},
      {.name = "rank3", .shape = {3, 4, 11}},
      {.name = "nchw", .shape = {4, 3, 5, 7}},
      {.name = "plain", .shape = {4, 3, 5, 7}, .affine = false},
      {.name = "aligned", .shape = {3, 5, 8, 8}},
      {.name = "plane", .shape = {2, 3, 56, 56}},
      {.name = "rank5", .shape = {2, 3, 2, 3, 4}},
      {.name = "channels_last", .shape = {4, 19, 5, 7}, .channels_last = true},
      {.name = "eval", .shape = {4, 3, 5, 7}, .training = false},
      {.name = "eval_channels_last",
       .shape = {2, 8, 4, 4},
       .training = false,
       .channels_last = true},
  };
  std::vector<OpCase> cases;
  for (const Variant& variant : variants) cases.push_back(instance_norm_case(variant));
  const std::pair<const char*, Shape> sizes[] = {{"_large", {256, 128, 56, 56}},
                                                 {"_small", {128, 64, 32, 32}}};
  for (const bool channels_last : {false, true}) {
    for (const auto& [suffix, shape] : sizes) {
      OpCase result = instance_norm_case(
          {.name = std::string(channels_last ? "channels_last" : "nchw") + suffix,
           .shape = shape,
           .channels_last = channels_last});
      result.benchmark = true;
      if (channels_last) result.forward_passes = 3, result.backward_passes = 5;
      cases.push_back(std::move(result));
    }
  }
  return cases;
}

}  // namespace gradus
