// conv2d backward to the weights on Hopper: the tiles that plan_wgmma_wgrad() gives.
#include "cuda/conv2d_wgmma_wgrad.cuh"

#include "cuda/conv2d_wgmma_kernels.h"

namespace gradus {
namespace {

template <class T, int Rows, int Columns, bool Split = false>
void launch(Cuda& cuda, const WgmmaWgrad& p, int64_t slices) {
  const auto kernel = conv2d_wgmma_wgrad<T, Rows, Columns, Split>;
  constexpr int kShared = WgmmaStages<T, Rows, Columns, Split>::kSharedBytes;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
             "cudaFuncSetAttribute");
  const unsigned blocks = exact_blocks(slices * p.row_tiles * p.column_tiles, "conv2d");
  launch_next_kernel(cuda, {dim3(blocks), kWgmmaThreads, kShared}, kernel, p);
}

}  // namespace

template <class T>
void wgmma_wgrad(Cuda& cuda, const WgmmaWgrad& p, const WgmmaWgradPlan& plan, bool split) {
  const int64_t slices = plan.chunks.count;
  if constexpr (sizeof(T) == 4) {
    if (split) {
      return plan.tile.rows == 64 ? launch<T, 64, 256, true>(cuda, p, slices)
                                  : launch<T, 128, 128, true>(cuda, p, slices);
    }
  }
  if (plan.tile.rows == 64) return launch<T, 64, 256>(cuda, p, slices);
  plan.tile.columns == 128 ? launch<T, 128, 128>(cuda, p, slices)
                           : launch<T, 128, 256>(cuda, p, slices);
}

template void wgmma_wgrad<float>(Cuda&, const WgmmaWgrad&, const WgmmaWgradPlan&, bool);
template void wgmma_wgrad<Half>(Cuda&, const WgmmaWgrad&, const WgmmaWgradPlan&, bool);
template void wgmma_wgrad<BFloat16>(Cuda&, const WgmmaWgrad&, const WgmmaWgradPlan&, bool);

}  // namespace gradus
