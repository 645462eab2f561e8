// Both directions of one reduction on CUDA, defined by cuda/reduce_*.cu.
#pragma once

#include "core/ops/reduce.h"
#include "cuda/context.h"

namespace gradus {

template <class F>
void reduce_op(Cuda& cuda, const ReduceForward& args);
template <class F>
void reduce_op(Cuda& cuda, const ReduceBackward& args);

}  // namespace gradus
