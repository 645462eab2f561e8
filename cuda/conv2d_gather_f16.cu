// conv2d forward and backward to the input on tensor cores: f16.
#include "cuda/conv2d_gather_tensor.cuh"

namespace gradus {
template void gather_gemm_tensor<Half>(Cuda&, const GatherGemm&, ConvTile, bool);
}  // namespace gradus
