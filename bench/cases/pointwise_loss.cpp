#include "autograd/ops/pointwise_loss.h"

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

constexpr double kBeta = 0.5;

struct Variant {
  std::string loss;  // mse, l1, smooth_l1 or bce
  std::string name;
  Shape shape;
  Reduction reduction = Reduction::mean;
  Shape weight = {};      // of bce only; rank 0: not given
  Shape pos_weight = {};  // the same
  bool channels_last = false;
  bool benchmark = false;
};

Tensor call(const Variant& v, std::span<const Tensor> in) {
  if (v.loss == "mse") return mse_loss(in[0], in[1], v.reduction);
  if (v.loss == "l1") return l1_loss(in[0], in[1], v.reduction);
  if (v.loss == "smooth_l1") return smooth_l1_loss(in[0], in[1], v.reduction, kBeta);
  const bool has_weight = v.weight.rank() > 0;
  return binary_cross_entropy_with_logits(
      in[0], in[1],
      {.weight = has_weight ? in[2] : Tensor(),
       .pos_weight = v.pos_weight.rank() > 0 ? in[has_weight ? 3 : 2] : Tensor(),
       .reduction = v.reduction});
}

// The weights among the arrays; absent ones are empty.
struct Weights {
  ref::Array weight, pos_weight;
  Weights(const Variant& v, std::span<const ref::Array> in) {
    const bool has_weight = v.weight.rank() > 0;
    if (has_weight) weight = in[2];
    if (v.pos_weight.rank() > 0) pos_weight = in[has_weight ? 3 : 2];
  }
};

ref::Array forward(const Variant& v, std::span<const ref::Array> in) {
  const auto reduction = static_cast<ref::Reduction>(v.reduction);
  if (v.loss == "mse") return ref::mse(in[0], in[1], reduction);
  if (v.loss == "l1") return ref::l1(in[0], in[1], reduction);
  if (v.loss == "smooth_l1") return ref::smooth_l1(in[0], in[1], kBeta, reduction);
  const Weights w(v, in);
  return ref::bce_with_logits(in[0], in[1], w.weight, w.pos_weight, reduction);
}

// d x of the loss of (x, t).
ref::Array slope(const Variant& v, const ref::Array& x, const ref::Array& t, const Weights& w,
                 const ref::Array& dy) {
  const auto reduction = static_cast<ref::Reduction>(v.reduction);
  if (v.loss == "mse") return ref::mse_backward(x, t, reduction, dy);
  if (v.loss == "l1") return ref::l1_backward(x, t, reduction, dy);
  if (v.loss == "smooth_l1") return ref::smooth_l1_backward(x, t, kBeta, reduction, dy);
  return ref::bce_with_logits_backward(x, t, w.weight, w.pos_weight, reduction, dy);
}

// d t. Three of the losses are symmetric; the fourth is linear in t, so that its slope is the
// difference of the losses at 1 and 0.
ref::Array target_slope(const Variant& v, const ref::Array& x, const ref::Array& t,
                        const Weights& w, const ref::Array& dy) {
  if (v.loss != "bce") return slope(v, t, x, w, dy);
  const auto at = [&](double target) {
    return ref::bce_with_logits(x, ref::full(x.shape, target), w.weight, w.pos_weight,
                                ref::Reduction::none);
  };
  const ref::Array one = at(1), zero = at(0);
  ref::Array dt = ref::zeros(x.shape);
  for (int64_t i = 0; i < x.numel(); ++i) {
    ref::Real d = dy[v.reduction == Reduction::none ? i : 0];
    if (v.reduction == Reduction::mean) d /= static_cast<ref::Real>(x.numel());
    dt[i] = static_cast<double>(d * (ref::Real(one[i]) - ref::Real(zero[i])));
  }
  return dt;
}

