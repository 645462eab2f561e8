// Naive local response normalization across the channels of x [n, c, ...].
#pragma once

#include "tests/support/reference_array.h"

namespace gradus::ref {

struct LrnOptions {
  int64_t size;
  double alpha = 1e-4, beta = 0.75, k = 1;
};

struct LrnForward {
  Array y;      // shape of x
  Array denom;  // shape of x
};

// denom[c] = k + alpha/size * sum of x[j]^2 over j = c - size/2 .. c + (size - size/2) - 1,
// channels outside x counting as 0; y = x * denom^-beta. An even window reaches one channel further
// below.
LrnForward local_response_norm(const Array& x, const LrnOptions& options);
Array local_response_norm_backward(const Array& x, const LrnOptions& options, const Array& dy);

}  // namespace gradus::ref
