// conv2d backward to the weights on Hopper: the tiles that plan_wgmma_wgrad() and
// plan_shift_wgrad() give.
#include "cuda/conv2d_wgmma_wgrad.cuh"

#include "cuda/conv2d_wgmma_kernels.h"
#include "cuda/conv2d_wgmma_turned.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {
namespace {

void launch(Cuda& cuda, void (*kernel)(WgmmaWgrad), size_t shared_bytes, const WgmmaWgrad& p,
            int64_t slices) {
  const unsigned blocks = exact_blocks(slices * p.row_tiles * p.column_tiles, "conv2d");
  launch_overlapping(cuda, {dim3(blocks), kWgmmaThreads, shared_bytes}, kernel, p);
}

template <class T, int Rows, int Columns>
void launch_half(Cuda& cuda, const WgmmaWgrad& p, int64_t slices) {
  launch(cuda, conv2d_wgmma_wgrad<T, Rows, Columns>,
         WgmmaStages<T, Rows, Columns, false, false>::kSharedBytes, p, slices);
}

template <class X>
void launch_turned(Cuda& cuda, const WgmmaWgrad& p, int64_t slices) {
  launch(cuda, conv2d_wgmma_turned<X>, TurnedStages<X>::kSharedBytes, p, slices);
}

template <bool AllTaps>
void launch_halo(Cuda& cuda, const WgmmaWgrad& p, int width, int64_t slices) {
  if (width == 8) return launch_turned<TurnedHalo<AllTaps, 8>>(cuda, p, slices);
  width == 16 ? launch_turned<TurnedHalo<AllTaps, 16>>(cuda, p, slices)
              : launch_turned<TurnedHalo<AllTaps, 32>>(cuda, p, slices);
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
  const int64_t slices = plan.chunks.count;
  if (!plan.split) return launch_turned<TurnedTaps<3, 128, false>>(cuda, p, slices);
  plan.tile.rows == 64 ? launch_turned<TurnedTaps<2, 64, true>>(cuda, p, slices)
                       : launch_turned<TurnedTaps<2, 128, true>>(cuda, p, slices);
}

void wgmma_wgrad_halo(Cuda& cuda, const WgmmaWgrad& p, const ShiftWgradPlan& plan) {
  plan.all_taps ? launch_halo<true>(cuda, p, plan.width, plan.slices.count)
                : launch_halo<false>(cuda, p, plan.width, plan.slices.count);
}

}  // namespace gradus
