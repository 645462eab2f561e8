// Adam, AdamW and Muon.
#include <algorithm>
#include <cmath>

#include "tests/support/reference_optim.h"

namespace gradus::ref {
namespace {

using Matrix = std::vector<Real>;  // [rows, columns], row-major

Matrix transposed(const Matrix& x, int64_t rows, int64_t columns) {
  Matrix out(x.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) out[j * rows + i] = x[i * columns + j];
  }
  return out;
}

// a [rows, inner] times b [inner, columns].
Matrix product(const Matrix& a, const Matrix& b, int64_t rows, int64_t inner, int64_t columns) {
  Matrix out(static_cast<size_t>(rows * columns), Real(0));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < inner; ++k) {
      for (int64_t j = 0; j < columns; ++j) {
        out[i * columns + j] += a[i * inner + k] * b[k * columns + j];
      }
    }
  }
  return out;
}

// decoupled: the decay shrinks w and stays out of the moments (AdamW).
void adam(Array& w, const Array& gradient, AdamState& state, double lr, const AdamOptions& o,
          bool decoupled) {
  require(w.shape == gradient.shape, "adam: the gradient must have the shape of w");
  if (state.step == 0) state.m = state.v = zeros(w.shape);
  state.step += 1;
  const Real beta1 = o.beta1, beta2 = o.beta2, decay = o.weight_decay;
  const Real correction1 = 1 - std::pow(beta1, Real(state.step));
  const Real correction2 = 1 - std::pow(beta2, Real(state.step));
  for (int64_t i = 0; i < w.numel(); ++i) {
    const Real kept = decoupled ? w[i] * (1 - Real(lr) * decay) : Real(w[i]);
    const Real g = decoupled ? Real(gradient[i]) : gradient[i] + decay * w[i];
    const Real m = beta1 * state.m[i] + (1 - beta1) * g;
    const Real v = beta2 * state.v[i] + (1 - beta2) * g * g;
    const Real step = m / correction1 / (std::sqrt(v / correction2) + Real(o.eps));
    state.m[i] = static_cast<double>(m);
    state.v[i] = static_cast<double>(v);
    w[i] = static_cast<double>(kept - Real(lr) * step);
  }
}

}  // namespace

void adam_step(Array& w, const Array& gradient, AdamState& state, double lr,
               const AdamOptions& options) {
  adam(w, gradient, state, lr, options, false);
}

void adamw_step(Array& w, const Array& gradient, AdamState& state, double lr,
                const AdamOptions& options) {
  adam(w, gradient, state, lr, options, true);
}

Array newton_schulz(const Array& x, const MuonOptions& o) {
  require(x.shape.rank() == 2, "muon: a matrix is expected");
  const bool tall = x.shape[0] > x.shape[1];
  const int64_t rows = std::min(x.shape[0], x.shape[1]);
  const int64_t columns = std::max(x.shape[0], x.shape[1]);
  Matrix now(x.data.begin(), x.data.end());
  if (tall) now = transposed(now, x.shape[0], x.shape[1]);

  Real squares = 0;
  for (const Real value : now) squares += value * value;
  for (Real& value : now) value /= std::max(std::sqrt(squares), Real(o.eps));

  for (int step = 0; step < o.ns_steps; ++step) {
    const Matrix gram = product(now, transposed(now, rows, columns), rows, columns, rows);
    Matrix polynomial = product(gram, gram, rows, rows, rows);
    for (size_t i = 0; i < gram.size(); ++i) {
      polynomial[i] = Real(o.b) * gram[i] + Real(o.c) * polynomial[i];
    }
    const Matrix change = product(polynomial, now, rows, rows, columns);
    for (size_t i = 0; i < now.size(); ++i) now[i] = Real(o.a) * now[i] + change[i];
  }
  if (tall) now = transposed(now, rows, columns);
  Array out = x;
  for (size_t i = 0; i < now.size(); ++i) out.data[i] = static_cast<double>(now[i]);
  return out;
}

void muon_step(Array& w, const Array& gradient, Array& buffer, double lr, const MuonOptions& o) {
  require(w.shape == gradient.shape && w.shape.rank() == 2, "muon: w and gradient are matrices");
  if (buffer.empty()) buffer = zeros(w.shape);
  Array direction = gradient;
  for (int64_t i = 0; i < w.numel(); ++i) {
    const Real kept = Real(o.momentum) * buffer[i] + gradient[i];
    buffer[i] = static_cast<double>(kept);
    direction[i] = static_cast<double>(o.nesterov ? gradient[i] + Real(o.momentum) * kept : kept);
  }
  const Array update = newton_schulz(direction, o);
  const Real rows = w.shape[0], columns = w.shape[1];
  const Real scale = o.adjust == MuonOptions::Adjust::original
                         ? std::sqrt(std::max(Real(1), rows / columns))
                         : Real(0.2) * std::sqrt(std::max(rows, columns));
  for (int64_t i = 0; i < w.numel(); ++i) {
    const Real decayed = w[i] * (1 - Real(lr) * Real(o.weight_decay));
    w[i] = static_cast<double>(decayed - Real(lr) * scale * update[i]);
  }
}

}  // namespace gradus::ref
