#include "autograd/autocast.h"

#include <utility>

#include "core/error.h"

namespace gradus {
namespace {
thread_local MatmulPrecision g_precision = MatmulPrecision::strict;
thread_local DType g_autocast = DType::f32;  // f32: off
}  // namespace

MatmulPrecision matmul_precision() { return g_precision; }

MatmulPrecisionGuard::MatmulPrecisionGuard(MatmulPrecision precision)
    : before_(std::exchange(g_precision, precision)) {}
MatmulPrecisionGuard::~MatmulPrecisionGuard() { g_precision = before_; }

AutocastGuard::AutocastGuard(DType dtype) : before_(g_autocast) {
  check(is_half(dtype) || dtype == DType::f32, "autocast", "expected f16, bf16 or f32, got ",
        dtype);
  g_autocast = dtype;
}
AutocastGuard::~AutocastGuard() { g_autocast = before_; }

DType autocast_dtype(DType dtype) { return dtype == DType::f32 ? g_autocast : dtype; }

Tensor autocast_operand(const Tensor& x) {
  return x.defined() ? x.to(autocast_dtype(x.dtype())) : x;
}

}  // namespace gradus
