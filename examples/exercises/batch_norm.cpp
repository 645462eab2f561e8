// Exercise: the backward of batch normalization in training.
//
// All samples and positions of a channel are one set of m = n·s elements:
//
//   xhat = (x - mean)·rstd         mean and rstd of the channel
//   y    = gamma·xhat + beta
//
// Two questions on the way: why does dx need two more terms than rstd·gamma·dy? And why may gamma
// stand outside the sums here, but not in group_norm?
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  // Your code: g.dx, g.dgamma and g.dbeta from in.x, in.dy, in.gamma, in.mean and in.rstd.
  return g;
}

}  // namespace exercises
