// conv2d backward to the weights on Hopper: the tiles that plan_wgmma_wgrad() gives.
#include "cuda/conv2d_wgmma_wgrad.cuh"

#include "cuda/conv2d_wgmma_kernels.h"
#include "cuda/launch_kernel.cuh"

namespace gradus {
namespace {

template <class T, int Rows, int Columns>
void launch(Cuda& cuda, const WgmmaWgrad& p, int64_t slices) {
  const int64_t blocks = slices * p.row_tiles * p.column_tiles;
  launch_kernel(
      cuda,
      {dim3(exact_blocks(blocks, "conv2d")), 384, WgmmaStages<T, Rows, Columns>::kSharedBytes},
      conv2d_wgmma_wgrad<T, Rows, Columns>, p);
}

}  // namespace

template <class T>
void wgmma_wgrad(Cuda& cuda, const WgmmaWgrad& p, const WgmmaWgradPlan& plan) {
  if (plan.tile.rows == 64) return launch<T, 64, 256>(cuda, p, plan.chunks.count);
  plan.tile.columns == 128 ? launch<T, 128, 128>(cuda, p, plan.chunks.count)
                           : launch<T, 128, 256>(cuda, p, plan.chunks.count);
}

template void wgmma_wgrad<Half>(Cuda&, const WgmmaWgrad&, const WgmmaWgradPlan&);
template void wgmma_wgrad<BFloat16>(Cuda&, const WgmmaWgrad&, const WgmmaWgradPlan&);

}  // namespace gradus
