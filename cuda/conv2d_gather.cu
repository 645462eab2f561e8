// conv2d forward and backward to the input: the launches of the direct and the implicit-GEMM path.
#include "cuda/conv2d_call.h"

namespace gradus {

void gather_direct(Cuda& cuda, const GatherCall& call) {
  DirectGather p;
  p.gather = call.gather();
  p.in = call.in.data;
  p.weights = call.w.data;
  p.bias = call.bias.data;
  p.out = call.out.data;
  p.in_strides = call.in.strides();
  p.out_strides = call.out.strides();
  p.in_per_group = call.in_per_group();
  p.out_per_group = call.out_per_group();
  p.out_channels = static_cast<int>(call.out.channels);
  const int64_t taps = call.taps();
  p.weight_group = taps * p.in_per_group * p.out_per_group;
  p.weight_out = call.backward ? taps : taps * p.in_per_group;
  p.weight_in = call.backward ? taps * p.out_per_group : taps;
  const auto lanes = plan_conv_direct(call.out.channels, p.out_per_group, direct_pack(call.dtype),
                                      call.out.pixel_major);
  p.vector_out = call.out.has_packs(lanes.per_thread, size_of(call.dtype));
  direct_gather(cuda, call.dtype, p, lanes, call.divided());
}

void gather_gemm(Cuda& cuda, const GatherCall& call) {
  const int64_t size = size_of(call.dtype);
  const int padded = padded_channels(call.in, call.groups, call.dtype);
  const bool in_ready = is_ready(call.in, call.groups, padded);
  Scratch scratch;
  const size_t weights = scratch.add(call.out.channels * call.taps() * padded * size);
  const size_t in = scratch.add(
      in_ready ? 0 : call.in.n * call.in.pixels() * call.groups * int64_t{padded} * size);
  const size_t out = scratch.add(
      call.out.pixel_major ? 0 : call.out.n * call.out.pixels() * call.out.channels * size);
  scratch.allocate(cuda);

  const bool tensor = call.math() == ConvMath::tensor;
  GatherGemm p;
  p.gather = call.gather();
  p.in = in_ready ? call.in.data : scratch.at(in);
  p.weights = scratch.at(weights);
  p.bias = call.bias.data;
  p.out = call.out.pixel_major ? call.out.data : scratch.at(out);
  p.groups = call.groups;
  p.channels = padded;
  p.columns = call.out_per_group();
  p.depth = padded * call.taps();
  p.vector_out = is_aligned(p.out) && p.columns * size % 16 == 0;

  if (!in_ready) {
    to_pixel_major(cuda, call.dtype, call.in, call.groups, padded, scratch.at(in));
  }
  pack_weights(cuda, call.dtype,
               {call.w.data, scratch.at(weights), call.groups, p.columns, call.in_per_group(),
                padded, call.taps(), call.backward, tensor});
  const ConvTile tile =
      call.tile != ConvTile{}
          ? call.tile
          : plan_conv_gather(call.math(), p.gather.out.pixels, p.columns, p.groups, call.divided());
  visit(Floating{}, call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (!std::is_same_v<T, double>) {
      if (tensor) return gather_gemm_tensor<T>(cuda, p, tile, call.divided());
    }
    if constexpr (std::is_same_v<T, acc_t<T>>) {
      gather_gemm_plain<T>(cuda, p, tile, call.divided());
    }
  });
  if (!call.out.pixel_major) from_pixel_major(cuda, call.dtype, p.out, call.out);
}

}  // namespace gradus
