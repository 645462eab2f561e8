#include "nn/optim/sgd.h"

#include <cmath>

#include "core/launch.h"
#include "core/ops/sgd.h"

namespace gradus::nn {
namespace {

void check_options(const SGDOptions& o) {
  const auto is_number = [](double value) { return std::isfinite(value) && value >= 0; };
  check(is_number(o.momentum), "sgd", "momentum must be 0 or more, got ", o.momentum);
  check(std::isfinite(o.dampening), "sgd", "dampening must be finite, got ", o.dampening);
  check(is_number(o.weight_decay), "sgd", "weight_decay must be 0 or more, got ", o.weight_decay);
  check(!o.nesterov || (o.momentum > 0 && o.dampening == 0), "sgd",
        "nesterov needs momentum above 0 and dampening 0, got ", o.momentum, " and ", o.dampening);
}

Tensor momentum_buffer(const Tensor& p) {
  TensorOptions options = p.options();
  options.dtype = acc_dtype(p.dtype());
  return Tensor::zeros(p.shape(), options);
}

}  // namespace

SGD::SGD(std::vector<NamedTensor> parameters, const SGDOptions& options)
    : Optimizer(std::move(parameters), options.lr), options_(options) {
  check_options(options);
  if (options.momentum == 0) return;
  for (const NamedTensor& p : this->parameters()) {
    momentum_buffers_.push_back(momentum_buffer(p.tensor));
  }
}

std::string SGD::settings() const {
  return concat("momentum ", options_.momentum, ", dampening ", options_.dampening,
                ", weight_decay ", options_.weight_decay, ", nesterov ", options_.nesterov);
}

void SGD::update(const std::vector<size_t>& active, const std::vector<Tensor>& grads) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    std::vector<SgdTensor> tensors;
    for (const size_t i : active) {
      const Tensor& p = parameters()[i].tensor;
      if (p.dtype() != dtype) continue;
      tensors.push_back({.p = p.raw(),
                         .dp = grads[i].raw(),
                         .buf = momentum_buffers_.empty() ? AnyView() : momentum_buffers_[i].raw(),
                         .born = born(i)});
    }
    if (tensors.empty()) continue;
    launch(SgdStep{.tensors = tensors,
                   .lr = lr_tensor().raw(),
                   .step = step_counter().raw(),
                   .failed_step = failed_step().raw(),
                   .momentum = options_.momentum,
                   .dampening = options_.dampening,
                   .weight_decay = options_.weight_decay,
                   .nesterov = options_.nesterov});
  }
}

std::vector<NamedTensor> SGD::buffers() const {
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < momentum_buffers_.size(); ++i) {
    named.push_back({"momentum_buffer." + parameters()[i].name, momentum_buffers_[i]});
  }
  return named;
}

}  // namespace gradus::nn
