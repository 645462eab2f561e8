// Exercise: the backward of softmax over the channels at each position.
//
//   y = e^x / Σ e^x                the sum runs over the c channels at the position
//
// The forward saved y, and nothing else is needed. Raising one x raises its own y: what does it do
// to the others?
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  // Your code: g.dx from in.y and in.dy.
  return g;
}

}  // namespace exercises
