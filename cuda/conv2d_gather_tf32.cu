// conv2d forward and backward to the input on tensor cores: f32 in TF32.
#include "cuda/conv2d_gather_tensor.cuh"

namespace gradus {
template void gather_gemm_tensor<float>(Cuda&, const GatherGemm&, ConvTile, bool);
}  // namespace gradus
