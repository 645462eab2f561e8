#include "autograd/ops/reduce.h"

#include <algorithm>
#include <cmath>

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

using Axes = std::vector<int>;

// One reduction: the function, its reference and its reference gradient.
struct Op {
  std::string name;
  std::function<Tensor(const Tensor&, const Axes&, bool keepdim)> forward;
  std::function<ref::Array(const ref::Array&, const Axes&, bool keepdim)> reference;
  std::function<ref::Array(const ref::Array&, const ref::Array& dy, const Axes&)> backward;
};

struct Set {
  std::string name;
  Shape x;
  Axes axes;
  bool keepdim = false;
  bool channels_last = false;
};

Op with_correction(const std::string& name, double correction) {
  const bool is_var = name.starts_with("var");
  return {name,
          [=](const Tensor& x, const Axes& axes, bool keepdim) {
            return is_var ? var(x, axes, correction, keepdim) : std(x, axes, correction, keepdim);
          },
          [=](const ref::Array& x, const Axes& axes, bool keepdim) {
            return is_var ? ref::var(x, axes, correction, keepdim)
                          : ref::std_(x, axes, correction, keepdim);
          },
          [=](const ref::Array& x, const ref::Array& dy, const Axes& axes) {
            return is_var ? ref::var_backward(x, dy, axes, correction)
                          : ref::std_backward(x, dy, axes, correction);
          }};
}

std::vector<Op> ops() {
  return {{"max", max, ref::max, ref::max_backward},
          {"min", min, ref::min, ref::min_backward},
          {"prod", prod, ref::prod, ref::prod_backward},
          {"norm2", norm2, ref::norm2, ref::norm2_backward},
          {"logsumexp", logsumexp, ref::logsumexp, ref::logsumexp_backward},
          with_correction("var", 1),
          with_correction("var_biased", 0),
          with_correction("std", 1),
          with_correction("std_1.5", 1.5)};
}

OpCase make_case(const Op& op, const Set& set, bool benchmark) {
  const Axes axes = set.axes;
  const bool keepdim = set.keepdim;
  const auto forward = op.forward;
  const auto reference = op.reference;
  const auto backward = op.backward;
  OpCase result;
  result.function = op.name.substr(0, op.name.find('_'));
  result.name = op.name + "_" + set.name;
  std::replace(result.name.begin(), result.name.end(), '.', 'p');
  result.inputs = {{.name = "x", .shape = set.x, .channels_last = set.channels_last}};
  int64_t count = axes.empty() ? set.x.numel() : 1;
  for (const int axis : axes) count *= set.x[axis < 0 ? axis + set.x.rank() : axis];
  if (op.name == "prod") {
    // Factors around 1, so that long products stay within reach of f16.
    result.inputs[0].mean = 1;
    result.inputs[0].std = 1 / std::sqrt(static_cast<double>(count + 1));
  }
  result.forward = [=](std::span<const Tensor> in) { return forward(in[0], axes, keepdim); };
  result.reference = [=](std::span<const ref::Array> in) {
    return reference(in[0], axes, keepdim);
  };
  result.reference_backward = [=](std::span<const ref::Array> in, const ref::Array& dy) {
    return std::vector<ref::Array>{backward(in[0], dy, axes)};
  };
  result.reduction = count;
  // Means and maxima lie among the values, and dy reaches 4.
  result.scale = op.name == "prod" ? 0 : 4;
  result.benchmark = benchmark;
  result.of_shape =
      with_shape(set, &Set::x, [=](const Set& other) { return make_case(op, other, benchmark); });
  result.any_rank = axes.empty() && !set.channels_last;
  return result;
}

std::vector<Set> small_sets() {
  return {
      {"7", {7}, {}},
      {"5x6_all", {5, 6}, {}, true},
      {"5x7_rows", {5, 7}, {0}},
      {"7x5_columns", {7, 5}, {1}},
      {"9x64_columns", {9, 64}, {-1}},
      {"100x48_rows", {100, 48}, {0}},
      {"2x3x4x5_channel", {2, 3, 4, 5}, {0, 2, 3}},
      {"2x3x4x5_channel_nhwc", {2, 3, 4, 5}, {0, 2, 3}, false, true},
      {"2x8x4x5_pixels_nhwc", {2, 8, 4, 5}, {2, 3}, true, true},
      {"2x3x4x8_across", {2, 3, 4, 8}, {1}},
      {"2x16x4x4_across_nhwc", {2, 16, 4, 4}, {1}, false, true},
      {"3x2x4x2x3_alternate", {3, 2, 4, 2, 3}, {0, 2, 4}},
      {"2x1x3x2x2x1x2x3_rank8", {2, 1, 3, 2, 2, 1, 2, 3}, {0, 3, 5, 7}},
      {"3x5x7x16_alternate", {3, 5, 7, 16}, {0, 2}},
      {"3x5x7x16_other_axes", {3, 5, 7, 16}, {1, 3}},
      {"3x16x7x5_rows_nhwc", {3, 16, 7, 5}, {0, 2}, true, true},
      {"90x2x30x8_alternate", {90, 2, 30, 8}, {0, 2}},
      {"3x5000", {3, 5000}, {1}},
      {"5000x3", {5000, 3}, {0}},
      {"4x33x1030", {4, 33, 1030}, {0, 2}},
  };
}

std::vector<Set> large_sets() {
  return {
      {"dim1_large", {256, 128, 56, 56}, {1}},
      {"dim023_large", {256, 128, 56, 56}, {0, 2, 3}},
      {"rows_large", {32768, 4096}, {1}},
      {"dim1_small", {128, 64, 32, 32}, {1}},
      {"dim023_small", {128, 64, 32, 32}, {0, 2, 3}},
      {"dim1_large_channels_last", {256, 128, 56, 56}, {1}, false, true},
      {"dim02_large", {256, 128, 56, 56}, {0, 2}},
      {"dim13_large", {256, 128, 56, 56}, {1, 3}},
  };
}

}  // namespace

std::vector<OpCase> reduce_cases() {
  std::vector<OpCase> cases;
  for (const Op& op : ops()) {
    for (const Set& set : small_sets()) cases.push_back(make_case(op, set, false));
    if (op.name == "max" || op.name == "std") {
      cases.push_back(make_case(op, {"65537x5", {65537, 5}, {1}}, false));
      cases.push_back(make_case(op, {"65x67x7x7_pixels", {65, 67, 7, 7}, {2, 3}}, false));
    }
    if (op.name == "var_biased" || op.name == "std_1.5") continue;
    for (const Set& set : large_sets()) cases.push_back(make_case(op, set, true));
  }
  return cases;
}

}  // namespace gradus
