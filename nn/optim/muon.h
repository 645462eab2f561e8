// Muon: momentum made orthogonal by Newton-Schulz iterations, for the weight matrices and filters
// inside a network, beside AdamW for all other parameters. Formulas in core/ops/muon.h.
//
//   nn::Muon optimizer(nn::split_for_muon(model), {.lr = 0.02});
#pragma once

#include <array>

#include "nn/optim/adam.h"

namespace gradus::nn {

// How the rate depends on the matrix [rows, cols].
enum class MuonAdjust : uint8_t {
  original,         // sqrt(max(1, rows/cols))
  match_rms_adamw,  // 0.2·sqrt(max(rows, cols)): rates and decays as for AdamW
};

struct MuonOptions {
  double lr = 1e-3;
  double weight_decay = 0.1;  // takes lr·weight_decay of each parameter, beside the gradient
  double momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> ns_coefficients{3.4445, -4.775, 2.0315};
  double eps = 1e-7;  // the least norm that the momentum is divided by
  int ns_steps = 5;
  MuonAdjust adjust = MuonAdjust::original;
};

struct MuonSplit {
  std::vector<NamedTensor> hidden;  // by Muon: rank 2 or more
  std::vector<NamedTensor> others;  // by AdamW
};

// The usual split: Muon takes the weight matrices and filters but the first and the last in the
// order of the network, which meet the input and make the output; AdamW takes these two and all
// biases and gains (rank 0 or 1, or of Stored::acc as a norm's, which may have any rank).
MuonSplit split_for_muon(Module& model);

// https://pytorch.org/docs/stable/generated/torch.optim.Muon.html, which takes matrices only; here
// a parameter of rank 2 or more is the matrix of its first axis and all others, so that a filter
// [out, in, h, w] is [out, in·h·w]. Newton-Schulz runs in f32 (f64 for f64), not in bf16.
class Muon final : public Optimizer {
 public:
  // Throws invalid_argument for a parameter of rank 0 or 1.
  explicit Muon(std::vector<NamedTensor> parameters, const MuonOptions& options = {});
  explicit Muon(std::vector<Tensor> parameters, const MuonOptions& options = {})
      : Muon(number(std::move(parameters)), options) {}
  // Rates and schedules are those of Muon; AdamW's is always adamw.lr/options.lr of them.
  Muon(MuonSplit split, const MuonOptions& options, const AdamWOptions& adamw = {});

  std::string_view name() const override { return "muon"; }
  std::string settings() const override;

 protected:
  void update(const std::vector<size_t>& active, const std::vector<Tensor>& grads) override;
  std::vector<NamedTensor> buffers() const override;

 private:
  bool has_others() const { return hidden_ < parameters().size(); }

  MuonOptions options_;
  size_t hidden_;                         // the first so many parameters are Muon's
  double adamw_lr_;                       // of the others
  std::vector<Tensor> momentum_buffers_;  // like the hidden parameters, acc
  AdamMoments moments_;                   // of the others
};

}  // namespace gradus::nn
