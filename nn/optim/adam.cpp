#include "nn/optim/adam.h"

#include <cmath>

#include "core/launch.h"

namespace gradus::nn {
namespace {

void check_settings(std::string_view op, const AdamSettings& s) {
  const auto is_beta = [](double value) { return value >= 0 && value < 1; };
  check(is_beta(s.beta1) && is_beta(s.beta2), op, "betas must be 0 or more and below 1, got ",
        s.beta1, " and ", s.beta2);
  check(std::isfinite(s.eps) && s.eps >= 0, op, "eps must be 0 or more, got ", s.eps);
  check(std::isfinite(s.weight_decay) && s.weight_decay >= 0, op,
        "weight_decay must be 0 or more, got ", s.weight_decay);
}

Tensor moment_of(const Tensor& p) {
  TensorOptions options = p.options();
  options.dtype = acc_dtype(p.dtype());
  return Tensor::zeros(p.shape(), options);
}

AdamSettings settings_of(const AdamOptions& o) {
  return {.beta1 = o.betas.first,
          .beta2 = o.betas.second,
          .eps = o.eps,
          .weight_decay = o.weight_decay};
}

AdamSettings settings_of(const AdamWOptions& o) {
  return {.beta1 = o.betas.first,
          .beta2 = o.betas.second,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .decoupled = true};
}

}  // namespace

AdamMoments::AdamMoments(std::string_view op, const AdamSettings& settings,
                         const std::vector<NamedTensor>& parameters, const std::vector<bool>& takes)
    : settings_(settings) {
  check_settings(op, settings);
  for (size_t i = 0; i < parameters.size(); ++i) {
    exp_avg_.push_back(takes[i] ? moment_of(parameters[i].tensor) : Tensor());
    exp_avg_sq_.push_back(takes[i] ? moment_of(parameters[i].tensor) : Tensor());
  }
}

AdamTensor AdamMoments::entry(size_t i, const Tensor& p, const Tensor& grad, int64_t born) const {
  return {.p = p.raw(),
          .dp = grad.raw(),
          .exp_avg = exp_avg_[i].raw(),
          .exp_avg_sq = exp_avg_sq_[i].raw(),
          .born = born};
}

std::vector<NamedTensor> AdamMoments::buffers(const std::vector<NamedTensor>& parameters) const {
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < exp_avg_.size(); ++i) {
    if (!exp_avg_[i].defined()) continue;
    named.push_back({"exp_avg." + parameters[i].name, exp_avg_[i]});
    named.push_back({"exp_avg_sq." + parameters[i].name, exp_avg_sq_[i]});
  }
  return named;
}

std::string AdamMoments::text() const {
  return concat("beta1 ", settings_.beta1, ", beta2 ", settings_.beta2, ", eps ", settings_.eps,
                ", weight_decay ", settings_.weight_decay);
}

void launch_adam(const std::vector<AdamTensor>& tensors, const AdamSettings& settings,
                 const Tensor& lr, const Tensor& step, const Tensor& failed_step) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    std::vector<AdamTensor> own;
    for (const AdamTensor& tensor : tensors) {
      if (tensor.p.dtype == dtype) own.push_back(tensor);
    }
    if (own.empty()) continue;
    launch(AdamStep{.tensors = own,
                    .lr = lr.raw(),
                    .step = step.raw(),
                    .failed_step = failed_step.raw(),
                    .settings = settings});
  }
}

Adam::Adam(std::string_view op, std::vector<NamedTensor> parameters, double lr,
           const AdamSettings& settings)
    : Optimizer(std::move(parameters), lr),
      moments_(op, settings, this->parameters(),
               std::vector<bool>(this->parameters().size(), true)) {}

Adam::Adam(std::vector<NamedTensor> parameters, const AdamOptions& options)
    : Adam("adam", std::move(parameters), options.lr, settings_of(options)) {}

AdamW::AdamW(std::vector<NamedTensor> parameters, const AdamWOptions& options)
    : Adam("adamw", std::move(parameters), options.lr, settings_of(options)) {}

void Adam::update(const std::vector<size_t>& active, const std::vector<Tensor>& grads) {
  std::vector<AdamTensor> tensors;
  for (const size_t i : active) {
    tensors.push_back(moments_.entry(i, parameters()[i].tensor, grads[i], born(i)));
  }
  launch_adam(tensors, moments_.settings(), lr_tensor(), step_counter(), failed_step());
}

}  // namespace gradus::nn
