// conv2d forward and backward to the input on Hopper: the tiles that plan_wgmma_gather() gives.
#include "cuda/conv2d_wgmma_gather.cuh"

#include "cuda/conv2d_wgmma_kernels.h"

namespace gradus {
namespace {

template <class T, int Rows, int Columns, bool Split>
void launch(Cuda& cuda, const WgmmaGather& p) {
  constexpr int kShared = WgmmaStages<T, Rows, Columns, Split, true>::kSharedBytes;
  const int64_t blocks = std::min<int64_t>(p.tiles, cuda.info().multiprocessors);
  launch_overlapping(cuda, {dim3(static_cast<unsigned>(blocks)), kWgmmaThreads, kShared},
                     conv2d_wgmma_gather<T, Rows, Columns, Split>, p);
}

}  // namespace

template <class T>
void wgmma_gather(Cuda& cuda, const WgmmaGather& p, WgmmaTile tile, bool split) {
  if constexpr (sizeof(T) == 4) {
    if (split) {
      return tile.rows == 64 ? launch<T, 64, 256, true>(cuda, p)
                             : launch<T, 128, 128, true>(cuda, p);
    }
  }
  if (tile.rows == 64) return launch<T, 64, 256, false>(cuda, p);
  tile.columns == 128 ? launch<T, 128, 128, false>(cuda, p) : launch<T, 128, 256, false>(cuda, p);
}

template void wgmma_gather<float>(Cuda&, const WgmmaGather&, WgmmaTile, bool);
template void wgmma_gather<Half>(Cuda&, const WgmmaGather&, WgmmaTile, bool);
template void wgmma_gather<BFloat16>(Cuda&, const WgmmaGather&, WgmmaTile, bool);

}  // namespace gradus
