// conv2d forward and backward to the input in plain multiply-adds: strict f32, f64.
#include "cuda/conv2d_gather_gemm.cuh"

namespace gradus {

template <>
void gather_gemm_plain<float>(Cuda& cuda, const GatherGemm& p, ConvTile tile, bool divided) {
  using Narrow = FmaTile<float, 128, 32, 8, 4>;
  using Small = FmaTile<float, 64, 64, 8, 4>;
  using Medium = FmaTile<float, 128, 64, 8, 8>;
  if (divided) {
    return tile.columns == 32 ? launch_gather_gemm<float, Narrow, 3, true>(cuda, p)
                              : launch_gather_gemm<float, Small, 3, true>(cuda, p);
  }
  if (tile.columns == 32) return launch_gather_gemm<float, Narrow, 3, false>(cuda, p);
  if (tile.rows == 128) return launch_gather_gemm<float, Medium, 3, false>(cuda, p);
  launch_gather_gemm<float, Small, 3, false>(cuda, p);
}

template <>
void gather_gemm_plain<double>(Cuda& cuda, const GatherGemm& p, ConvTile, bool divided) {
  using Tile = FmaTile<double, 64, 32, 4, 4>;
  return divided ? launch_gather_gemm<double, Tile, 3, true>(cuda, p)
                 : launch_gather_gemm<double, Tile, 3, false>(cuda, p);
}

}  // namespace gradus
