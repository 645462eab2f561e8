// conv2d backward to the weights on tensor cores: f32 in TF32, f16, bf16.
#include "cuda/conv2d_wgrad_gemm.cuh"

namespace gradus {

template <class T>
void wgrad_gemm_tensor(Cuda& cuda, const WgradGemm& problem, const ConvWgradPlan& plan) {
  WgradGemm p = problem;
  p.slice_pixels = plan.chunks.size;
  constexpr int kDepth = 128 / sizeof(T);  // pixels per step
  if (plan.tile.rows == 32) {
    launch_wgrad_gemm<T, WgradTensorCoreTile<T, 32, 96, 32, kDepth>, 3>(cuda, p, plan.chunks.count);
  } else {
    launch_wgrad_gemm<T, WgradTensorCoreTile<T, 64, 96, 32, kDepth>, 3>(cuda, p, plan.chunks.count);
  }
}

template void wgrad_gemm_tensor<float>(Cuda&, const WgradGemm&, const ConvWgradPlan&);
template void wgrad_gemm_tensor<Half>(Cuda&, const WgradGemm&, const ConvWgradPlan&);
template void wgrad_gemm_tensor<BFloat16>(Cuda&, const WgradGemm&, const ConvWgradPlan&);

}  // namespace gradus
