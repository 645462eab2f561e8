// conv2d forward and backward to the input over halo tiles: f16.
#include "cuda/conv2d_halo_gather.cuh"

namespace gradus {
template void launch_halo_gather<Half, false>(Cuda&, const HaloGatherPlan&);
}  // namespace gradus
