// How matrix products are computed: one value for what the user chooses, one guard to apply it.
#pragma once

#include <string>

#include "autograd/autocast.h"

namespace gradus::nn {

struct Precision {
  MatmulPrecision matmul = MatmulPrecision::strict;  // of f32 operands on CUDA
  DType autocast = DType::f32;  // f16 or bf16: products and convolutions of f32 operands in half
};

// "f32", "tf32", "bf16"
inline std::string to_string(const Precision& precision) {
  if (precision.autocast != DType::f32) return std::string(to_string(precision.autocast));
  return precision.matmul == MatmulPrecision::tf32 ? "tf32" : "f32";
}

class PrecisionGuard {
 public:
  explicit PrecisionGuard(const Precision& precision)
      : matmul_(precision.matmul), autocast_(precision.autocast) {}

 private:
  MatmulPrecisionGuard matmul_;
  AutocastGuard autocast_;
};

}  // namespace gradus::nn
