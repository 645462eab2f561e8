// Naive optimizer steps (SGD, Adam, AdamW, Muon) and learning-rate schedules.
#pragma once

#include "tests/support/reference_array.h"

namespace gradus::ref {

struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
};

// In PyTorch's order:
//   g = gradient + weight_decay * w
//   velocity = momentum * velocity + g, or g on the first step (velocity absent)
//   w -= lr * (nesterov ? g + momentum * velocity : velocity)
void sgd_step(Array& w, const Array& gradient, Array& velocity, double lr,
              const SgdOptions& options);

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

struct AdamState {
  Array m, v;  // absent before the first step
  int64_t step = 0;
};

// In PyTorch's order:
//   g = gradient + weight_decay * w          (adam; adamw: w *= 1 - lr * weight_decay instead)
//   m = beta1 * m + (1 - beta1) * g, v = beta2 * v + (1 - beta2) * g^2
//   w -= lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
void adam_step(Array& w, const Array& gradient, AdamState& state, double lr,
               const AdamOptions& options);
void adamw_step(Array& w, const Array& gradient, AdamState& state, double lr,
                const AdamOptions& options);

struct MuonOptions {
  enum class Adjust : uint8_t { original, match_rms_adamw };

  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;  // decoupled
  double eps = 1e-7;          // the least norm that the update is divided by
  int ns_steps = 5;
  double a = 3.4445, b = -4.775, c = 2.0315;
  Adjust adjust = Adjust::original;
};

// X / max(|X|, eps) iterated ns_steps times: A = X X^T, X = a X + (b A + c A^2) X; transposed
// before and after where rows > columns. x [rows, columns].
Array newton_schulz(const Array& x, const MuonOptions& options);

// w [rows, columns]; buffer absent before the first step:
//   buffer = momentum * buffer + gradient
//   u = newton_schulz(nesterov ? gradient + momentum * buffer : buffer)
//   w = w * (1 - lr * weight_decay) - lr * adjusted * u
// adjusted: original sqrt(max(1, rows/columns)), match_rms_adamw 0.2 sqrt(max(rows, columns)).
// Source: the documentation of torch.optim.Muon (PyTorch 2.9 and later). The factor 1 - momentum
// that Keller Jordan's form puts before the gradient cancels in the normalization.
void muon_step(Array& w, const Array& gradient, Array& buffer, double lr,
               const MuonOptions& options);

// Learning rate of step t = 0 .. steps - 1. One-cycle: linear from 0 to lr over the first
// up * steps, then linear to 0 at t = steps.
double one_cycle(double lr, int64_t t, int64_t steps, double up);
// lr/2 * (1 + cos(pi * t / steps)).
double cosine(double lr, int64_t t, int64_t steps);
// lr * factor^floor(t / every).
double step_decay(double lr, int64_t t, int64_t every, double factor);
double constant(double lr, int64_t t);

}  // namespace gradus::ref
