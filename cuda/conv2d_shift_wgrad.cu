// conv2d backward to the weights on Hopper, x copied with its halo once for several taps.
#include "cuda/conv2d_call.h"
#include "cuda/conv2d_wgmma_kernels.h"
#include "cuda/tensor_map.h"

namespace gradus {

void wgrad_shift(Cuda& cuda, const WgradCall& call) {
  ConvProblem problem = call.problem();
  problem.wgmma = true;
  const ShiftWgradPlan plan = plan_shift_wgrad(problem);
  const int64_t c = call.x.channels, k = call.dy.channels;
  const auto pad = [&](size_t i) { return static_cast<int>(call.window.padding[i]); };
  WgmmaWgrad p;
  p.grid = {call.x.n * plan.row_tiles * plan.column_tiles,
            FastDivisor(static_cast<uint32_t>(plan.row_tiles)),
            FastDivisor(static_cast<uint32_t>(plan.column_tiles))};
  p.h = {3, 1, -pad(0), 1}, p.w = {3, 1, -pad(1), 1};
  p.channels = static_cast<int>(c);
  p.rows = static_cast<int>(k);
  p.depth = 9 * p.channels;
  p.row_tiles = plan.k_tiles;
  p.column_tiles = plan.position_tiles;
  p.slice_size = plan.slices.size;
  const int64_t bytes = plan.slices.count * k * p.depth * int64_t{sizeof(float)};
  p.partials = static_cast<float*>(cuda.workspace(static_cast<size_t>(bytes)));
  const MapElement element{DType::f32, true};
  p.x = image_map(element, call.x.data, call.x.n, call.x.h, call.x.w, c, 1, plan.width + 2, 128);
  p.dy = image_map(element, call.dy.data, call.dy.n, call.dy.h, call.dy.w, k, plan.rows(),
                   plan.width, 128);
  wgmma_wgrad_halo(cuda, p, plan);
  sum_slices(cuda, call.dw.dtype,
             {p.partials, call.dw.data, plan.slices.count, k, p.channels, p.channels, 9});
}

}  // namespace gradus
