#include "autograd/ops/local_response_norm.h"

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

struct Variant {
  std::string name;
  Shape shape;
  ref::LrnOptions options{.size = 5};
  bool channels_last = false;
};

OpCase local_response_norm_case(const Variant& v) {
  OpCase result;
  result.name = v.name;
  result.inputs = {{.name = "x", .shape = v.shape, .channels_last = v.channels_last}};
  result.forward = [v](std::span<const Tensor> in) {
    const auto& [size, alpha, beta, k] = v.options;
    return local_response_norm(in[0], size, alpha, beta, k);
  };
  result.reference = [v](std::span<const ref::Array> in) {
    return ref::local_response_norm(in[0], v.options).y;
  };
  result.reference_backward = [v](std::span<const ref::Array> in, const ref::Array& dy) {
    return std::vector<ref::Array>{ref::local_response_norm_backward(in[0], v.options, dy)};
  };
  result.reduction = v.options.size;
  result.of_shape = with_shape(v, &Variant::shape, local_response_norm_case);
  return result;
}

}  // namespace

// alpha is far from PyTorch's 1e-4 in the small cases, so that the windows matter.
std::vector<OpCase> local_response_norm_cases() {
  const Variant variants[] = {
      {"size_1", {2, 3, 4}, {.size = 1, .alpha = 0.5}},
      {"size_3", {2, 6, 5}, {.size = 3, .alpha = 1}},
      {"size_4", {2, 7, 3, 2}, {.size = 4, .alpha = 2}},
      {"size_5", {2, 11, 3, 3}, {.size = 5, .alpha = 2, .k = 2}},
      {"size_7", {3, 9, 4}, {.size = 7, .alpha = 3}},
      {"size_above_channels", {2, 3, 7}, {.size = 8, .alpha = 2}},
      {"size_far_above_channels", {2, 4, 2, 3}, {.size = 27, .alpha = 9}},
      {"one_channel", {3, 1, 5}, {.size = 3, .alpha = 1}},
      {"rank_2", {5, 19}, {.size = 5, .alpha = 1}},
      {"rank_2_even", {4, 33}, {.size = 6, .alpha = 1, .beta = 0.5}},
      {"rank_5", {2, 5, 2, 3, 2}, {.size = 3, .alpha = 1}},
      {"beta_half", {2, 6, 4}, {.size = 5, .alpha = 1, .beta = 0.5}},
      {"beta_one", {2, 6, 4}, {.size = 5, .alpha = 1, .beta = 1}},
      {"beta_other", {2, 6, 8}, {.size = 3, .alpha = 1, .beta = 0.6}},
      {"beta_zero", {2, 6, 4}, {.size = 3, .alpha = 1, .beta = 0}},
      {"beta_negative", {2, 6, 4}, {.size = 3, .alpha = 1, .beta = -0.5}},
      {"default_aligned", {2, 20, 8, 8}},
      {"aligned_3", {2, 12, 8, 8}, {.size = 3, .alpha = 1}},
      {"aligned_5", {3, 70, 4, 8}, {.size = 5, .alpha = 2}},
      {"aligned_7", {2, 40, 8, 8}, {.size = 7, .alpha = 2}},
      {"aligned_even", {2, 12, 8, 8}, {.size = 2, .alpha = 1}},
      {"long_rows", {2, 5, 37, 41}, {.size = 5, .alpha = 1}},
      {"long_rows_many_channels", {1, 40, 33, 33}, {.size = 4, .alpha = 1}},
      {"channels_last_3", {2, 7, 3, 3}, {.size = 3, .alpha = 1}, true},
      {"channels_last_4", {2, 16, 2, 3}, {.size = 4, .alpha = 1}, true},
      {"channels_last_5", {2, 32, 5, 5}, {.size = 5, .alpha = 2}, true},
      {"channels_last_7", {2, 64, 4, 5}, {.size = 7, .alpha = 2}, true},
      {"channels_last_wide", {1, 75, 9, 9}, {.size = 5, .alpha = 2}, true},
      {"channels_last_above", {2, 4, 2, 3}, {.size = 11, .alpha = 2}, true},
      {"channels_last_many_rows", {40, 8, 6, 6}, {.size = 5, .alpha = 2, .beta = 0.6}, true},
  };
  std::vector<OpCase> cases;
  for (const Variant& variant : variants) cases.push_back(local_response_norm_case(variant));
  for (const bool channels_last : {false, true}) {
    const std::string format = channels_last ? "channels_last" : "nchw";
    const std::pair<const char*, Shape> sizes[] = {
        {"_large", {256, 128, 56, 56}}, {"_small", {128, 64, 32, 32}}, {"_7x7", {256, 2048, 7, 7}}};
    for (const auto& [temperature, shape] : sizes) {
      cases.push_back(local_response_norm_case(
          {.name = format + temperature, .shape = shape, .channels_last = channels_last}));
      cases.back().benchmark = true;
    }
  }
  return cases;
}

}  // namespace gradus
