// conv2d backward to the weights over halo tiles: strict f32.
#include "cuda/conv2d_halo_wgrad.cuh"

namespace gradus {
template void launch_halo_wgrad<float, true>(Cuda&, const HaloWgradPlan&);
}  // namespace gradus
