#include "tests/support/reference_norm.h"

#include <algorithm>
#include <cmath>

namespace gradus::ref {
namespace {

// x [n, c, ...] seen as [n, c, s].
struct Channels {
  int64_t n, c, s;

  explicit Channels(const Array& x) {
    require(x.shape.rank() >= 2, "batch_norm: x must be [n, c, ...]");
    n = x.shape[0];
    c = x.shape[1];
    s = 1;
    for (int axis = 2; axis < x.shape.rank(); ++axis) s *= x.shape[axis];
  }

  int64_t count() const { return n * s; }

  // f(flat index) for every element of one channel.
  template <class F>
  void each(int64_t channel, F f) const {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < s; ++k) f((i * c + channel) * s + k);
    }
  }
};

Real gamma_at(const Array& gamma, int64_t c) { return gamma.empty() ? 1.0 : gamma[c]; }
Real beta_at(const Array& beta, int64_t c) { return beta.empty() ? 0.0 : beta[c]; }

struct Moments {
  Real mean = 0, var = 0;  // var is biased
};

Moments moments(const Array& x, const Channels& channels, int64_t c) {
  Moments result;
  const Real m = channels.count();
  if (m == 0) return result;
  channels.each(c, [&](int64_t i) { result.mean += x[i]; });
  result.mean /= m;
  channels.each(c, [&](int64_t i) { result.var += (x[i] - result.mean) * (x[i] - result.mean); });
  result.var /= m;
  return result;
}

}  // namespace

BatchNormTrain batch_norm_train(const Array& x, const Array& gamma, const Array& beta, double eps,
                                const RunningStats& running, std::optional<double> momentum) {
  const Channels channels(x);
  const Shape per_channel = {channels.c};
  BatchNormTrain out{zeros(x.shape), zeros(per_channel), zeros(per_channel), zeros(per_channel),
                     running};
  const bool track = !running.mean.empty() && channels.count() > 0;
  if (track) out.running.batches += 1;
  const Real factor =
      momentum ? Real(*momentum) : Real(1) / std::max<int64_t>(1, out.running.batches);

  for (int64_t c = 0; c < channels.c; ++c) {
    const Moments batch = moments(x, channels, c);
    const Real rstd = 1 / std::sqrt(batch.var + Real(eps));
    channels.each(c, [&](int64_t i) {
      out.y[i] =
          static_cast<double>((x[i] - batch.mean) * rstd * gamma_at(gamma, c) + beta_at(beta, c));
    });
    out.mean[c] = static_cast<double>(batch.mean);
    out.var[c] = static_cast<double>(batch.var);
    out.rstd[c] = static_cast<double>(rstd);
    if (!track) continue;
    const Real m = channels.count();
    const Real unbiased = batch.var * m / (m - 1);
    out.running.mean[c] = static_cast<double>((1 - factor) * running.mean[c] + factor * batch.mean);
    out.running.var[c] = static_cast<double>((1 - factor) * running.var[c] + factor * unbiased);
  }
  return out;
}

BatchNormTrain batch_norm_train(const Array& x, const Array& gamma, const Array& beta, double eps) {
  return batch_norm_train(x, gamma, beta, eps, RunningStats{}, 0.0);
}

Array batch_norm_eval(const Array& x, const Array& gamma, const Array& beta, double eps,
                      const Array& mean, const Array& var) {
  const Channels channels(x);
  Array y = zeros(x.shape);
  for (int64_t c = 0; c < channels.c; ++c) {
    const Real std = std::sqrt(Real(var[c]) + Real(eps));
    channels.each(c, [&](int64_t i) {
      y[i] =
          static_cast<double>(gamma_at(gamma, c) * (x[i] - Real(mean[c])) / std + beta_at(beta, c));
    });
  }
  return y;
}

BatchNormGradients batch_norm_train_backward(const Array& x, const Array& gamma, const Array& dy,
                                             double eps) {
  const Channels channels(x);
  BatchNormGradients out{zeros(x.shape), zeros({channels.c}), zeros({channels.c})};
  const Real m = channels.count();
  for (int64_t c = 0; c < channels.c; ++c) {
    const Moments batch = moments(x, channels, c);
    const Real std = std::sqrt(batch.var + Real(eps));

    // y = gamma * xhat + beta, xhat = (x - mean) / std
    Real dgamma = 0, dbeta = 0, dvar = 0, dmean = 0, sum_of_centred = 0;
    channels.each(c, [&](int64_t i) {
      const Real centred = x[i] - batch.mean;
      const Real dxhat = dy[i] * gamma_at(gamma, c);
      dgamma += dy[i] * centred / std;
      dbeta += dy[i];
      dvar += dxhat * centred * Real(-0.5) / (std * std * std);  // d xhat / d var
      dmean += -dxhat / std;                                     // d xhat / d mean
      sum_of_centred += centred;
    });
    // var = sum (x - mean)^2 / m depends on mean too; that path is 0 but for rounding.
    dmean += m == 0 ? 0 : dvar * -2 * sum_of_centred / m;

    channels.each(c, [&](int64_t i) {
      const Real through_xhat = dy[i] * gamma_at(gamma, c) / std;
      const Real through_var = dvar * 2 * (x[i] - batch.mean) / m;
      const Real through_mean = dmean / m;
      out.dx[i] = static_cast<double>(through_xhat + through_var + through_mean);
    });
    out.dgamma[c] = static_cast<double>(dgamma);
    out.dbeta[c] = static_cast<double>(dbeta);
  }
  return out;
}

BatchNormGradients batch_norm_eval_backward(const Array& x, const Array& gamma, const Array& dy,
                                            double eps, const Array& mean, const Array& var) {
  const Channels channels(x);
  BatchNormGradients out{zeros(x.shape), zeros({channels.c}), zeros({channels.c})};
  for (int64_t c = 0; c < channels.c; ++c) {
    const Real std = std::sqrt(Real(var[c]) + Real(eps));
    Real dgamma = 0, dbeta = 0;
    channels.each(c, [&](int64_t i) {
      out.dx[i] = static_cast<double>(dy[i] * gamma_at(gamma, c) / std);
      dgamma += dy[i] * (x[i] - Real(mean[c])) / std;
      dbeta += dy[i];
    });
    out.dgamma[c] = static_cast<double>(dgamma);
    out.dbeta[c] = static_cast<double>(dbeta);
  }
  return out;
}

}  // namespace gradus::ref
