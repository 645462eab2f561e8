// conv2d backward to the weights in plain multiply-adds: strict f32, f64.
#include "cuda/conv2d_wgrad_gemm.cuh"

namespace gradus {

template <>
void wgrad_gemm_plain<float>(Cuda& cuda, const WgradGemm& problem, const ConvWgradPlan& plan) {
  WgradGemm p = problem;
  p.slice_pixels = plan.chunks.size;
  if (plan.tile.rows == 32) {
    launch_wgrad_gemm<float, WgradFmaTile<float, 32, 96, 12, 32>, 3>(cuda, p, plan.chunks.count);
  } else {
    launch_wgrad_gemm<float, WgradFmaTile<float, 64, 96, 12, 32>, 3>(cuda, p, plan.chunks.count);
  }
}

template <>
void wgrad_gemm_plain<double>(Cuda& cuda, const WgradGemm& problem, const ConvWgradPlan& plan) {
  WgradGemm p = problem;
  p.slice_pixels = plan.chunks.size;
  launch_wgrad_gemm<double, WgradFmaTile<double, 32, 48, 6, 16>, 3>(cuda, p, plan.chunks.count);
}

}  // namespace gradus
