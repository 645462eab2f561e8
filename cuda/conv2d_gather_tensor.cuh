// The tensor-core tiles of the implicit GEMM, one for each that plan_conv_gather() gives.
#pragma once

#include "cuda/conv2d_gather_gemm.cuh"

namespace gradus {

template <class T>
void gather_gemm_tensor(Cuda& cuda, const GatherGemm& p, ConvTile tile, bool divided) {
  using Narrow = TensorCoreTile<T, 128, 32, 32, 32>;
  using Small = TensorCoreTile<T, 64, 64, 32, 32>;
  using Medium = TensorCoreTile<T, 128, 64, 64, 32>;
  using Large = TensorCoreTile<T, 128, 128, 64, 32>;
  if (divided) {
    return tile.columns == 32 ? launch_gather_gemm<T, Narrow, 3, true>(cuda, p)
                              : launch_gather_gemm<T, Small, 3, true>(cuda, p);
  }
  if (tile.columns == 32) return launch_gather_gemm<T, Narrow, 3, false>(cuda, p);
  if (tile.columns == 128) return launch_gather_gemm<T, Large, 3, false>(cuda, p);
  if (tile.rows == 128) return launch_gather_gemm<T, Medium, 3, false>(cuda, p);
  launch_gather_gemm<T, Small, 3, false>(cuda, p);
}

}  // namespace gradus
