#include <cmath>

#include "autograd/ops/batch_norm.h"

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
  double mean = 0.5;
  double std = 2.0;
};

OpCase batch_norm_case(const Variant& v) {
  OpCase result;
  result.name = v.name;
  result.inputs = channel_norm_inputs({.name = "x",
                                       .shape = v.shape,
                                       .mean = v.mean,
                                       .std = v.std,
                                       .channels_last = v.channels_last},
                                      v.affine, !v.training);
  const auto named = [v](auto in) { return ChannelNormInputs(in, v.affine, !v.training); };
  result.forward = [v, named](std::span<const Tensor> in) {
    const auto given = named(in);
    const BatchNormState state{
        .running_mean = given.running_mean, .running_var = given.running_var, .batches = {}};
    return batch_norm(in[0], given.gamma, given.beta, state, {.training = v.training, .eps = kEps});
  };
  result.reference = [v, named](std::span<const ref::Array> in) {
    const auto [gamma, beta, mean, var] = named(in);
    if (v.training) return ref::batch_norm_train(in[0], gamma, beta, kEps).y;
    return ref::batch_norm_eval(in[0], gamma, beta, kEps, mean, var);
  };
  result.reference_backward = [v, named](std::span<const ref::Array> in, const ref::Array& dy) {
    const auto [gamma, beta, mean, var] = named(in);
    return channel_norm_gradients(
        v.training ? ref::batch_norm_train_backward(in[0], gamma, dy, kEps)
                   : ref::batch_norm_eval_backward(in[0], gamma, dy, kEps, mean, var),
        v.affine);
  };
  result.reduction = v.shape.numel() / v.shape[1];
  // Far from 0, each x - mean is exact to half an ulp of the mean only.
  result.scale = std::abs(v.mean) > 10 * v.std ? std::abs(v.mean) / v.std : 0;
  result.of_shape = with_shape(v, &Variant::shape, batch_norm_case);
  return result;
}

OpCase benchmark_case(std::string name, Shape shape, bool training, bool channels_last) {
  OpCase result = batch_norm_case({.name = std::move(name),
                                   .shape = shape,
                                   .training = training,
                                   .channels_last = channels_last});
  result.benchmark = true;
  // A channel of a large batch does not stay on the chip between the two passes over it.
  if (training && shape.numel() > (int64_t{1} << 25)) {
    result.forward_passes = 3;
    result.backward_passes = 5;
  }
  return result;
}

}  // namespace

std::vector<OpCase> batch_norm_cases() {
  const Variant variants[] = {
      {.name = "train_tiny", .shape = {2, 2, 1, 3}},
      {.name = "train_2d", .shape = {7, 5}},
      {.name = "train_2d_wide", .shape = {5, 131}},
      {.name = "train_3d", .shape = {3, 4, 11}},
      {.name = "train_nchw", .shape = {4, 3, 5, 7}},
      {.name = "train_nchw_aligned", .shape = {3, 4, 8, 8}},
      {.name = "train_5d", .shape = {2, 3, 2, 3, 4}},
      {.name = "train_channels_last", .shape = {4, 3, 5, 7}, .channels_last = true},
      {.name = "train_channels_last_aligned", .shape = {3, 32, 6, 6}, .channels_last = true},
      {.name = "train_channels_last_wide", .shape = {2, 75, 9, 9}, .channels_last = true},
      {.name = "train_plain", .shape = {4, 3, 5, 7}, .affine = false},
      {.name = "train_offset", .shape = {4, 3, 16, 16}, .mean = 1e4, .std = 1},
      {.name = "train_long", .shape = {2, 2, 96, 121}},
      {.name = "train_beyond_a_cluster", .shape = {6, 2, 160, 160}},
      {.name = "train_planes_of_49", .shape = {37, 16, 7, 7}},
      {.name = "train_planes_of_49_plain", .shape = {9, 8, 7, 7}, .affine = false},
      {.name = "train_planes_of_196", .shape = {5, 6, 14, 14}},
      {.name = "train_planes_of_49_offset", .shape = {3, 8, 7, 7}, .mean = 1e4, .std = 1},
      {.name = "train_one_sample_of_25", .shape = {1, 8, 5, 5}},
      {.name = "train_many_planes_of_9", .shape = {1100, 8, 3, 3}},
      {.name = "train_many_rows", .shape = {300, 8, 6, 6}, .channels_last = true},
      {.name = "eval_tiny", .shape = {2, 2, 1, 3}, .training = false},
      {.name = "eval_nchw", .shape = {4, 3, 5, 7}, .training = false},
      {.name = "eval_channels_last",
       .shape = {4, 19, 5, 7},
       .training = false,
       .channels_last = true},
      {.name = "eval_plain", .shape = {3, 4, 11}, .training = false, .affine = false},
  };
  // In training and in evaluation: several blocks of channels; few lanes, not all of them used, and
  // several groups of rows in several chunks, of single channels and of packs.
  const std::pair<std::string, Shape> channels_last_shapes[] = {
      {"blocks", {5, 264, 7, 6}}, {"groups", {17, 3, 13, 17}}, {"groups_packed", {9, 24, 13, 17}}};
  std::vector<OpCase> cases;
  for (const Variant& variant : variants) cases.push_back(batch_norm_case(variant));
  for (const bool training : {true, false}) {
    for (const auto& [name, shape] : channels_last_shapes) {
      cases.push_back(batch_norm_case(
          {.name = (training ? "train" : "eval") + std::string("_channels_last_") + name,
           .shape = shape,
           .training = training,
           .channels_last = true}));
    }
  }
  for (const bool channels_last : {false, true}) {
    const std::string format = channels_last ? "_channels_last" : "_nchw";
    for (const bool training : {true, false}) {
      const std::string mode = training ? "train" : "eval";
      cases.push_back(
          benchmark_case(mode + format + "_large", {256, 128, 56, 56}, training, channels_last));
      cases.push_back(
          benchmark_case(mode + format + "_small", {128, 64, 32, 32}, training, channels_last));
      cases.push_back(
          benchmark_case(mode + format + "_7x7", {256, 2048, 7, 7}, training, channels_last));
    }
  }
  return cases;
}

}  // namespace gradus
