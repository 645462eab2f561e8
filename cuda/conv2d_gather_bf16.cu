// conv2d forward and backward to the input on tensor cores: bf16.
#include "cuda/conv2d_gather_tensor.cuh"

namespace gradus {
template void gather_gemm_tensor<BFloat16>(Cuda&, const GatherGemm&, ConvTile, bool);
}  // namespace gradus
