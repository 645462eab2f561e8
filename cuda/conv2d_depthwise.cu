// Depthwise conv2d on CUDA: launches of conv2d_depthwise.cuh and conv2d_depthwise_wgrad.cuh.
#include "cuda/conv2d_call.h"
#include "cuda/conv2d_depthwise_wgrad.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {
namespace {

using DepthwiseTypes = TypeList<float, Half, BFloat16>;

DepthwiseShape depthwise_shape(const Image& in, const Image& out, const ConvDepthwisePlan& plan) {
  const auto divisor = [](int64_t value) { return FastDivisor(static_cast<uint32_t>(value)); };
  DepthwiseShape p;
  p.channels = static_cast<int>(in.channels);
  p.in_h = in.h, p.in_w = in.w;
  p.out_h = out.h, p.out_w = out.w;
  p.columns = plan.strips * plan.strip;
  p.height = divisor(out.h);
  p.row_tiles = divisor(plan.row_tiles);
  p.column_tiles = divisor(plan.column_tiles), p.channel_tiles = divisor(plan.channel_tiles);
  p.rows = out.n * out.h;
  p.rows_per_block = plan.rows.size;
  return p;
}

// Bytes of the ring.
template <int Stride>
size_t ring_bytes(int columns) {
  return static_cast<size_t>(kDepthwiseSlots<Stride>) * ((columns - 1) * Stride + 3) *
         kDepthwisePixel;
}

template <class Params, class... Args>
void launch(Cuda& cuda, const ConvDepthwisePlan& plan, size_t shared, void (*kernel)(Params),
            const Args&... args) {
  launch_overlapping(cuda,
                     {.grid = dim3(exact_blocks(plan.blocks(), "conv2d")),
                      .threads = plan.strips * kDepthwiseLanes,
                      .shared_bytes = shared},
                     kernel, args...);
}

template <class T, int Stride>
void gather(Cuda& cuda, const ConvDepthwisePlan& plan, const Depthwise& p) {
  launch(cuda, plan, kDepthwiseFilterBytes + ring_bytes<Stride>(p.shape.columns),
         conv2d_depthwise<T, Stride>, p);
}

template <class T, int Stride, bool Bias>
void wgrad(Cuda& cuda, const ConvDepthwisePlan& plan, const DepthwiseWgrad& p) {
  const size_t dy = static_cast<size_t>(kDepthwiseAhead<Stride> + 1) * p.shape.columns;
  const size_t sums = size_t{9 + Bias} * plan.strips * kDepthwiseLanes * kDepthwisePack<T>;
  launch(cuda, plan,
         std::max(ring_bytes<Stride>(p.shape.columns) + dy * kDepthwisePixel, sums * sizeof(float)),
         conv2d_depthwise_wgrad<T, Stride, Bias>, p);
}

template <class T, int Stride>
void wgrad(Cuda& cuda, const ConvDepthwisePlan& plan, const DepthwiseWgrad& p) {
  p.bias_sums == nullptr ? wgrad<T, Stride, false>(cuda, plan, p)
                         : wgrad<T, Stride, true>(cuda, plan, p);
}

}  // namespace

void gather_depthwise(Cuda& cuda, const GatherCall& call) {
  const ConvProblem problem = call.problem();
  const ConvDepthwiseRowsPlan rows = plan_conv_depthwise_rows(problem);
  const bool loads_filters = call.dtype != DType::f32 || is_aligned(call.w.data);
  if (rows.rows > 0 && loads_filters) return gather_depthwise_rows(cuda, call, rows);
  const ConvDepthwisePlan plan = plan_conv_depthwise(problem);
  Depthwise p{depthwise_shape(call.in, call.out, plan),
              call.in.data,
              call.w.data,
              call.bias.data,
              call.out.data,
              call.backward};
  p.shape.pad_h = call.zeros_before(0), p.shape.pad_w = call.zeros_before(1);
  visit(DepthwiseTypes{}, call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    call.window.stride[0] == 1 || call.backward ? gather<T, 1>(cuda, plan, p)
                                                : gather<T, 2>(cuda, plan, p);
  });
}

void wgrad_depthwise(Cuda& cuda, const WgradCall& call) {
  const ConvDepthwisePlan plan = plan_conv_depthwise(call.problem());
  DepthwiseWgrad p{depthwise_shape(call.x, call.dy, plan), call.x.data, call.dy.data};
  p.shape.pad_h = static_cast<int>(call.window.padding[0]);
  p.shape.pad_w = static_cast<int>(call.window.padding[1]);
  const int64_t slices = plan.rows.count * plan.column_tiles;
  Scratch scratch;
  const int64_t bytes = slices * call.groups * int64_t{sizeof(float)};
  const size_t partials = scratch.add(9 * bytes);
  const size_t bias_sums = scratch.add(call.dbias ? bytes : 0);
  scratch.allocate(cuda);
  p.partials = static_cast<float*>(scratch.at(partials));
  if (call.dbias) p.bias_sums = static_cast<float*>(scratch.at(bias_sums));
  visit(DepthwiseTypes{}, call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    call.window.stride[0] == 1 ? wgrad<T, 1>(cuda, plan, p) : wgrad<T, 2>(cuda, plan, p);
  });
  // All channels are one row of the sums, tap by tap.
  sum_slices(cuda, call.dw.dtype,
             {p.partials, call.dw.data, slices, 1, call.groups, call.groups, 9});
  if (call.dbias) sum_bias(cuda, call.dbias, p.bias_sums, slices);
}

}  // namespace gradus
