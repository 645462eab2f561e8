// conv2d backward to the weights over halo tiles: bf16.
#include "cuda/conv2d_halo_wgrad.cuh"

namespace gradus {
template void launch_halo_wgrad<BFloat16, false>(Cuda&, const HaloWgradPlan&);
}  // namespace gradus
