// Exercise: the backward of instance normalization.
//
// The s positions of one channel of one sample are a set. The statistics of channel k of sample i
// are mean[i·c + k] and rstd.
//
//   xhat = (x - mean)·rstd
//   y    = gamma·xhat + beta
//
// Compare it with batch_norm: what changes for dx, and what for dgamma and dbeta?
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  // Your code: g.dx, g.dgamma and g.dbeta from in.x, in.dy, in.gamma, in.mean and in.rstd.
  return g;
}

}  // namespace exercises
