// conv2d backward to the weights by the direct and the implicit-GEMM path, and to the bias.
#include "core/ops/sum.h"
#include "cuda/conv2d_call.h"

namespace gradus {

void wgrad_direct(Cuda& cuda, const WgradCall& call) {
  DirectWgrad p;
  p.gather = call.gather();
  p.x = call.x.data;
  p.x_strides = call.x.strides();
  p.dy = call.dy.data;
  p.dy_strides = call.dy.strides();
  p.k = static_cast<int>(call.dy.channels);
  p.c_per_group = call.c_per_group();
  p.k_per_group = call.k_per_group();
  p.columns = p.c_per_group * call.taps();
  const auto lanes =
      plan_conv_direct(p.k, p.k_per_group, direct_pack(call.dtype), call.dy.pixel_major);
  p.vector_dy = call.dy.has_packs(lanes.per_thread, size_of(call.dtype));
  const Chunks chunks = plan_conv_direct_sum(p.gather.out.pixels, lanes);
  const int64_t sums = chunks.count * p.k * p.columns;
  p.partials = cuda.workspace(static_cast<size_t>(sums * size_of(acc_dtype(call.dtype))));
  direct_wgrad(cuda, call.dtype, p, lanes, chunks);
  sum_slices(cuda, call.dw.dtype,
             {p.partials, call.dw.data, chunks.count, p.k, p.columns, p.columns, 1});
}

void bias_grad(Cuda& cuda, const WgradCall& call) {
  const Image& dy = call.dy;
  const int64_t c = dy.channels, pixels = dy.pixels();
  const AnyView values{.data = dy.data,
                       .dtype = call.dtype,
                       .device = call.dbias.device,
                       .given = true,
                       .shape = {dy.n, c, pixels},
                       .strides = {c * pixels, dy.channel_stride(), dy.pixel_stride()}};
  AnyView sums = call.dbias;
  sums.shape = {1, c, 1};
  sums.strides = strides_of(sums.shape);
  run(cuda, Sum{.x = values, .y = sums});
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

  if (!x_ready) to_pixel_major(cuda, call.dtype, call.x, call.groups, p.channels, scratch.at(x));
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
  sum_slices(cuda, call.dw.dtype,
             {p.partials, call.dw.data, plan.chunks.count, int64_t{p.groups} * p.rows,
              call.c_per_group(), p.channels, call.taps()});
}

}  // namespace gradus
