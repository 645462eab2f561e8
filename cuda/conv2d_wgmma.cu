// conv2d on Hopper: how its problems become tiles, parts and descriptions for the copy engine.
#include <algorithm>

#include "cuda/conv2d_call.h"
#include "cuda/conv2d_wgmma_kernels.h"
#include "cuda/tensor_map.h"

namespace gradus {
namespace {

// One part of a window: the same pixels along both axes.
struct WindowPart {
  ConvAxisPart h, w;
  int taps() const { return h.taps * w.taps; }
};

// Most taps first, so that the last tiles to start are short.
std::vector<WindowPart> window_parts(const GatherCall& call) {
  if (!call.backward) {
    return {{forward_part(call.window, 0, call.out.h), forward_part(call.window, 1, call.out.w)}};
  }
  std::vector<WindowPart> parts;
  for (const ConvAxisPart& h : backward_parts(call.window, 0, call.out.h)) {
    for (const ConvAxisPart& w : backward_parts(call.window, 1, call.out.w))
      parts.push_back({h, w});
  }
  std::ranges::stable_sort(parts, std::greater<>(), &WindowPart::taps);
  return parts;
}

WgmmaAxis axis_of(const ConvAxisPart& part) {
  return {part.taps, part.scale, part.shift, part.step};
}
MapAxis read_axis(const ConvAxisPart& part, int extent, int64_t stride) {
  return {extent, part.positions, part.shift, part.scale, stride};
}
MapAxis written_axis(const ConvAxisPart& part, int64_t stride) {
  return {part.positions, part.positions, 0, 1, part.stride * stride};
}
PixelGrid grid_of(int64_t images, const ConvAxisPart& h, const ConvAxisPart& w) {
  return {images * h.positions * w.positions, FastDivisor(static_cast<uint32_t>(h.positions)),
          FastDivisor(static_cast<uint32_t>(w.positions))};
}

// Where the operands of a call are, once they are channels-last.
struct Operands {
  const void* in = nullptr;
  char* weights = nullptr;
  char* out = nullptr;
};

// Describes every part to the copy engine and has its weights packed.
WgmmaGather describe(Cuda& cuda, const GatherCall& call, const Operands& at, WgmmaTile tile,
                     bool split) {
  const int64_t size = size_of(call.dtype), in = call.in.channels, out = call.out.channels;
  const int halves = split ? 2 : 1;
  WgmmaGather p;
  p.bias = call.bias.as<float>();
  p.channels = static_cast<int>(in);
  p.columns = static_cast<int>(out);
  p.images = static_cast<int>(call.in.n);
  p.row_tiles = static_cast<int>(ceil_div(out, tile.rows));
  p.part_count = 0;
  WgmmaWeights pack;
  pack.from = call.w.data;
  pack.to = at.weights;
  pack.out = p.columns;
  pack.in = p.channels;
  pack.kernel_h = static_cast<int>(call.window.kernel[0]);
  pack.kernel_w = static_cast<int>(call.window.kernel[1]);
  pack.backward = call.backward;
  pack.split = split;
  const MapElement element{call.dtype, call.dtype == DType::f32 && !split};
  int64_t offset = 0;  // elements of the weights before this part's
  for (const auto& [h, w] : window_parts(call)) {
    WgmmaPart& part = p.parts[p.part_count];
    pack.parts[p.part_count++] = {h.taps,      h.tap_first, h.tap_step, w.taps,
                                  w.tap_first, w.tap_step,  offset};
    const int64_t depth = h.taps * w.taps * in, row = call.out.w * out;
    part.h = axis_of(h), part.w = axis_of(w);
    part.grid = grid_of(call.in.n, h, w);
    part.in = run_map(element, at.in, halves * call.in.n, call.in.pixels() * in,
                      read_axis(h, call.in.h, call.in.w * in), read_axis(w, call.in.w, in), in,
                      tile.columns);
    part.weights = box_map(element, at.weights + offset * size, halves * out, depth, tile.rows);
    part.out = run_map({call.dtype}, at.out + (h.first * row + w.first * out) * size, call.in.n,
                       call.out.h * row, written_axis(h, row), written_axis(w, out), out,
                       static_cast<int>(128 / size));
    part.first_tile = p.tiles;
    p.tiles += p.row_tiles * ceil_div(part.grid.pixels, tile.columns);
    offset += halves * out * depth;
  }
  pack.part_count = p.part_count;
  pack_wgmma_weights(cuda, call.dtype, pack);
  return p;
}

}  // namespace

void gather_wgmma(Cuda& cuda, const GatherCall& call) {
  const bool split = call.math() == ConvMath::f32;
  const int64_t size = size_of(call.dtype), halves = split ? 2 : 1;
  const auto channels = static_cast<int>(call.in.channels);
  const bool in_ready = is_ready(call.in, 1, channels);
  const bool out_ready = is_ready(call.out, 1, static_cast<int>(call.out.channels));
  Scratch scratch;
  const size_t weights = scratch.add(halves * call.out.channels * call.taps() * channels * size);
  const size_t copy = scratch.add(in_ready ? 0 : call.in.numel() * size);
  const size_t parts = scratch.add(split ? 2 * call.in.numel() * size : 0);
  const size_t out = scratch.add(out_ready ? 0 : call.out.numel() * size);
  scratch.allocate(cuda);

  if (!in_ready) to_pixel_major(cuda, call.dtype, call.in, 1, channels, scratch.at(copy));
  Operands at{in_ready ? call.in.data : scratch.at(copy), static_cast<char*>(scratch.at(weights)),
              static_cast<char*>(out_ready ? call.out.data : scratch.at(out))};
  if (split) {
    auto* const both = static_cast<float*>(scratch.at(parts));
    split_f32(cuda, static_cast<const float*>(at.in), both, call.in.numel());
    at.in = both;
  }
  const WgmmaTile tile =
      call.tile != ConvTile{}
          ? WgmmaTile{call.tile.rows, call.tile.columns}
          : plan_wgmma_gather(call.math(), call.out.n * call.out.pixels(), call.out.channels);
  const WgmmaGather p = describe(cuda, call, at, tile, split);
  if (call.dtype == DType::bf16) {
    wgmma_gather<BFloat16>(cuda, p, tile, split);
  } else if (call.dtype == DType::f16) {
    wgmma_gather<Half>(cuda, p, tile, split);
  } else {
    wgmma_gather<float>(cuda, p, tile, split);
  }
  if (!out_ready) from_pixel_major(cuda, call.dtype, at.out, call.out);
}

// Operands as they are, or copied to channels-last.
void wgrad_wgmma(Cuda& cuda, const WgradCall& call) {
  const int64_t size = size_of(call.dtype), c = call.x.channels, k = call.dy.channels;
  const auto h = forward_part(call.window, 0, call.dy.h),
             w = forward_part(call.window, 1, call.dy.w);
  WgmmaWgrad p;
  p.grid = grid_of(call.x.n, h, w);
  p.h = axis_of(h), p.w = axis_of(w);
  p.channels = static_cast<int>(c);
  p.rows = static_cast<int>(k);
  p.depth = p.channels * call.taps();
  const WgmmaWgradPlan plan =
      plan_wgmma_wgrad(call.dtype, call.math(), p.grid.pixels, p.rows, p.depth,
                       WgmmaTile{call.tile.rows, call.tile.columns}, call.rounds);
  p.row_tiles = static_cast<int>(ceil_div(p.rows, plan.tile.rows));
  p.column_tiles = static_cast<int>(ceil_div(p.depth, plan.tile.columns));
  p.slice_size = plan.chunks.size;

  const bool x_ready = is_ready(call.x, 1, p.channels), dy_ready = is_ready(call.dy, 1, p.rows);
  Scratch scratch;
  const size_t partials = scratch.add(plan.chunks.count * k * p.depth * int64_t{sizeof(float)});
  const size_t x_copy = scratch.add(x_ready ? 0 : call.x.numel() * size);
  const size_t dy_copy = scratch.add(dy_ready ? 0 : call.dy.numel() * size);
  scratch.allocate(cuda);
  if (!x_ready) to_pixel_major(cuda, call.dtype, call.x, 1, p.channels, scratch.at(x_copy));
  if (!dy_ready) to_pixel_major(cuda, call.dtype, call.dy, 1, p.rows, scratch.at(dy_copy));

  const MapElement element{call.dtype, call.dtype == DType::f32 && !plan.split};
  const int run = static_cast<int>(128 / size);
  p.x = run_map(element, x_ready ? call.x.data : scratch.at(x_copy), call.x.n, call.x.pixels() * c,
                read_axis(h, call.x.h, call.x.w * c), read_axis(w, call.x.w, c), c, run);
  p.dy = box_map(element, dy_ready ? call.dy.data : scratch.at(dy_copy), p.grid.pixels, k, run);
  p.partials = static_cast<float*>(scratch.at(partials));
  wgmma_wgrad(cuda, call.dtype, p, plan);
  sum_slices(
      cuda, call.dw.dtype,
      {p.partials, call.dw.data, plan.chunks.count, p.rows, p.channels, p.channels, call.taps()});
}

}  // namespace gradus
