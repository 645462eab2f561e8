// conv2d backward to the weights on Hopper: the tiles that plan_wgmma_wgrad() gives.
#include "cuda/conv2d_wgmma_wgrad.cuh"

#include "cuda/conv2d_wgmma_kernels.h"
#include "cuda/conv2d_wgmma_turned.cuh"
#include "cuda/launch_cluster.cuh"

namespace gradus {
namespace {

void launch(Cuda& cuda, void (*kernel)(WgmmaWgrad), size_t shared_bytes, const WgmmaWgrad& p,
            int64_t slices) {
  const unsigned blocks = exact_blocks(slices * p.row_tiles * p.column_tiles, "conv2d");
  launch_overlapping(cuda,
                     {.grid = dim3(blocks),
                      .threads = kWgmmaThreads,
                      .shared_bytes = shared_bytes,
                      .overlaps = false},
                     kernel, p);
}

template <class T, int Rows, int Columns>
void launch_half(Cuda& cuda, const WgmmaWgrad& p, int64_t slices) {
  launch(cuda, conv2d_wgmma_wgrad<T, Rows, Columns>, WgmmaStages<T, Rows, Columns>::kSharedBytes, p,
         slices);
}

template <int Tiles, int Columns, bool Split>
void launch_turned(Cuda& cuda, const WgmmaWgrad& p, int64_t slices) {
  launch(cuda, conv2d_wgmma_turned<Tiles, Columns, Split>,
         TurnedStages<Tiles, Columns, Split>::kSharedBytes, p, slices);
}

template <class T>
void wgrad_half(Cuda& cuda, const WgmmaWgrad& p, const WgmmaWgradPlan& plan) {
  const int64_t slices = plan.chunks.count;
  if (plan.tile.rows == 64) return launch_half<T, 64, 256>(cuda, p, slices);
  plan.tile.columns == 128 ? launch_half<T, 128, 128>(cuda, p, slices)
                           : launch_half<T, 128, 256>(cuda, p, slices);
}

}  // namespace

void wgmma_wgrad(Cuda& cuda, DType dtype, const WgmmaWgrad& p, const WgmmaWgradPlan& plan) {
  if (dtype == DType::bf16) return wgrad_half<BFloat16>(cuda, p, plan);
  if (dtype == DType::f16) return wgrad_half<Half>(cuda, p, plan);
  plan.split ? launch_turned<2, 128, true>(cuda, p, plan.chunks.count)
             : launch_turned<3, 128, false>(cuda, p, plan.chunks.count);
}

}  // namespace gradus
