#include "autograd/explain/library.h"

#include "autograd/grad_mode.h"
#include "autograd/ops/batch_norm.h"
#include "autograd/ops/group_norm.h"
#include "autograd/ops/instance_norm.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/local_response_norm.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/softmax.h"

namespace gradus::explain {
namespace {

Tensor leaf(const Tensor& tensor) {
  return tensor.defined() ? tensor.clone().set_requires_grad(true) : Tensor();
}

Tensor copied(const Tensor& tensor) { return tensor.defined() ? tensor.clone() : Tensor(); }

NormTerms library_terms(const Setting& setting, const Inputs& in, const NormStatistics& saved) {
  if (!setting.is_norm() || setting.is_evaluation()) return {};
  switch (setting.layer) {
    case Layer::batch_norm:
      return batch_norm_terms(in.x, in.dy, in.gamma, saved.mean, saved.rstd);
    case Layer::layer_norm:
      return layer_norm_terms(in.x, in.dy, in.gamma, saved.mean, saved.rstd);
    case Layer::rms_norm:
      return rms_norm_terms(in.x, in.dy, in.gamma, saved.rstd);
    default:
      return group_norm_terms(in.x, in.dy, in.gamma, saved.mean, saved.rstd, saved.mean.size(1));
  }
}

}  // namespace

Tensor library_forward(const Setting& setting, const Inputs& in, NormStatistics* saved,
                       NormStatistics* updated) {
  const NormStatistics running{copied(in.running_mean), copied(in.running_var)};
  if (updated != nullptr) *updated = running;
  const double eps = setting.eps;
  switch (setting.layer) {
    case Layer::batch_norm:
      return batch_norm(in.x, in.gamma, in.beta, {running.mean, running.rstd, {}},
                        {.training = setting.training, .eps = eps}, saved);
    case Layer::group_norm:
      return group_norm(in.x, setting.groups, in.gamma, in.beta, eps, saved);
    case Layer::instance_norm:
      return instance_norm(in.x, in.gamma, in.beta, {running.mean, running.rstd},
                           {.training = setting.training, .eps = eps}, saved);
    case Layer::layer_norm:
      return layer_norm(in.x, layout_of(setting, in.x.shape()).per_param, in.gamma, in.beta, eps,
                        saved);
    case Layer::rms_norm:
      return rms_norm(in.x, layout_of(setting, in.x.shape()).per_param, in.gamma, eps, saved);
    case Layer::local_response_norm:
      return local_response_norm(in.x, setting.size, setting.alpha, setting.beta, setting.k);
    case Layer::softmax2d:
      return softmax(in.x, 1);
  }
  fail(ErrorCode::internal, "explain", "no such layer");
}

Library run_library(const Setting& setting, const Inputs& inputs) {
  Library library;
  Inputs leaves = inputs;
  leaves.x = leaf(inputs.x);
  leaves.gamma = leaf(inputs.gamma);
  leaves.beta = leaf(inputs.beta);
  NormStatistics updated;
  const Tensor y = library_forward(setting, leaves, &library.saved, &updated);
  y.backward(inputs.dy);
  library.y = y.detach();
  library.dx = leaves.x.grad();
  if (inputs.gamma.defined()) library.dgamma = leaves.gamma.grad();
  if (inputs.beta.defined()) library.dbeta = leaves.beta.grad();
  library.terms = library_terms(setting, inputs, library.saved);
  if (setting.layer == Layer::batch_norm && setting.training) {
    library.running_mean = updated.mean;
    library.running_var = updated.rstd;
  }
  if (setting.layer == Layer::local_response_norm) {
    library.denom = local_response_norm_denom(inputs.x, setting.size, setting.alpha, setting.k);
  }
  return library;
}

}  // namespace gradus::explain
