// conv2d forward and backward to the input over halo tiles: strict f32.
#include "cuda/conv2d_halo_gather.cuh"

namespace gradus {
template void launch_halo_gather<float, true>(Cuda&, const HaloGatherPlan&);
}  // namespace gradus
