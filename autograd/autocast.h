// Precision is the user's explicit choice; strict f32 is the default. Both guards are thread-local.
#pragma once

#include "core/tensor.h"

namespace gradus {

// How f32 matrix products and convolutions are computed on CUDA: in full f32, or with operands
// rounded to TF32 (10 mantissa bits) and f32 sums. The CPU always computes in f32.
enum class MatmulPrecision : uint8_t { strict, tf32 };

MatmulPrecision matmul_precision();

class MatmulPrecisionGuard {
 public:
  explicit MatmulPrecisionGuard(MatmulPrecision precision);
  ~MatmulPrecisionGuard();
  MatmulPrecisionGuard(const MatmulPrecisionGuard&) = delete;
  MatmulPrecisionGuard& operator=(const MatmulPrecisionGuard&) = delete;

 private:
  MatmulPrecision before_;
};

// While alive, conv2d, linear and matmul convert f32 operands to `dtype` (f16 or bf16) first; the
// gradient of a parameter is produced in f32, not cast back. Losses, statistics and parameter
// gradients stay f32; the rest follow their input. f32 switches an outer guard's conversion off.
class AutocastGuard {
 public:
  explicit AutocastGuard(DType dtype);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  DType before_;
};

// The dtype in which an operand of `dtype` is computed under the policy in force.
DType autocast_dtype(DType dtype);
// `x` as an operand of a matrix product under the policy in force.
Tensor autocast_operand(const Tensor& x);

}  // namespace gradus
