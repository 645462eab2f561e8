#include "autograd/ops/instance_norm.h"

#include "bench/cases/channel_norm.h"

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
  OpCase result;
  result.name = v.name;
  result.inputs = channel_norm_inputs(
      {.name = "x", .shape = v.shape, .mean = 0.5, .std = 2.0, .channels_last = v.channels_last},
      v.affine, !v.training);
  const int64_t c = v.shape[1];
  const auto named = [v](auto in) { return ChannelNormInputs(in, v.affine, !v.training); };
  result.forward = [v, named](std::span<const Tensor> in) {
    const auto given = named(in);
    const InstanceNormState state{.running_mean = given.running_mean,
                                  .running_var = given.running_var};
    return instance_norm(in[0], given.gamma, given.beta, state,
                         {.training = v.training, .eps = kEps});
  };
  result.reference = [v, c, named](std::span<const ref::Array> in) {
    const auto [gamma, beta, mean, var] = named(in);
    if (v.training) return ref::group_norm(in[0], c, gamma, beta, kEps).y;
    return ref::batch_norm_eval(in[0], gamma, beta, kEps, mean, var);
  };
  result.reference_backward = [v, c, named](std::span<const ref::Array> in, const ref::Array& dy) {
    const auto [gamma, beta, mean, var] = named(in);
    if (v.training)
      return channel_norm_gradients(ref::group_norm_backward(in[0], c, gamma, dy, kEps), v.affine);
    return channel_norm_gradients(ref::batch_norm_eval_backward(in[0], gamma, dy, kEps, mean, var),
                                  v.affine);
  };
  const int64_t s = v.shape.numel() / (v.shape[0] * c);
  result.reduction = (v.affine ? v.shape[0] : 1) * s;
  result.of_shape = with_shape(v, &Variant::shape, instance_norm_case);
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
      {.name = "row_192", .shape = {3, 2, 12, 16}},
      {.name = "row_384", .shape = {3, 5, 16, 24}},
      {.name = "row_768", .shape = {2, 3, 32, 24}},
      {.name = "planes_of_49", .shape = {37, 5, 7, 7}},
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
  const std::pair<const char*, Shape> sizes[] = {
      {"_large", {256, 128, 56, 56}}, {"_small", {128, 64, 32, 32}}, {"_7x7", {256, 2048, 7, 7}}};
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
