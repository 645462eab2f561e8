// Exercise: the backward of layer normalization.
//
// Each row of c features is a set (s is 1). The statistics of row i are mean[i] and rstd[i].
//
//   xhat = (x - mean)·rstd
//   y    = gamma·xhat + beta       a gamma and a beta for each feature
//
// Every feature of a row has another gamma: what does that mean for the sums of dx?
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  // Your code: g.dx, g.dgamma and g.dbeta from in.x, in.dy, in.gamma, in.mean and in.rstd.
  return g;
}

}  // namespace exercises
