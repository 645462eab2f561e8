#include "autograd/ops/nll_loss.h"

#include <algorithm>

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

struct Variant {
  std::string name;
  Shape shape;  // [n, c, ...]
  Reduction reduction = Reduction::mean;
  int64_t ignore_index = -100;
  bool weighted = false;
  bool channels_last = false;
  bool benchmark = false;
};

OpCase nll_case(const Variant& v) {
  Shape label_shape{v.shape[0]};
  for (int axis = 2; axis < v.shape.rank(); ++axis) label_shape.append(v.shape[axis]);
  OpCase result;
  result.name = v.name;
  result.inputs = {
      {.name = "log_probs", .shape = v.shape, .mean = -2, .channels_last = v.channels_last},
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
    return nll_loss(in[0], in[1],
                    {.weight = v.weighted ? in[2] : Tensor(),
                     .reduction = v.reduction,
                     .ignore_index = v.ignore_index});
  };
  const auto reduction = static_cast<ref::Reduction>(v.reduction);
  result.reference = [v, reduction](std::span<const ref::Array> in) {
    return ref::nll(in[0], in[1], v.weighted ? in[2] : ref::Array(), v.ignore_index, reduction);
  };
  result.reference_backward = [v, reduction](std::span<const ref::Array> in, const ref::Array& dy) {
    return std::vector<ref::Array>{ref::nll_backward(
        in[0], in[1], v.weighted ? in[2] : ref::Array(), v.ignore_index, reduction, dy)};
  };
  result.reduction = v.shape.numel() / v.shape[1];
  result.benchmark = v.benchmark;
  result.of_shape = with_shape(v, &Variant::shape, nll_case);
  return result;
}

}  // namespace

std::vector<OpCase> nll_loss_cases() {
  const Variant variants[] = {
      {.name = "mean", .shape = {5, 4}},
      {.name = "sum", .shape = {5, 4}, .reduction = Reduction::sum},
      {.name = "none", .shape = {5, 4}, .reduction = Reduction::none},
      {.name = "ignored", .shape = {9, 4}, .ignore_index = 2},
      {.name = "weighted", .shape = {7, 4}, .weighted = true},
      {.name = "everything", .shape = {9, 4}, .ignore_index = 2, .weighted = true},
      {.name = "everything_none",
       .shape = {9, 5},
       .reduction = Reduction::none,
       .ignore_index = 0,
       .weighted = true},
      {.name = "one_class", .shape = {3, 1}},
      {.name = "many_classes", .shape = {5, 301}},
      {.name = "many_rows", .shape = {3001, 3}, .weighted = true},
      {.name = "three_axes", .shape = {2, 5, 7}, .weighted = true},
      {.name = "pixels", .shape = {2, 3, 5, 7}, .ignore_index = 1},
      {.name = "pixels_none", .shape = {2, 3, 4, 5}, .reduction = Reduction::none},
      {.name = "pixels_channels_last",
       .shape = {2, 3, 5, 7},
       .weighted = true,
       .channels_last = true},
      {.name = "many_pixels", .shape = {2, 4, 31, 33}},
      {.name = "32768x1000", .shape = {32768, 1000}, .benchmark = true},
      {.name = "8x21x512x512", .shape = {8, 21, 512, 512}, .benchmark = true},
      {.name = "128x10", .shape = {128, 10}, .benchmark = true},
  };
  std::vector<OpCase> cases;
  for (const Variant& variant : variants) cases.push_back(nll_case(variant));
  return cases;
}

}  // namespace gradus
