// Exercise: the backward of local response normalization.
//
// The window of channel k holds the channels from k - size/2 to k + (size - 1)/2 at the same
// position (integer divisions); those outside the tensor count as 0.
//
//   denom = in.k + alpha/size·Σ x² over the window
//   y     = x·denom^-beta
//
// x acts on its own y twice, and on the y of its neighbours once. In whose windows does channel k
// stand? For even sizes that is not the window of k.
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  // Your code: g.dx from in.x, in.dy, in.size, in.alpha, in.beta and in.k.
  return g;
}

}  // namespace exercises
