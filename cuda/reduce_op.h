// Both directions of one reduction on CUDA, defined by cuda/reduce_*.cu.
#pragma once

#include "core/ops/reduce.h"
#include "cuda/context.h"

namespace gradus {

// Whether gradients find the statistics of sets that a block holds, where they need more than y.
// Those of logsumexp would take longer than memory: two exponentials an element.
template <class F, class T>
inline constexpr bool kFindsStatistics =
    !std::is_same_v<F, reductions::LogSumExp> && (F::kStat1 || !saves_y<F>(dtype_of<T>));

template <class F>
void reduce_op(Cuda& cuda, const ReduceForward& args);
template <class F>
void reduce_op(Cuda& cuda, const ReduceBackward& args);

}  // namespace gradus
