// What the cases of the norms with parameters per channel share: their inputs.
#pragma once

#include "bench/cases/op_case.h"

namespace gradus {

// x, with `affine` gamma and beta, and with `running` the statistics that evaluation takes.
inline std::vector<CaseInput> channel_norm_inputs(CaseInput x, bool affine, bool running = false) {
  const Shape per_channel{x.shape[1]};
  std::vector<CaseInput> inputs{std::move(x)};
  const auto add = [&](const char* name, CaseInput::Kind kind, double mean, bool positive) {
    inputs.push_back(
        {.name = name, .shape = per_channel, .kind = kind, .mean = mean, .positive = positive});
  };
  if (affine) {
    add("gamma", CaseInput::Kind::parameter, 1.0, false);
    add("beta", CaseInput::Kind::parameter, 0.0, false);
  }
  if (running) {
    add("running_mean", CaseInput::Kind::state, 0.0, false);
    add("running_var", CaseInput::Kind::state, 0.0, true);
  }
  return inputs;
}

// The inputs of a call by name, whichever container holds them.
template <class T>
struct ChannelNormInputs {
  T gamma, beta;                // empty if not given
  T running_mean, running_var;  // the same

  ChannelNormInputs(std::span<const T> in, bool affine, bool running = false) {
    if (affine) gamma = in[1], beta = in[2];
    if (running) running_mean = in[in.size() - 2], running_var = in[in.size() - 1];
  }
};

// dx, and with `affine` dgamma and dbeta.
template <class Gradients>
std::vector<ref::Array> channel_norm_gradients(const Gradients& g, bool affine) {
  std::vector<ref::Array> grads{g.dx};
  if (affine) grads.insert(grads.end(), {g.dgamma, g.dbeta});
  return grads;
}

}  // namespace gradus
