// What the kernels of losses with one label per row share: reading labels, and the reduction of a
// loss with its weights and its first wrong label.
#pragma once

#include "core/fault.h"
#include "core/ops/cross_entropy.h"
#include "cuda/device/reduce.cuh"

namespace gradus {

inline constexpr int64_t kNoRow = int64_t(1) << 62;

struct LabelView {
  const void* data;
  DType dtype;

  __device__ int64_t operator[](int64_t i) const {
    switch (dtype) {
      case DType::u8:
        return static_cast<const uint8_t*>(data)[i];
      case DType::i32:
        return static_cast<const int32_t*>(data)[i];
      default:
        return static_cast<const int64_t*>(data)[i];
    }
  }
};

// Where the first class of a row lies.
__device__ inline int64_t row_offset(const ClassRows& shape, int64_t row) {
  return row / shape.inner * shape.c * shape.inner + row % shape.inner;
}

// What a block has found in its chunk of rows.
struct LabelPart {
  double loss = 0;
  double weight = 0;
  int64_t wrong = kNoRow;  // the first row with a wrong label
};

struct FirstOp {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};

template <class A>
struct LabelResult {
  A* row_loss;  // for Reduction::none, else null
  A* total;     // for the others, else null
  A* divisor;   // for mean, else null
  Fault* fault;
  Fault::Kind kind;  // of the fault that a wrong label is
};

__device__ inline LabelPart reduce_part(const LabelPart& part) {
  return {block_sum(part.loss), block_sum(part.weight),
          block_reduce(part.wrong, FirstOp{}, kNoRow)};
}

// Writes the loss and notes the first wrong label; called by one thread.
template <class A>
__device__ void finish(const LabelResult<A>& result, const LabelPart& all, const LabelView& labels,
                       int64_t c) {
  if (result.divisor != nullptr) *result.divisor = static_cast<A>(all.weight);
  if (result.total != nullptr) {
    *result.total = static_cast<A>(result.divisor == nullptr ? all.loss : all.loss / all.weight);
  }
  if (all.wrong == kNoRow || result.fault->kind != Fault::Kind::none) return;
  result.fault->value = labels[all.wrong];
  result.fault->index = all.wrong;
  result.fault->limit = c;
  __threadfence_system();
  result.fault->kind = result.kind;
}

}  // namespace gradus
