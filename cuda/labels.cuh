// What the kernels of losses with one label per row share: reading labels, and the reduction of a
// loss with its weights and its first wrong label.
#pragma once

#include "core/fault.h"
#include "core/ops/cross_entropy.h"
#include "cuda/device/reduce.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/plan.h"

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
  LabelView labels;
  int64_t c;
  Fault* fault;
  Fault::Kind kind;  // of the fault that a wrong label is
};

template <class A, class Args>
LabelResult<A> label_result(const Cuda& cuda, const Args& args, int64_t c, Fault::Kind kind) {
  const bool is_none = args.reduction == Reduction::none;
  return {.row_loss = is_none ? args.loss.template as<A>() : nullptr,
          .total = is_none ? nullptr : args.loss.template as<A>(),
          .divisor = args.divisor.template as<A>(),
          .labels = {args.labels.data, args.labels.dtype},
          .c = c,
          .fault = cuda.fault(),
          .kind = kind};
}

// Writes the loss and notes the first wrong label; called by one thread.
template <class A>
__device__ void finish_loss(const LabelResult<A>& result, const LabelPart& all) {
  if (result.divisor != nullptr) *result.divisor = static_cast<A>(all.weight);
  if (result.total != nullptr) {
    *result.total = static_cast<A>(result.divisor == nullptr ? all.loss : all.loss / all.weight);
  }
  if (all.wrong == kNoRow || result.fault->kind != Fault::Kind::none) return;
  result.fault->value = result.labels[all.wrong];
  result.fault->index = all.wrong;
  result.fault->limit = result.c;
  __threadfence_system();
  result.fault->kind = result.kind;
}

__device__ inline LabelPart reduce_part(const LabelPart& part) {
  return {block_sum(part.loss), block_sum(part.weight),
          block_reduce(part.wrong, FirstOp{}, kNoRow)};
}

// Adds up what the threads of a block have, and finishes where there is no other block.
template <class A>
__device__ void leave_part(const LabelResult<A>& result, const LabelPart& own, LabelPart* parts) {
  const LabelPart all = reduce_part(own);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) {
    finish_loss(result, all);
  } else {
    parts[blockIdx.x] = all;
  }
}

inline constexpr int kLabelFinishThreads = 1024;

// grid:  one block
// order: each thread its parts from first to last, then the block's tree
template <class A>
__global__ void __launch_bounds__(kLabelFinishThreads)
    label_loss_finish(const LabelPart* parts, int64_t count, LabelResult<A> result) {
  wait_for_previous_kernel();
  LabelPart all;
  for (int64_t i = threadIdx.x; i < count; i += kLabelFinishThreads) {
    all.loss += parts[i].loss;
    all.weight += parts[i].weight;
    all.wrong = FirstOp{}(all.wrong, parts[i].wrong);
  }
  all = reduce_part(all);
  if (threadIdx.x == 0) finish_loss(result, all);
}

// Launches kernel(in, rows of a block, result, parts), which waits for the kernel before it and
// ends with leave_part(), and what adds up the parts where there is not one block.
template <class Input, class A>
void launch_label_loss(Cuda& cuda, const Chunks& chunks, int threads, std::string_view op,
                       void (*kernel)(Input, int64_t, LabelResult<A>, LabelPart*), const Input& in,
                       const LabelResult<A>& result) {
  LabelPart* parts = nullptr;
  if (chunks.count > 1) {
    const size_t bytes = static_cast<size_t>(chunks.count) * sizeof(LabelPart);
    parts = static_cast<LabelPart*>(cuda.workspace(bytes));
  }
  if (chunks.count > 0) {
    launch_overlapping(cuda, {.grid = exact_blocks(chunks.count, op), .threads = threads}, kernel,
                       in, chunks.size, result, parts);
  }
  if (chunks.count != 1) {
    launch_overlapping(cuda, {.grid = 1, .threads = kLabelFinishThreads}, label_loss_finish<A>,
                       parts, chunks.count, result);
  }
}

}  // namespace gradus
