#include "cuda/reduce_op.cuh"

namespace gradus {

template void reduce_op<reductions::Min>(Cuda&, const ReduceForward&);
template void reduce_op<reductions::Min>(Cuda&, const ReduceBackward&);

}  // namespace gradus
