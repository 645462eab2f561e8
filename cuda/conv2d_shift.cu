// conv2d forward and backward to the input on Hopper with few channels: the launches.
#include "cuda/conv2d_shift.cuh"

#include "cuda/conv2d_call.h"
#include "cuda/conv2d_shift_plan.h"
#include "cuda/conv2d_wgmma_kernels.h"
#include "cuda/tensor_map.h"

namespace gradus {
namespace {

template <class T, int RowBytes, int Positions>
void launch(Cuda& cuda, const Shift& p, const ShiftPlan& plan) {
  const int blocks = std::min(p.tiles, cuda.info().multiprocessors);
  launch_overlapping(cuda,
                     {dim3(static_cast<unsigned>(blocks)), kShiftThreads,
                      static_cast<size_t>(plan.shared_bytes())},
                     conv2d_shift<T, RowBytes, Positions>, p);
}

template <class T, int RowBytes>
void launch(Cuda& cuda, const Shift& p, const ShiftPlan& plan) {
  switch (plan.positions) {
    case 112:
      return launch<T, RowBytes, 112>(cuda, p, plan);
    case 136:
      return launch<T, RowBytes, 136>(cuda, p, plan);
    default:
      return launch<T, RowBytes, 224>(cuda, p, plan);
  }
}

template <class T>
void launch_half(Cuda& cuda, const Shift& p, const ShiftPlan& plan) {
  plan.row_bytes == 64 ? launch<T, 64>(cuda, p, plan) : launch<T, 128>(cuda, p, plan);
}

// The weights as [columns, taps, channels].
void pack_weights(Cuda& cuda, const GatherCall& call, const ShiftPlan& plan, void* to) {
  WgmmaWeights pack;
  pack.from = call.w.data;
  pack.to = to;
  pack.out = static_cast<int>(call.out.channels);
  pack.in = static_cast<int>(call.in.channels);
  pack.kernel_h = static_cast<int>(call.window.kernel[0]);
  pack.kernel_w = static_cast<int>(call.window.kernel[1]);
  pack.backward = call.backward;
  pack.parts[0] = {plan.h.taps,
                   plan.h.tap_first,
                   plan.h.tap_step,
                   plan.w.taps,
                   plan.w.tap_first,
                   plan.w.tap_step,
                   0};
  pack_wgmma_weights(cuda, call.dtype, pack);
}

}  // namespace

void gather_shift(Cuda& cuda, const GatherCall& call) {
  const ShiftPlan plan = plan_shift(call.problem());
  const int64_t depth = call.taps() * call.in.channels;
  void* const weights =
      cuda.workspace(static_cast<size_t>(call.out.channels * depth * size_of(call.dtype)));
  pack_weights(cuda, call, plan, weights);

  Shift p;
  const MapElement element{call.dtype, call.dtype == DType::f32};
  p.in = image_map(element, call.in.data, call.in.n, call.in.h, call.in.w, call.in.channels,
                   plan.box_rows, plan.pitch, plan.row_bytes);
  p.weights = box_map(element, weights, call.out.channels, depth, 64, plan.row_bytes);
  p.out = image_map({call.dtype}, call.out.data, call.out.n, call.out.h, call.out.w,
                    call.out.channels, plan.rows, plan.pitch, 128);
  if (call.dtype == DType::f32) p.direct = static_cast<float*>(call.out.data);
  p.bias = call.bias.as<float>();
  p.channels = static_cast<int>(call.in.channels);
  p.columns = static_cast<int>(call.out.channels);
  p.slices = plan.slices;
  p.taps_h = plan.h.taps, p.taps_w = plan.w.taps;
  p.step_h = plan.h.step, p.step_w = plan.w.step;
  p.shift_h = plan.h.shift, p.shift_w = plan.w.shift;
  p.out_h = call.out.h, p.out_w = call.out.w;
  p.rows = plan.rows, p.pitch = plan.pitch;
  p.box_rows = plan.box_rows, p.row_tiles = plan.row_tiles;
  p.tiles = static_cast<int>(call.out.n * plan.row_tiles);
  p.weight_bytes = plan.weight_bytes, p.stage_bytes = plan.stage_bytes, p.stages = plan.stages;
  if (call.dtype == DType::bf16) {
    launch_half<BFloat16>(cuda, p, plan);
  } else if (call.dtype == DType::f16) {
    launch_half<Half>(cuda, p, plan);
  } else {
    launch<float, 128>(cuda, p, plan);
  }
}

}  // namespace gradus