OpCase loss_case(const Variant& v) {
  OpCase result;
  result.name = v.loss + "_" + v.name;
  result.inputs = {{.name = "x", .shape = v.shape, .std = 2, .channels_last = v.channels_last},
                   {.name = "t", .shape = v.shape, .mean = 0.5, .std = 0.25}};
  if (v.weight.rank() > 0) {
    result.inputs.push_back(
        {.name = "weight", .shape = v.weight, .kind = CaseInput::Kind::state, .positive = true});
  }
  if (v.pos_weight.rank() > 0) {
    result.inputs.push_back({.name = "pos_weight",
                             .shape = v.pos_weight,
                             .kind = CaseInput::Kind::state,
                             .positive = true});
  }
  result.forward = [v](std::span<const Tensor> in) { return call(v, in); };
  result.reference = [v](std::span<const ref::Array> in) { return forward(v, in); };
  result.reference_backward = [v](std::span<const ref::Array> in, const ref::Array& dy) {
    const Weights w(v, in);
    return std::vector<ref::Array>{slope(v, in[0], in[1], w, dy),
                                   target_slope(v, in[0], in[1], w, dy)};
  };
  result.reduction = v.reduction == Reduction::none ? 1 : v.shape.numel();
  result.benchmark = v.benchmark;
  result.function = v.loss == "bce" ? "binary_cross_entropy_with_logits" : v.loss + "_loss";
  result.of_shape = with_shape(v, &Variant::shape, loss_case);
  result.any_rank = v.weight.rank() == 0 && v.pos_weight.rank() == 0 && !v.channels_last;
  return result;
}

}  // namespace

std::vector<OpCase> pointwise_loss_cases() {
  std::vector<OpCase> cases;
  for (const std::string loss : {"mse", "l1", "smooth_l1", "bce"}) {
    const Variant variants[] = {
        {.loss = loss, .name = "mean", .shape = {5, 7}},
        {.loss = loss, .name = "sum", .shape = {5, 7}, .reduction = Reduction::sum},
        {.loss = loss, .name = "none", .shape = {5, 7}, .reduction = Reduction::none},
        {.loss = loss, .name = "one", .shape = {1}},
        {.loss = loss, .name = "scalar", .shape = {}, .reduction = Reduction::sum},
        {.loss = loss, .name = "three_axes", .shape = {2, 3, 5}},
        {.loss = loss, .name = "five_axes", .shape = {2, 1, 3, 2, 3}, .reduction = Reduction::none},
        {.loss = loss, .name = "mixed_formats", .shape = {2, 3, 4, 5}, .channels_last = true},
        {.loss = loss,
         .name = "mixed_formats_none",
         .shape = {2, 3, 4, 5},
         .reduction = Reduction::none,
         .channels_last = true},
        {.loss = loss, .name = "many", .shape = {70001}},
        {.loss = loss, .name = "many_none", .shape = {40003}, .reduction = Reduction::none},
        {.loss = loss, .name = "many_rows", .shape = {70000, 2}, .reduction = Reduction::sum},
        {.loss = loss, .name = "large", .shape = {256, 128, 56, 56}, .benchmark = true},
        {.loss = loss, .name = "small", .shape = {128, 64, 32, 32}, .benchmark = true},
    };
    for (const Variant& variant : variants) cases.push_back(loss_case(variant));
  }
  const Variant weighted[] = {
      {.loss = "bce", .name = "weight", .shape = {5, 7}, .weight = {5, 7}},
      {.loss = "bce", .name = "pos_weight", .shape = {5, 7}, .pos_weight = {7}},
      {.loss = "bce", .name = "both", .shape = {2, 3, 5}, .weight = {5}, .pos_weight = {3, 1}},
      {.loss = "bce",
       .name = "both_none",
       .shape = {4, 3, 2, 2},
       .reduction = Reduction::none,
       .weight = {4, 1, 1, 1},
       .pos_weight = {3, 1, 1},
       .channels_last = true},
      {.loss = "bce",
       .name = "both_flat",
       .shape = {513, 67},
       .reduction = Reduction::none,
       .weight = {513, 67},
       .pos_weight = {1}},
  };
  for (const Variant& variant : weighted) cases.push_back(loss_case(variant));
  return cases;
}

}  // namespace gradus
