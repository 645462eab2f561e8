// Exercise: the backward of RMS normalization.
//
// Each row of c features is a set (s is 1), and no mean is taken away: rstd[i] is 1 over the root
// of the mean square of row i, plus eps.
//
//   xhat = x·rstd
//   y    = gamma·xhat              there is no beta
//
// Which of layer_norm's three terms of dx is gone, and why?
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  // Your code: g.dx and g.dgamma from in.x, in.dy, in.gamma and in.rstd.
  return g;
}

}  // namespace exercises
