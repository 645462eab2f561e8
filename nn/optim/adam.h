// Adam and AdamW; formulas in core/ops/adam.h.
#pragma once

#include <utility>

#include "core/ops/adam.h"
#include "nn/optim/optimizer.h"

namespace gradus::nn {

struct AdamOptions {
  double lr = 1e-3;
  std::pair<double, double> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.0;  // added to the gradient
};

struct AdamWOptions {
  double lr = 1e-3;
  std::pair<double, double> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;  // takes lr·weight_decay of each parameter, beside the gradient
};

// The moments and the step of Adam for a set of parameters, some of which may be left out.
class AdamMoments {
 public:
  AdamMoments() = default;
  // One pair per parameter that `takes` says yes to; throws invalid_argument naming `op` for
  // settings outside their ranges.
  AdamMoments(std::string_view op, const AdamSettings& settings,
              const std::vector<NamedTensor>& parameters, const std::vector<bool>& takes);

  const AdamSettings& settings() const { return settings_; }
  // What one parameter's launch needs, by its index.
  AdamTensor entry(size_t i, const Tensor& p, const Tensor& grad, int64_t born) const;
  // "exp_avg.0.weight", "exp_avg_sq.0.weight", ...
  std::vector<NamedTensor> buffers(const std::vector<NamedTensor>& parameters) const;
  std::string text() const;  // the settings in one line

 private:
  AdamSettings settings_;
  std::vector<Tensor> exp_avg_, exp_avg_sq_;  // like the parameters, acc; undefined if left out
};

// One launch per dtype among `tensors`.
void launch_adam(const std::vector<AdamTensor>& tensors, const AdamSettings& settings,
                 const Tensor& lr, const Tensor& step, const Tensor& failed_step);

// https://pytorch.org/docs/stable/generated/torch.optim.Adam.html (without amsgrad).
class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<NamedTensor> parameters, const AdamOptions& options = {});
  explicit Adam(std::vector<Tensor> parameters, const AdamOptions& options = {})
      : Adam(number(std::move(parameters)), options) {}

  std::string_view name() const override { return "adam"; }
  std::string settings() const override { return moments_.text(); }

 protected:
  Adam(std::string_view op, std::vector<NamedTensor> parameters, double lr,
       const AdamSettings& settings);
  void update(const std::vector<size_t>& active, const std::vector<Tensor>& grads) override;
  std::vector<NamedTensor> buffers() const override { return moments_.buffers(parameters()); }

 private:
  AdamMoments moments_;
};

// https://pytorch.org/docs/stable/generated/torch.optim.AdamW.html (without amsgrad).
class AdamW final : public Adam {
 public:
  explicit AdamW(std::vector<NamedTensor> parameters, const AdamWOptions& options = {});
  explicit AdamW(std::vector<Tensor> parameters, const AdamWOptions& options = {})
      : AdamW(number(std::move(parameters)), options) {}

  std::string_view name() const override { return "adamw"; }
};

}  // namespace gradus::nn
