#include "cuda/reduce_op.cuh"

namespace gradus {

template void reduce_op<reductions::LogSumExp>(Cuda&, const ReduceForward&);
template void reduce_op<reductions::LogSumExp>(Cuda&, const ReduceBackward&);

}  // namespace gradus
