// What conv2d's launch choices are made by. Host-only.
#pragma once

#include "core/dtype.h"
#include "core/ops/window.h"
#include "cuda/plan.h"

namespace gradus {

enum class ConvMath : uint8_t { tensor, f32, f64 };

inline ConvMath conv_math(DType dtype, bool tf32) {
  if (dtype == DType::f64) return ConvMath::f64;
  return is_half(dtype) || tf32 ? ConvMath::tensor : ConvMath::f32;
}

// Blocks that fill a large card: three on each of 132 multiprocessors. A constant, so that the sums
// are the same on every card.
inline constexpr int64_t kConvBlocks = 396;

// Shared memory that a block may have on Hopper; a multiprocessor keeps 1 KB more for each block.
inline constexpr int64_t kMostShared = 227 * 1024;

// What a path is chosen by.
struct ConvProblem {
  enum class Kind : uint8_t { forward, input, weight };  // which of y, dx, dw is wanted
  Kind kind = Kind::forward;
  DType dtype = DType::f32;
  ConvMath math = ConvMath::f32;
  int64_t n = 0, groups = 1;
  int64_t c = 0, h = 0, w = 0;  // of x, c per group
  int64_t k = 0, p = 0, q = 0;  // of y, k per group
  Window window;
  bool ready = false;            // x and y are channels-last, both start at 16 bytes
  bool wgmma = false;            // the device has warpgroup-wide products
  int64_t shared = kMostShared;  // bytes that a block may have; less on other cards

  // The same of a block beside another on its multiprocessor.
  int64_t shared_of_two() const { return (shared + 1024) / 2 - 1024; }

  // Channels per group of the tensor that is gathered from.
  int64_t channels() const { return kind == Kind::input ? k : c; }
  int64_t taps() const { return window.kernel[0] * window.kernel[1]; }
};

}  // namespace gradus
