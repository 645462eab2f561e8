// conv2d forward and backward to the input over halo tiles: bf16.
#include "cuda/conv2d_halo_gather.cuh"

namespace gradus {
template void launch_halo_gather<BFloat16, false>(Cuda&, const HaloGatherPlan&);
}  // namespace gradus
