// Naive normalizations: batch norm over x [n, c, ...], one mean and variance per channel; group,
// layer and RMS norm, one set of statistics per group of channels or per row.
#pragma once

#include <optional>

#include "tests/support/reference_array.h"

namespace gradus::ref {

struct RunningStats {
  Array mean;  // [c]
  Array var;   // [c]
  int64_t batches = 0;
};

struct BatchNormTrain {
  Array y;     // shape of x
  Array mean;  // [c]
  Array var;   // [c], biased: what x is normalized with
  Array rstd;  // [c], 1 / sqrt(var + eps)
  RunningStats running;
};

// y = (x - mean) * rstd * gamma + beta with the statistics of the batch. gamma and beta [c] may be
// absent (1 and 0). The running variance takes the unbiased variance, so a batch of one value per
// channel makes it NaN, as in PyTorch's formula. momentum absent: the average over all batches.
// An empty batch leaves the running statistics and the counter as they are.
BatchNormTrain batch_norm_train(const Array& x, const Array& gamma, const Array& beta, double eps,
                                const RunningStats& running, std::optional<double> momentum);
// The same without running statistics.
BatchNormTrain batch_norm_train(const Array& x, const Array& gamma, const Array& beta, double eps);

// The same formula with given mean and var [c].
Array batch_norm_eval(const Array& x, const Array& gamma, const Array& beta, double eps,
                      const Array& mean, const Array& var);

struct BatchNormGradients {
  Array dx;      // shape of x
  Array dgamma;  // [c]
  Array dbeta;   // [c]
};

// Chain rule step by step through xhat, var and mean; eps as in the forward.
BatchNormGradients batch_norm_train_backward(const Array& x, const Array& gamma, const Array& dy,
                                             double eps);
// mean and var are constants here.
BatchNormGradients batch_norm_eval_backward(const Array& x, const Array& gamma, const Array& dy,
                                            double eps, const Array& mean, const Array& var);

struct NormForward {
  Array y;     // shape of x
  Array mean;  // per set; absent for RMS norm
  Array rstd;  // per set, 1 / sqrt(var + eps) with the biased variance
};

struct NormGradients {
  Array dx;      // shape of x
  Array dgamma;  // shape of gamma, given also where gamma is absent (as if it were 1)
  Array dbeta;   // likewise; absent for RMS norm
};

// x [n, c, ...]; a set is one sample's c/groups neighbouring channels with all that follows.
// y = (x - mean) * rstd * gamma + beta; gamma and beta [c] may be absent (1 and 0). mean and rstd
// are [n, groups]; groups = c is instance norm.
NormForward group_norm(const Array& x, int64_t groups, const Array& gamma, const Array& beta,
                       double eps);
NormGradients group_norm_backward(const Array& x, int64_t groups, const Array& gamma,
                                  const Array& dy, double eps);

// A set is a row: the last `normalized_axes` axes of x, whose shape gamma and beta have. mean and
// rstd have the shape of the leading axes.
NormForward layer_norm(const Array& x, int normalized_axes, const Array& gamma, const Array& beta,
                       double eps);
NormGradients layer_norm_backward(const Array& x, int normalized_axes, const Array& gamma,
                                  const Array& dy, double eps);

// y = x * rstd * gamma with rstd = 1 / sqrt(mean(x^2) + eps) per row.
NormForward rms_norm(const Array& x, int normalized_axes, const Array& gamma, double eps);
NormGradients rms_norm_backward(const Array& x, int normalized_axes, const Array& gamma,
                                const Array& dy, double eps);

}  // namespace gradus::ref
