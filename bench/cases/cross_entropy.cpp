#include "autograd/ops/cross_entropy.h"

#include <algorithm>

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

struct Variant {
  std::string name;
  Shape shape;  // [n, c, ...]
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0.0;
  int64_t ignore_index = -100;
  bool weighted = false;
  bool channels_last = false;
  double mean = 0.0;
  double std = 2.0;
};

// [n, c, s...] as [n·s, c], the order of rows in which the labels are stored, and back.
ref::Array to_rows(const ref::Array& x) {
  const int64_t n = x.shape[0], c = x.shape[1], s = x.numel() / std::max<int64_t>(n * c, 1);
  ref::Array rows = ref::zeros({n * s, c});
  for (int64_t row = 0; row < n * s; ++row) {
    for (int64_t k = 0; k < c; ++k) rows.at(row, k) = x[(row / s * c + k) * s + row % s];
  }
  return rows;
}

ref::Array from_rows(const ref::Array& rows, const Shape& shape) {
  const int64_t c = shape[1], s = shape.numel() / (shape[0] * c);
  ref::Array x = ref::zeros(shape);
  for (int64_t row = 0; row < rows.shape[0]; ++row) {
    for (int64_t k = 0; k < c; ++k) x[(row / s * c + k) * s + row % s] = rows.at(row, k);
  }
  return x;
}

Shape flat(const ref::Array& array) { return {array.numel()}; }

OpCase cross_entropy_case(const Variant& v) {
  Shape label_shape{v.shape[0]};
  for (int axis = 2; axis < v.shape.rank(); ++axis) label_shape.append(v.shape[axis]);
  OpCase result;
  result.name = v.name;
  result.inputs = {{.name = "logits",
                    .shape = v.shape,
                    .mean = v.mean,
                    .std = v.std,
                    .channels_last = v.channels_last},
                   {.name = "labels",
                    .shape = label_shape,
                    .kind = CaseInput::Kind::label,
                    .classes = v.shape[1]}};
  if (v.weighted) {
    result.inputs.push_back({.name = "weight",
                             .shape = {v.shape[1]},
                             .kind = CaseInput::Kind::state,
                             .positive = true});
  }
  result.forward = [v](std::span<const Tensor> in) {
    return cross_entropy(in[0], in[1],
                         {.weight = v.weighted ? in[2] : Tensor(),
                          .reduction = v.reduction,
                          .label_smoothing = v.label_smoothing,
                          .ignore_index = v.ignore_index});
  };
  const auto options = [v](std::span<const ref::Array> in) {
    return ref::CrossEntropyOptions{.reduction = static_cast<ref::Reduction>(v.reduction),
                                    .label_smoothing = v.label_smoothing,
                                    .ignore_index = v.ignore_index,
                                    .weight = v.weighted ? in[2] : ref::Array()};
  };
  result.reference = [v, options, label_shape](std::span<const ref::Array> in) {
    ref::Array loss = ref::cross_entropy(to_rows(in[0]), {flat(in[1]), in[1].data}, options(in));
    if (v.reduction == Reduction::none) loss.shape = label_shape;
    return loss;
  };
  result.reference_backward = [v, options](std::span<const ref::Array> in, const ref::Array& dy) {
    const ref::Array labels{flat(in[1]), in[1].data};
    const ref::Array row_dy = v.reduction == Reduction::none ? ref::Array{flat(dy), dy.data} : dy;
    const ref::Array dx = ref::cross_entropy_backward(to_rows(in[0]), labels, row_dy, options(in));
    return std::vector<ref::Array>{from_rows(dx, v.shape)};
  };
  result.reduction = std::max(v.shape[1], v.shape.numel() / v.shape[1]);
  result.of_shape = with_shape(v, &Variant::shape, cross_entropy_case);
  return result;
}

OpCase benchmark_case(std::string name, const Shape& shape) {
  OpCase result = cross_entropy_case({.name = std::move(name), .shape = shape});
  result.benchmark = true;
  return result;
}

}  // namespace

std::vector<OpCase> cross_entropy_cases() {
  static_assert(static_cast<int>(Reduction::mean) == static_cast<int>(ref::Reduction::mean));
  const Variant variants[] = {
      {.name = "mean", .shape = {5, 4}},
      {.name = "sum", .shape = {5, 4}, .reduction = Reduction::sum},
      {.name = "none", .shape = {5, 4}, .reduction = Reduction::none},
      {.name = "smoothed", .shape = {6, 3}, .label_smoothing = 0.1},
      {.name = "ignored", .shape = {9, 4}, .ignore_index = 2},
      {.name = "weighted", .shape = {7, 4}, .weighted = true},
      {.name = "everything",
       .shape = {9, 4},
       .label_smoothing = 0.2,
       .ignore_index = 2,
       .weighted = true},
      {.name = "everything_none",
       .shape = {9, 5},
       .reduction = Reduction::none,
       .label_smoothing = 0.2,
       .ignore_index = 0,
       .weighted = true},
      {.name = "two_classes", .shape = {3, 2}},
      {.name = "sixteen_classes", .shape = {70, 16}},
      {.name = "seventeen_classes", .shape = {70, 17}},
      {.name = "many_classes", .shape = {5, 301}, .label_smoothing = 0.1},
      {.name = "odd_rows",
       .shape = {70, 301},
       .label_smoothing = 0.1,
       .ignore_index = 7,
       .weighted = true},
      {.name = "even_rows", .shape = {70, 304}},
      {.name = "long_rows", .shape = {3, 8203}},
      {.name = "long_rows_smoothed", .shape = {2, 8203}, .label_smoothing = 0.1, .weighted = true},
      {.name = "many_rows", .shape = {1300, 10}},
      {.name = "three_axes", .shape = {2, 5, 7}, .label_smoothing = 0.1, .weighted = true},
      {.name = "pixels", .shape = {2, 3, 5, 7}, .ignore_index = 1},
      {.name = "pixels_none", .shape = {2, 3, 4, 5}, .reduction = Reduction::none},
      {.name = "pixels_channels_last",
       .shape = {2, 3, 5, 7},
       .weighted = true,
       .channels_last = true},
      {.name = "many_pixels", .shape = {2, 4, 31, 33}},
      {.name = "far_from_zero", .shape = {6, 5}, .mean = 1000.0},
      {.name = "wide", .shape = {6, 5}, .std = 20.0},
  };
  std::vector<OpCase> cases;
  for (const Variant& variant : variants) cases.push_back(cross_entropy_case(variant));
  cases.push_back(benchmark_case("128x10", {128, 10}));
  cases.push_back(benchmark_case("512x10", {512, 10}));
  cases.push_back(benchmark_case("64x1000", {64, 1000}));
  cases.push_back(benchmark_case("256x1000", {256, 1000}));
  cases.push_back(benchmark_case("32768x1000", {32768, 1000}));
  cases.push_back(benchmark_case("4096x50257", {4096, 50257}));
  cases.push_back(benchmark_case("65536x10", {65536, 10}));
  cases.push_back(benchmark_case("8388608x10", {8388608, 10}));
  cases.push_back(benchmark_case("8x21x512x512", {8, 21, 512, 512}));
  return cases;
}

}  // namespace gradus
