// conv2d backward to the weights and the bias: the launches of the direct and the implicit-GEMM
// path.
#include "cuda/conv2d_call.h"

namespace gradus {
namespace {

// Sums of dy (columns 1, x null) or of dy · x over slices of pixels, then over the slices.
void sum_direct(Cuda& cuda, DType dtype, DirectWgrad p, const Image& dy, const AnyView& out) {
  p.dy = dy.data;
  p.dy_strides = dy.strides();
  p.k = static_cast<int>(dy.channels);
  const int64_t pixels = p.gather.out.pixels;
  const auto lanes = plan_conv_direct(p.k, p.k_per_group, direct_pack(dtype), dy.pixel_major);
  p.vector_dy = dy.has_packs(lanes.per_thread, size_of(dtype));
  const Chunks chunks = plan_conv_direct_sum(pixels, lanes);
  const DType acc = acc_dtype(dtype);
  void* partials =
      cuda.workspace(static_cast<size_t>(chunks.count * p.k * p.columns * size_of(acc)));
  p.partials = partials;
  if (chunks.count > 0) direct_wgrad(cuda, dtype, p, lanes, chunks);
  sum_slices(cuda, out.dtype, {partials, out.data, chunks.count, p.k, p.columns, p.columns, 1});
}

}  // namespace

void wgrad_direct(Cuda& cuda, const WgradCall& call) {
  DirectWgrad p;
  p.gather = call.gather();
  p.x = call.x.data;
  p.x_strides = call.x.strides();
  p.c_per_group = call.c_per_group();
  p.k_per_group = call.k_per_group();
  p.columns = p.c_per_group * call.taps();
  sum_direct(cuda, call.dtype, p, call.dy, call.dw);
}

void bias_grad(Cuda& cuda, const WgradCall& call, const AnyView& dbias) {
  DirectWgrad p;
  p.gather.out = pixel_grid(call.dy);
  p.k_per_group = static_cast<int>(call.dy.channels);
  sum_direct(cuda, call.dtype, p, call.dy, dbias);
}

void wgrad_gemm(Cuda& cuda, const WgradCall& call) {
  const int64_t size = size_of(call.dtype);
  WgradGemm p;
  p.gather = call.gather();
  p.groups = call.groups;
  p.channels = padded_channels(call.x, call.groups, call.dtype);
  p.dy_channels = padded_channels(call.dy, call.groups, call.dtype);
  p.rows = call.k_per_group();
  p.depth = p.channels * call.taps();
  const bool tensor = call.math() == ConvMath::tensor;
  const auto plan = plan_conv_wgrad(call.math(), p.gather.out.pixels, p.rows, p.depth, p.groups,
                                    call.tile, call.rounds);

  const bool x_ready = is_ready(call.x, call.groups, p.channels);
  const bool dy_ready = is_ready(call.dy, call.groups, p.dy_channels);
  Scratch scratch;
  const size_t partials = scratch.add(plan.chunks.count * p.groups * p.rows * int64_t{p.depth} *
                                      size_of(acc_dtype(call.dtype)));
  const auto room = [&](const Image& image, bool ready, int channels) {
    return scratch.add(ready ? 0 : image.n * image.pixels() * p.groups * int64_t{channels} * size);
  };
  const size_t x = room(call.x, x_ready, p.channels);
  const size_t dy = room(call.dy, dy_ready, p.dy_channels);
  scratch.allocate(cuda);
  p.partials = scratch.at(partials);
  p.x = x_ready ? call.x.data : scratch.at(x);
  p.dy = dy_ready ? call.dy.data : scratch.at(dy);

  if (plan.chunks.count > 0) {
    if (!x_ready) {
      to_pixel_major(cuda, call.dtype, call.x, call.groups, p.channels, scratch.at(x));
    }
    if (!dy_ready) {
      to_pixel_major(cuda, call.dtype, call.dy, call.groups, p.dy_channels, scratch.at(dy));
    }
    visit(Floating{}, call.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      if constexpr (!std::is_same_v<T, double>) {
        if (tensor) return wgrad_gemm_tensor<T>(cuda, p, plan);
      }
      if constexpr (std::is_same_v<T, acc_t<T>>) wgrad_gemm_plain<T>(cuda, p, plan);
    });
  }
  sum_slices(cuda, call.dw.dtype,
             {p.partials, call.dw.data, plan.chunks.count, int64_t{p.groups} * p.rows,
              call.c_per_group(), p.channels, call.taps()});
}

}  // namespace gradus
