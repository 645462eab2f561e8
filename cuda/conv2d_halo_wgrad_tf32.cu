// conv2d backward to the weights over halo tiles: f32 in TF32.
#include "cuda/conv2d_halo_wgrad.cuh"

namespace gradus {
template void launch_halo_wgrad<float, false>(Cuda&, const HaloWgradPlan&);
}  // namespace gradus
