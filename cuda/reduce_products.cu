#include "cuda/reduce_op.cuh"

namespace gradus {

template void reduce_op<reductions::Prod>(Cuda&, const ReduceForward&);
template void reduce_op<reductions::Prod>(Cuda&, const ReduceBackward&);
template void reduce_op<reductions::Norm2>(Cuda&, const ReduceForward&);
template void reduce_op<reductions::Norm2>(Cuda&, const ReduceBackward&);

}  // namespace gradus
