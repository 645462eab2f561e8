#include "cuda/reduce_op.cuh"

namespace gradus {

template void reduce_op<reductions::Var>(Cuda&, const ReduceForward&);
template void reduce_op<reductions::Var>(Cuda&, const ReduceBackward&);
template void reduce_op<reductions::Std>(Cuda&, const ReduceForward&);
template void reduce_op<reductions::Std>(Cuda&, const ReduceBackward&);

}  // namespace gradus
