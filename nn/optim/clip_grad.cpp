#include "nn/optim/clip_grad.h"

#include <algorithm>
#include <cmath>

#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/clip_grad.h"
#include "core/share_memory.h"
#include "nn/match.h"

namespace gradus::nn {
namespace {

GradNorm norm_of(double type) {
  if (type == 1) return GradNorm::one;
  if (type == 2) return GradNorm::two;
  check(std::isinf(type) && type > 0, "clip_grad_norm_", "norm_type must be 1, 2 or infinity, got ",
        type);
  return GradNorm::infinity;
}

// The gradients, dense and each in memory of its own, so that each is scaled once: a view that
// repeats its elements, as sum() leaves it, is replaced by a copy, and so is one that set_grad()
// gave to several parameters. A parameter that is listed twice counts once.
std::vector<Tensor> dense_grads(const std::vector<Tensor>& parameters, std::string_view op) {
  std::vector<Tensor> grads, listed;
  for (Tensor p : parameters) {
    const Tensor grad = p.grad();
    const auto is_p = [&](const Tensor& other) { return is_same(other, p); };
    if (!grad.defined() || std::ranges::any_of(listed, is_p)) continue;
    listed.push_back(p);
    if (!grads.empty()) {
      check(grads.front().device() == grad.device(), op,
            "all gradients must be on one device, got ", grad, " and ", grads.front());
    }
    const bool is_dense = grad.is_contiguous() || grad.is_contiguous(MemoryFormat::channels_last);
    const auto shares = [&](const Tensor& other) {
      return share_memory(*other.storage(), *grad.storage());
    };
    if (!is_dense) {
      p.set_grad(dense(grad));
    } else if (std::ranges::any_of(grads, shares)) {
      p.set_grad(grad.clone());
    }
    grads.push_back(p.grad());
  }
  return grads;
}

std::vector<AnyView> views_of(const std::vector<Tensor>& grads) {
  std::vector<AnyView> views;
  for (const Tensor& grad : grads) views.push_back(grad.raw());
  return views;
}

void bump(const std::vector<Tensor>& grads) {
  for (const Tensor& grad : grads) grad.storage()->bump_version();
}

}  // namespace

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm, double norm_type) {
  constexpr std::string_view op = "clip_grad_norm_";
  check(max_norm >= 0, op, "max_norm must be 0 or more, got ", max_norm);
  const GradNorm kind = norm_of(norm_type);
  check(!parameters.empty(), op, "expected at least one parameter");
  const std::vector<Tensor> grads = dense_grads(parameters, op);
  const Device device = parameters.front().device();
  if (grads.empty()) return Tensor::zeros({}, {.dtype = DType::f64, .device = device});
  const std::vector<AnyView> views = views_of(grads);
  const Tensor norm = Tensor::empty({}, {.dtype = DType::f64, .device = grads.front().device()});
  launch(ClipGradNorm{.grads = views, .norm = norm.raw(), .max_norm = max_norm, .kind = kind});
  bump(grads);
  return norm;
}

void clip_grad_value_(const std::vector<Tensor>& parameters, double clip_value) {
  constexpr std::string_view op = "clip_grad_value_";
  check(clip_value >= 0, op, "clip_value must be 0 or more, got ", clip_value);
  const std::vector<Tensor> grads = dense_grads(parameters, op);
  if (grads.empty()) return;
  const std::vector<AnyView> views = views_of(grads);
  launch(ClipGradValue{.grads = views, .limit = clip_value});
  bump(grads);
}

}  // namespace gradus::nn
