// conv2d forward and backward to the input over halo tiles: f32 in TF32.
#include "cuda/conv2d_halo_gather.cuh"

namespace gradus {
template void launch_halo_gather<float, false>(Cuda&, const HaloGatherPlan&);
}  // namespace gradus
