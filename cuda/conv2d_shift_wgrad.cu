// conv2d backward to the weights on Hopper, x copied with its halo once for several taps: the
// launches.
#include "cuda/conv2d_shift_wgrad_rows.cuh"

#include "cuda/conv2d_call.h"
#include "cuda/conv2d_wgmma_kernels.h"
#include "cuda/launch_kernel.cuh"
#include "cuda/tensor_map.h"

namespace gradus {
namespace {

int pad(const WgradCall& call, size_t i) { return static_cast<int>(call.window.padding[i]); }

void wgrad_tf32(Cuda& cuda, const WgradCall& call, const ShiftWgradPlan& plan, float* partials) {
  const int64_t c = call.x.channels, k = call.dy.channels;
  WgmmaWgrad p;
  p.grid = {call.x.n * plan.row_tiles * plan.column_tiles,
            FastDivisor(static_cast<uint32_t>(plan.row_tiles)),
            FastDivisor(static_cast<uint32_t>(plan.column_tiles))};
  p.h = {3, 1, -pad(call, 0), 1}, p.w = {3, 1, -pad(call, 1), 1};
  p.channels = static_cast<int>(c);
  p.rows = static_cast<int>(k);
  p.depth = 9 * p.channels;
  p.row_tiles = plan.k_tiles;
  p.column_tiles = plan.position_tiles;
  p.slice_size = plan.slices.size;
  p.partials = partials;
  const MapElement element{DType::f32, true};
  p.x = image_map(element, call.x.data, call.x.n, call.x.h, call.x.w, c, 1, plan.width + 2, 128);
  p.dy = image_map(element, call.dy.data, call.dy.n, call.dy.h, call.dy.w, k, plan.rows, plan.width,
                   128);
  wgmma_wgrad_halo(cuda, p, plan);
  sum_slices(cuda, call.dw.dtype,
             {partials, call.dw.data, plan.slices.count, k, p.channels, p.channels, 9});
}

ShiftWgrad half_problem(const WgradCall& call, const ShiftWgradPlan& plan) {
  const MapElement element{call.dtype};
  ShiftWgrad p;
  p.x = image_map(element, call.x.data, call.x.n, call.x.h, call.x.w, call.x.channels,
                  plan.x_rows(), plan.pitch, 128);
  p.dy = image_map(element, call.dy.data, call.dy.n, call.dy.h, call.dy.w, call.dy.channels,
                   plan.rows, plan.width, 128);
  p.channels = static_cast<int>(call.x.channels);
  p.k = static_cast<int>(call.dy.channels);
  p.k_tiles = plan.k_tiles, p.tiles = static_cast<int>(plan.tiles());
  p.shift_h = -pad(call, 0), p.shift_w = -pad(call, 1);
  p.rows = plan.rows, p.row_tiles = plan.row_tiles;
  p.steps = static_cast<int>(call.x.n) * plan.row_tiles;
  p.slice_steps = static_cast<int>(plan.slices.size);
  p.passes = plan.passes, p.per_row = plan.per_row;
  p.skip = plan.skip * (128 >> 4);
  p.row_bytes = plan.pitch * 128, p.eight_bytes = plan.eight * 128;
  p.dy_bytes = plan.width * plan.rows * 128;
  p.x_bytes = plan.pitch * plan.x_rows() * 128;
  p.stage_bytes = plan.stage_bytes, p.stages = plan.stages;
  return p;
}

// `mail`: bytes that the stages' place must hold afterwards.
LaunchShape half_shape(const ShiftWgrad& p, int64_t blocks, int threads, int mail) {
  // Checkers of memory take an operand of 192 columns, whose blocks overlap, for 6144 bytes in a
  // row.
  constexpr int kBeyond = 4096;
  const int shared = 2048 + std::max(p.stages * p.stage_bytes + kBeyond, mail);
  return {.grid = dim3(exact_blocks(blocks, "conv2d")),
          .threads = threads,
          .shared_bytes = static_cast<size_t>(shared)};
}

void wgrad_pairs(Cuda& cuda, const WgradCall& call, const ShiftWgrad& p, int64_t pairs) {
  LaunchShape shape = half_shape(p, kShiftWgradCluster * pairs * p.tiles,
                                 ShiftWgradStages<3>::kThreads, kShiftWgradMail);
  shape.cluster = kShiftWgradCluster;
  call.dtype == DType::bf16 ? launch_overlapping(cuda, shape, conv2d_shift_wgrad<BFloat16>, p)
                            : launch_overlapping(cuda, shape, conv2d_shift_wgrad<Half>, p);
  sum_slices(cuda, call.dw.dtype,
             {p.partials, call.dw.data, pairs, p.k, p.channels, p.channels, 9});
}

void wgrad_rows(Cuda& cuda, const WgradCall& call, const ShiftWgrad& p, int64_t slices) {
  const LaunchShape shape = half_shape(p, 3 * slices, ShiftWgradStages<1>::kThreads, 0);
  call.dtype == DType::bf16 ? launch_overlapping(cuda, shape, conv2d_shift_wgrad_rows<BFloat16>, p)
                            : launch_overlapping(cuda, shape, conv2d_shift_wgrad_rows<Half>, p);
  visit(TypeList<float, Half, BFloat16>{}, call.dw.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_overlapping(cuda, {dim3(kShiftRowsWeights / 128), kShiftRowsLanes * 32},
                       conv2d_shift_wgrad_rows_sum<T>, p.partials, static_cast<T*>(call.dw.data),
                       static_cast<int>(slices));
  });
}

}  // namespace

// The copy engine rounds TF32 on the way, so that only 16-bit dy can be added up for the bias.
void wgrad_shift(Cuda& cuda, const WgradCall& call) {
  const ShiftWgradPlan plan = plan_shift_wgrad(call.problem());
  const int64_t k = call.dy.channels, c = call.x.channels, size = sizeof(float);
  const bool half = is_half(call.dtype), bias = half && call.dbias;
  const int64_t together = half && !plan.by_rows ? kShiftWgradCluster : 1;  // slices of one sum
  const int64_t sums = ceil_div(plan.slices.count, together);
  const int64_t bias_sums = bias ? sums * together * kShiftWgradAdders : 0;
  Scratch scratch;
  const size_t partials_at = scratch.add(sums * k * 9 * c * size);
  const size_t bias_at = scratch.add(bias_sums * k * size);
  scratch.allocate(cuda);
  auto* const partials = static_cast<float*>(scratch.at(partials_at));
  if (!half) return wgrad_tf32(cuda, call, plan, partials);
  ShiftWgrad p = half_problem(call, plan);
  p.partials = partials;
  if (bias) p.bias_sums = static_cast<float*>(scratch.at(bias_at));
  plan.by_rows ? wgrad_rows(cuda, call, p, sums) : wgrad_pairs(cuda, call, p, sums);
  if (bias) sum_bias(cuda, call.dbias, p.bias_sums, bias_sums);
}

}  // namespace gradus
