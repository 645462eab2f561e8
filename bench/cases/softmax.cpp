#include "autograd/ops/softmax.h"

#include <algorithm>
#include <cmath>

#include "bench/cases/op_case.h"
#include "tests/support/reference_softmax.h"

namespace gradus {
namespace {

struct Variant {
  std::string name;
  Shape shape;
  int axis = -1;
  bool channels_last = false;
  double mean = 0.0;
  double std = 1.5;
};

// Σ |dy·y|·y for softmax, |Σ dy|·|y|·exp(y) for log_softmax: what a relative error of y is
// multiplied with in dx.
double largest_stored_term(const ref::Array& y, const ref::Array& dy, int64_t c, int64_t inner,
                           bool log) {
  double largest = 0;
  for (int64_t set = 0; set < y.numel() / c; ++set) {
    const int64_t first = set / inner * c * inner + set % inner;
    double total = 0, factor = 0;
    for (int64_t at = first; at < first + c * inner; at += inner) {
      total += log ? dy[at] : std::abs(dy[at] * y[at]);
      factor = std::max(factor, log ? -y[at] * std::exp(y[at]) : y[at]);
    }
    largest = std::max(largest, std::abs(total) * factor);
  }
  return largest;
}

OpCase softmax_case(const Variant& v, bool log) {
  OpCase result;
  result.name = log ? "log_" + v.name : v.name;
  result.function = log ? "log_softmax" : "softmax";
  result.inputs = {{.name = "x",
                    .shape = v.shape,
                    .mean = v.mean,
                    .std = v.std,
                    .channels_last = v.channels_last}};
  const int axis = v.axis;
  result.forward = [axis, log](std::span<const Tensor> in) {
    return log ? log_softmax(in[0], axis) : softmax(in[0], axis);
  };
  result.reference = [axis, log](std::span<const ref::Array> in) {
    return log ? ref::log_softmax(in[0], axis) : ref::softmax(in[0], axis);
  };
  result.reference_backward = [axis, log](std::span<const ref::Array> in, const ref::Array& dy) {
    return std::vector<ref::Array>{log ? ref::log_softmax_backward(in[0], axis, dy)
                                       : ref::softmax_backward(in[0], axis, dy)};
  };
  const int place = axis < 0 ? axis + v.shape.rank() : axis;
  int64_t inner = 1;
  for (int i = place + 1; i < v.shape.rank(); ++i) inner *= v.shape[i];
  result.reduction = v.shape[place];
  result.largest_stored_term = [c = v.shape[place], inner, log](const ref::Array& y,
                                                                const ref::Array& dy) {
    return largest_stored_term(y, dy, c, inner, log);
  };
  result.of_shape = with_shape(v, &Variant::shape,
                               [log](const Variant& other) { return softmax_case(other, log); });
  result.any_rank = axis == -1 && !v.channels_last;
  return result;
}

void add_benchmarks(std::vector<OpCase>& cases) {
  const auto add = [&cases](const Variant& variant, bool log) {
    cases.push_back(softmax_case(variant, log));
    cases.back().benchmark = true;
  };
  for (const bool channels_last : {false, true}) {
    const std::string format = channels_last ? "_channels_last" : "_nchw";
    for (const bool log : {false, true}) {
      add({"channels" + format + "_large", {256, 128, 56, 56}, 1, channels_last}, log);
      add({"channels" + format + "_small", {128, 64, 32, 32}, 1, channels_last}, log);
      add({"channels" + format + "_7x7", {256, 2048, 7, 7}, 1, channels_last}, log);
    }
  }
  for (const bool log : {false, true}) {
    add({.name = "rows_large", .shape = {32768, 4096}}, log);
    add({.name = "rows_small", .shape = {8192, 1024}}, log);
  }
  add({.name = "rows_of_10", .shape = {8388608, 10}}, true);
  add({.name = "rows_of_64", .shape = {2097152, 64}}, false);
  add({.name = "rows_of_32000", .shape = {4096, 32000}}, false);
  add({.name = "rows_of_131072", .shape = {1024, 131072}}, false);
  add({.name = "columns_of_65536", .shape = {65536, 1024}, .axis = 0}, false);
  add({.name = "columns_of_1048576", .shape = {1048576, 64}, .axis = 0}, false);
}

}  // namespace

std::vector<OpCase> softmax_cases() {
  const Variant variants[] = {
      // Rows.
      {.name = "tiny", .shape = {3, 2}},
      {.name = "one_axis", .shape = {7}, .axis = 0},
      {.name = "rows_4", .shape = {9, 4}},
      {.name = "rows_10", .shape = {130, 10}},
      {.name = "rows_16", .shape = {67, 16}},
      {.name = "rows_17", .shape = {11, 17}},
      {.name = "rows_33", .shape = {5, 33}},
      {.name = "rows_64", .shape = {9, 64}},
      {.name = "rows_300", .shape = {3, 300}},
      {.name = "rows_1024", .shape = {3, 1024}},
      {.name = "rows_1031", .shape = {2, 1031}},
      {.name = "rows_4096", .shape = {2, 4096}},
      {.name = "rows_9001", .shape = {2, 9001}},
      {.name = "rows_40000", .shape = {2, 40000}},
      {.name = "rows_70001", .shape = {1, 70001}},
      // Sets side by side.
      {.name = "channels", .shape = {2, 5, 3, 4}, .axis = 1},
      {.name = "channels_aligned", .shape = {2, 24, 8, 8}, .axis = -3},
      {.name = "channels_three", .shape = {3, 3, 9, 11}, .axis = 1},
      {.name = "channels_64", .shape = {2, 64, 4, 12}, .axis = 1},
      {.name = "channels_128_odd", .shape = {2, 128, 7, 7}, .axis = 1},
      {.name = "channels_200", .shape = {1, 200, 4, 16}, .axis = 1},
      {.name = "channels_600", .shape = {1, 600, 2, 16}, .axis = 1},
      {.name = "channels_2500", .shape = {1, 2500, 1, 24}, .axis = 1},
      {.name = "channels_2100_odd", .shape = {2, 2100, 3}, .axis = 1},
      {.name = "channels_16", .shape = {3, 16, 2, 12}, .axis = 1},
      {.name = "channels_100", .shape = {1, 100, 8, 9}, .axis = 1},
      {.name = "channels_512", .shape = {2, 512, 2, 20}, .axis = 1},
      {.name = "columns", .shape = {37, 40}, .axis = 0},
      {.name = "columns_narrow", .shape = {4, 50, 2}, .axis = 1},
      {.name = "columns_narrow_many", .shape = {30, 4, 7}, .axis = 1},
      {.name = "height", .shape = {2, 3, 6, 5}, .axis = 2},
      {.name = "batch", .shape = {5, 2, 3, 3}, .axis = 0},
      {.name = "eight_axes", .shape = {2, 1, 2, 3, 2, 1, 2, 2}, .axis = 3},
      // Stored as NHWC.
      {.name = "channels_last", .shape = {2, 19, 5, 3}, .axis = 1, .channels_last = true},
      {.name = "channels_last_width", .shape = {2, 5, 3, 7}, .axis = 3, .channels_last = true},
      {.name = "channels_last_batch", .shape = {4, 5, 3, 2}, .axis = 0, .channels_last = true},
      // Values.
      {.name = "far_from_zero", .shape = {6, 5}, .mean = 1000.0},
      {.name = "wide", .shape = {4, 3, 6}, .axis = 1, .std = 20.0},
  };
  std::vector<OpCase> cases;
  for (const Variant& variant : variants) {
    for (const bool log : {false, true}) cases.push_back(softmax_case(variant, log));
  }
  add_benchmarks(cases);
  return cases;
}

}  // namespace gradus
