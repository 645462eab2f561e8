// Kernels that call the helpers of cuda/device/, for tests compiled by the host compiler.
#pragma once

#include <cstdint>

#include "cuda/context.h"

namespace gradus::test {

struct BlockShape {
  unsigned x, y, z;
};

struct HostMoments {
  float count, mean, m2;
};

// y[b] = the sum, maximum or moments of x[b·n ... (b + 1)·n), each block of `shape` taking one row.
// Every thread checks that it got the same bits; where not, y[b] is NaN.
void block_sums(Cuda&, float* y, const float* x, int64_t n, int blocks, BlockShape shape);
void block_maxima(Cuda&, float* y, const float* x, int64_t n, int blocks, BlockShape shape);
void block_moments(Cuda&, HostMoments* y, const float* x, int64_t n, int blocks, BlockShape shape);

// y[i] = the sum over the aligned group of `width` lanes that i belongs to; n a multiple of 32.
void warp_sums(Cuda&, double* y, const double* x, int64_t n, int width);

// A launch that fails: no block can have so many threads. The error is left for others to find.
void launch_too_many_threads(Cuda&);

}  // namespace gradus::test
