// Exercise: the backward of group normalization.
//
// The c / in.groups neighbouring channels of a group, at all positions of one sample, are one set
// of m = c/groups·s elements. The statistics of group g of sample i are mean[i·groups + g] and
// rstd.
//
//   xhat = (x - mean)·rstd
//   y    = gamma·xhat + beta       one gamma and beta per channel: they vary over a set
//
// The trap: gamma varies over the set, so that it must stand inside the sums of dx. Which sums run
// over a set, and which over all samples?
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  // Your code: g.dx, g.dgamma and g.dbeta from in.x, in.dy, in.gamma, in.mean and in.rstd.
  return g;
}

}  // namespace exercises
