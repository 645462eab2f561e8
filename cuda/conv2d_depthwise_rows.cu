// Depthwise conv2d on Hopper: launches of conv2d_depthwise_rows.cuh and
// conv2d_depthwise_tensor.cuh.
#include "cuda/conv2d_call.h"
#include "cuda/conv2d_depthwise_plan.h"
#include "cuda/conv2d_depthwise_tensor.cuh"
#include "cuda/tensor_map.h"

namespace gradus {
namespace {

template <class T, int Columns>
void launch(Cuda& cuda, const DepthwiseWalk& p, unsigned blocks) {
  if constexpr (sizeof(T) == 4) {
    launch_overlapping(cuda,
                       {.grid = dim3(blocks),
                        .threads = Columns * 8,
                        .shared_bytes = kDepthwiseRowsShared<T, Columns>},
                       conv2d_depthwise_rows<Columns>, p);
  } else {
    launch_overlapping(cuda,
                       {.grid = dim3(blocks),
                        .threads = kDepthwiseTensorThreads,
                        .shared_bytes = kDepthwiseTensorShared<T, Columns>},
                       conv2d_depthwise_tensor<T, Columns>, p);
  }
}

}  // namespace

void gather_depthwise_rows(Cuda& cuda, const GatherCall& call, const ConvDepthwiseRowsPlan& plan) {
  const auto map = [&](const Image& image, int columns) {
    return image_map({call.dtype}, image.data, image.n, image.h, image.w, image.channels, 1,
                     columns, 128);
  };
  const auto divisor = [](int64_t value) { return FastDivisor(static_cast<uint32_t>(value)); };
  DepthwiseWalk p;
  p.in = map(call.in, plan.columns + 2), p.out = map(call.out, plan.columns);
  p.to = call.out.data;
  p.weights = call.w.data;
  p.bias = call.bias.as<float>();
  p.flipped = call.backward;
  p.channels = static_cast<int>(call.in.channels);
  p.out_h = call.out.h, p.out_w = call.out.w;
  p.pad_h = call.zeros_before(0), p.pad_w = call.zeros_before(1);
  p.rows = static_cast<int>(plan.rows);
  p.row_tiles = divisor(plan.row_tiles), p.column_tiles = divisor(plan.column_tiles);
  p.channel_tiles = divisor(plan.channel_tiles);
  const unsigned blocks = exact_blocks(call.out.n * plan.blocks(), "conv2d");
  visit(TypeList<float, Half, BFloat16>{}, call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    plan.columns == 16 ? launch<T, 16>(cuda, p, blocks) : launch<T, 32>(cuda, p, blocks);
  });
}

}  // namespace gradus
