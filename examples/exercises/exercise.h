// What an exercise is given and what it gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace exercises {

using Values = std::vector<double>;

// x of n samples, c channels and s positions: channel k at position j of sample i is x[at(i, k,
// j)]. For layer_norm and rms_norm a sample is a row of c features, and s is 1.
struct Input {
  int64_t n = 0, c = 0, s = 0;
  Values x;      // n·c·s
  Values dy;     // n·c·s: the gradient of the loss with respect to y
  Values gamma;  // c; the five norms

  // What the forward saved. Statistics: batch_norm one per channel, [c]; group_norm [n·groups];
  // instance_norm [n·c]; layer_norm and rms_norm one per row, [n].
  Values mean;  // not of rms_norm
  Values rstd;  // 1 / sqrt(var + eps)
  Values y;     // of softmax2d

  int64_t groups = 1;  // group_norm
  int64_t size = 1;    // local_response_norm, as the three numbers below
  double alpha = 1, beta = 0.75, k = 1;

  size_t at(int64_t sample, int64_t channel, int64_t position) const {
    return static_cast<size_t>((sample * c + channel) * s + position);
  }
};

// Starts with zeros of the right sizes: Gradients g(in).
struct Gradients {
  explicit Gradients(const Input& in)
      : dx(in.x.size()), dgamma(in.gamma.size()), dbeta(in.gamma.size()) {}
  Values dx;             // n·c·s
  Values dgamma, dbeta;  // c; the five norms, rms_norm without dbeta
};

// Each exercise is this function for one layer.
Gradients backward(const Input& in);

}  // namespace exercises
