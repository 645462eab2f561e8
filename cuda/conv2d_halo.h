// The kernels over halo tiles, per dtype: float (TF32, or Split into two parts: strict f32), Half,
// BFloat16. Host-only.
#pragma once

#include "cuda/context.h"
#include "cuda/conv2d_halo_plan.h"

namespace gradus {

template <class T, bool Split>
void launch_halo_gather(Cuda&, const HaloGatherPlan&);
template <class T, bool Split>
void launch_halo_wgrad(Cuda&, const HaloWgradPlan&);

}  // namespace gradus
