#include "autograd/ops/group_norm.h"

#include <algorithm>

#include "bench/cases/channel_norm.h"

namespace gradus {
namespace {

constexpr double kEps = 1e-5;

struct Variant {
  std::string name;
  Shape shape;
  int64_t groups = 1;
  bool affine = true;
  bool channels_last = false;
  double mean = 0.5;
  double std = 2.0;
  double scale = 0;  // of what cancels in x - mean, after division by the set's deviation
};

OpCase group_norm_case(const Variant& v) {
  OpCase result;
  result.name = v.name;
  result.inputs = channel_norm_inputs({.name = "x",
                                       .shape = v.shape,
                                       .mean = v.mean,
                                       .std = v.std,
                                       .channels_last = v.channels_last},
                                      v.affine);
  const auto named = [v](auto in) { return ChannelNormInputs(in, v.affine); };
  result.forward = [v, named](std::span<const Tensor> in) {
    const auto given = named(in);
    return group_norm(in[0], v.groups, given.gamma, given.beta, kEps);
  };
  result.reference = [v, named](std::span<const ref::Array> in) {
    const auto given = named(in);
    return ref::group_norm(in[0], v.groups, given.gamma, given.beta, kEps).y;
  };
  result.reference_backward = [v, named](std::span<const ref::Array> in, const ref::Array& dy) {
    return channel_norm_gradients(
        ref::group_norm_backward(in[0], v.groups, named(in).gamma, dy, kEps), v.affine);
  };
  // The longest sum: a set, or a channel over all samples.
  const int64_t n = v.shape[0], c = v.shape[1], s = v.shape.numel() / (n * c);
  result.reduction = std::max(c / v.groups, v.affine ? n : 1) * s;
  result.scale = v.scale;
  result.of_shape = with_shape(v, &Variant::shape, group_norm_case);
  return result;
}

void add_benchmarks(std::vector<OpCase>& cases) {
  const std::pair<const char*, Shape> sizes[] = {
      {"_large", {256, 128, 56, 56}}, {"_small", {128, 64, 32, 32}}, {"_7x7", {256, 2048, 7, 7}}};
  for (const bool channels_last : {false, true}) {
    for (const auto& [suffix, shape] : sizes) {
      OpCase result =
          group_norm_case({.name = std::string(channels_last ? "channels_last" : "nchw") + suffix,
                           .shape = shape,
                           .groups = 32,
                           .channels_last = channels_last});
      result.benchmark = true;
      if (channels_last) result.forward_passes = 3, result.backward_passes = 5;
      cases.push_back(std::move(result));
    }
  }
}

}  // namespace

std::vector<OpCase> group_norm_cases() {
  const Variant variants[] = {
      {.name = "tiny", .shape = {2, 4, 1, 3}, .groups = 2},
      {.name = "rank2", .shape = {3, 6}, .groups = 2},
      {.name = "rank2_wide", .shape = {5, 262}, .groups = 2},
      {.name = "rank3", .shape = {3, 4, 11}, .groups = 2},
      {.name = "rank5", .shape = {2, 4, 2, 3, 4}, .groups = 2},
      {.name = "few_values", .shape = {37, 16}, .groups = 4},
      // Two values may lie close together: |x|·rstd is large then, and cancels.
      {.name = "pairs_of_values", .shape = {37, 8}, .groups = 4, .scale = 250},
      {.name = "one_group", .shape = {3, 5, 4, 7}, .groups = 1},
      {.name = "one_channel_per_group", .shape = {3, 5, 4, 7}, .groups = 5},
      {.name = "three_channels_per_group", .shape = {2, 12, 8, 8}, .groups = 4},
      {.name = "aligned", .shape = {3, 8, 16, 16}, .groups = 2},
      {.name = "plain", .shape = {3, 8, 5, 5}, .groups = 2, .affine = false},
      {.name = "fourteen_by_fourteen", .shape = {3, 12, 14, 14}, .groups = 4},
      {.name = "seven_by_seven", .shape = {3, 24, 7, 7}, .groups = 3},
      {.name = "rows_of_warps", .shape = {3, 4, 32, 32}, .groups = 2},
      {.name = "rows_of_warps_odd", .shape = {2, 9, 24, 25}, .groups = 3},
      {.name = "rows_of_warps_plain", .shape = {2, 4, 16, 24}, .groups = 1, .affine = false},
      {.name = "rows_of_warps_offset",
       .shape = {2, 4, 16, 32},
       .groups = 2,
       .mean = 1e4,
       .std = 1,
       .scale = 3e4},
      {.name = "short_rows", .shape = {9, 64, 4, 4}, .groups = 8},
      {.name = "many_short_rows", .shape = {2, 1024, 2, 2}, .groups = 2},
      {.name = "offset", .shape = {3, 4, 16, 16}, .groups = 2, .mean = 1e4, .std = 1, .scale = 3e4},
      {.name = "slab", .shape = {2, 8, 56, 56}, .groups = 2},
      {.name = "slab_odd", .shape = {2, 6, 57, 59}, .groups = 2},
      {.name = "large_plane", .shape = {2, 2, 160, 192}, .groups = 2},
      {.name = "large_slab", .shape = {1, 24, 96, 96}, .groups = 2},
      {.name = "very_large_slab", .shape = {1, 6, 288, 288}, .groups = 2},
      {.name = "very_large_plane", .shape = {1, 1, 512, 513}, .groups = 1},
      {.name = "channels_last", .shape = {4, 6, 5, 7}, .groups = 2, .channels_last = true},
      {.name = "channels_last_aligned", .shape = {3, 32, 6, 6}, .groups = 8, .channels_last = true},
      {.name = "channels_last_wide", .shape = {2, 75, 9, 9}, .groups = 5, .channels_last = true},
      {.name = "channels_last_one_group",
       .shape = {2, 16, 20, 20},
       .groups = 1,
       .channels_last = true},
      {.name = "channels_last_each", .shape = {3, 16, 9, 9}, .groups = 16, .channels_last = true},
      {.name = "channels_last_long", .shape = {2, 8, 64, 72}, .groups = 2, .channels_last = true},
      {.name = "channels_last_very_large",
       .shape = {1, 64, 104, 96},
       .groups = 8,
       .channels_last = true},
      {.name = "channels_last_offset",
       .shape = {2, 8, 16, 16},
       .groups = 2,
       .channels_last = true,
       .mean = 1e4,
       .std = 1,
       .scale = 3e4},
  };
  std::vector<OpCase> cases;
  for (const Variant& variant : variants) cases.push_back(group_norm_case(variant));
  add_benchmarks(cases);
  return cases;
}

}  // namespace gradus
