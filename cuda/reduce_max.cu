#include "cuda/reduce_op.cuh"

namespace gradus {

template void reduce_op<reductions::Max>(Cuda&, const ReduceForward&);
template void reduce_op<reductions::Max>(Cuda&, const ReduceBackward&);

}  // namespace gradus
