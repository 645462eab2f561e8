// Depthwise conv2d on CUDA: launches of conv2d_depthwise.cuh.
#include "cuda/conv2d_depthwise.cuh"

#include "cuda/conv2d_call.h"
#include "cuda/launch_kernel.cuh"

namespace gradus {
namespace {

constexpr int kThreads = ConvDirectPlan::kThreads;
using DepthwiseTypes = TypeList<float, Half, BFloat16>;

FastDivisor divisor(int64_t value) { return FastDivisor(static_cast<uint32_t>(value)); }

template <class T, int Stride>
void gather(Cuda& cuda, Depthwise p, int64_t images) {
  constexpr int kStrip = 4;
  const int64_t packs = p.channels / kFullPack<T>, strips = ceil_div(p.out_w, kStrip);
  const int64_t row_groups = ceil_div(p.out_h, p.rows);
  p.packs = divisor(packs), p.strips = divisor(strips), p.row_groups = divisor(row_groups);
  p.items = packs * strips * row_groups * images;
  const size_t shared = sizeof(acc_t<T>) * 9 * static_cast<size_t>(p.channels);
  launch_kernel(cuda, {dim3(exact_blocks(ceil_div(p.items, kThreads), "conv2d")), kThreads, shared},
                conv2d_depthwise<T, 3, 3, Stride, kStrip>, p);
}

template <class T, int Stride>
void wgrad(Cuda& cuda, DepthwiseWgrad p, int64_t images, const Image& x, const AnyView& dw) {
  constexpr int kStrip = 4;
  const int64_t packs = p.channels / kFullPack<T>, strips = ceil_div(p.out_w, kStrip);
  p.lanes = static_cast<int>(std::min<int64_t>(packs, 32));
  p.strips = divisor(strips), p.rows = divisor(p.out_h);
  p.items = strips * p.out_h * images;
  const int64_t tiles = ceil_div(packs, p.lanes);
  const Chunks slices = plan_conv_depthwise_wgrad(dtype_of<T>, p.items, tiles);
  p.items_per_slice = slices.size;
  p.partials =
      cuda.workspace(static_cast<size_t>(slices.count * p.channels * 9) * sizeof(acc_t<T>));
  if (slices.count > 0) {
    const dim3 grid(exact_blocks(slices.count, "conv2d"), static_cast<unsigned>(tiles));
    launch_kernel(cuda, {grid, kThreads}, conv2d_depthwise_wgrad<T, 3, 3, Stride, kStrip>, p);
  }
  sum_slices(cuda, dw.dtype, {p.partials, dw.data, slices.count, x.channels, 1, 1, 9});
}

}  // namespace

void gather_depthwise(Cuda& cuda, const GatherCall& call) {
  Depthwise p;
  p.in = call.in.data;
  p.weights = call.w.data;
  p.bias = call.bias.data;
  p.out = call.out.data;
  p.channels = call.groups;
  p.in_h = call.in.h, p.in_w = call.in.w;
  p.out_h = call.out.h, p.out_w = call.out.w;
  p.flipped = call.backward;
  const auto pad = [&](size_t i) {
    const int padding = static_cast<int>(call.window.padding[i]);
    return call.backward ? 2 - padding : padding;
  };
  p.pad_h = pad(0), p.pad_w = pad(1);
  p.rows = plan_conv_depthwise_rows(call.dtype);
  visit(DepthwiseTypes{}, call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    call.window.stride[0] == 1 || call.backward ? gather<T, 1>(cuda, p, call.out.n)
                                                : gather<T, 2>(cuda, p, call.out.n);
  });
}

void wgrad_depthwise(Cuda& cuda, const WgradCall& call) {
  DepthwiseWgrad p;
  p.x = call.x.data;
  p.dy = call.dy.data;
  p.channels = call.groups;
  p.in_h = call.x.h, p.in_w = call.x.w;
  p.out_h = call.dy.h, p.out_w = call.dy.w;
  p.pad_h = static_cast<int>(call.window.padding[0]);
  p.pad_w = static_cast<int>(call.window.padding[1]);
  visit(DepthwiseTypes{}, call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    call.window.stride[0] == 1 ? wgrad<T, 1>(cuda, p, call.x.n, call.x, call.dw)
                               : wgrad<T, 2>(cuda, p, call.x.n, call.x, call.dw);
  });
}

}  // namespace gradus
