// The gradient of first layers' inputs on CUDA: launches of conv2d_first_input.cuh and
// conv2d_first_input_tensor.cuh.
#include "cuda/conv2d_first_input_tensor.cuh"

#include "cuda/conv2d_call.h"
#include "cuda/launch_kernel.cuh"

namespace gradus {
namespace {

template <class Problem>
Problem first_input(const GatherCall& call) {
  const Image &dy = call.in, &dx = call.out;
  Problem p;
  p.dy = dy.data, p.weights = call.w.data, p.dx = dx.data;
  p.dy_h = dy.h, p.dy_w = dy.w, p.dx_h = dx.h, p.dx_w = dx.w;
  p.k = static_cast<int>(dy.channels);
  p.pad_h = static_cast<int>(call.window.padding[0]);
  p.pad_w = static_cast<int>(call.window.padding[1]);
  return p;
}

// Strict f32 of many channels, or of short sums.
void input_plain(Cuda& cuda, const GatherCall& call) {
  using Tile = FirstInputTile;
  const Image& dx = call.out;
  auto p = first_input<FirstInputPlain>(call);
  const int64_t rows = ceil_div(dx.h, Tile::kRows), columns = ceil_div(dx.w, Tile::kColumns);
  p.row_tiles = FastDivisor(static_cast<uint32_t>(rows));
  p.column_tiles = FastDivisor(static_cast<uint32_t>(columns));
  const size_t shared = static_cast<size_t>(conv_first_input_shared(call.problem()));
  const LaunchShape shape{dim3(exact_blocks(dx.n * rows * columns, "conv2d")), 128, shared};
  switch (dx.channels) {
    case 1:
      return launch_kernel(cuda, shape, conv2d_first_input<1>, p);
    case 3:
      return launch_kernel(cuda, shape, conv2d_first_input<3>, p);
    default:
      return launch_kernel(cuda, shape, conv2d_first_input<4>, p);
  }
}

template <class T, bool Split, int Channels>
void input_tensor(Cuda& cuda, const FirstInputTensor& p, const LaunchShape& shape) {
  constexpr int kLeast = static_cast<int>(sizeof(T));  // steps of up to 32 channels
  launch_kernel(cuda, shape,
                p.k <= 32 ? conv2d_first_input_tensor<T, Channels, kLeast, Split>
                          : conv2d_first_input_tensor<T, Channels, 2 * kLeast, Split>,
                p);
}

template <class T, bool Split>
void input_tensor(Cuda& cuda, const FirstInputTensor& p, const LaunchShape& shape, int channels) {
  switch (channels) {
    case 1:
      return input_tensor<T, Split, 1>(cuda, p, shape);
    case 3:
      return input_tensor<T, Split, 3>(cuda, p, shape);
    default:
      return input_tensor<T, Split, 4>(cuda, p, shape);
  }
}

void input_tensor(Cuda& cuda, const GatherCall& call) {
  const FirstInputPlan plan = plan_first_input(call.problem());
  const Image &dy = call.in, &dx = call.out;
  auto p = first_input<FirstInputTensor>(call);
  p.rows = static_cast<int>(plan.rows), p.segment_rows = static_cast<int>(plan.segment_rows);
  p.z_bytes = static_cast<int>(plan.z_bytes);
  p.segments = FastDivisor(static_cast<uint32_t>(plan.segments));
  p.dy_width = FastDivisor(static_cast<uint32_t>(dy.w));
  p.dx_width = FastDivisor(static_cast<uint32_t>(dx.w));
  const LaunchShape shape{.grid = dim3(exact_blocks(dx.n * plan.segments, "conv2d")),
                          .threads = 256,
                          .shared_bytes = static_cast<size_t>(plan.shared)};
  const int channels = static_cast<int>(dx.channels);
  if (call.math() == ConvMath::f32) return input_tensor<float, true>(cuda, p, shape, channels);
  visit(TypeList<float, Half, BFloat16>{}, call.dtype, [&](auto type) {
    input_tensor<typename decltype(type)::type, false>(cuda, p, shape, channels);
  });
}

}  // namespace

void gather_first_input(Cuda& cuda, const GatherCall& call) {
  plan_first_input(call.problem()).shared > 0 ? input_tensor(cuda, call) : input_plain(cuda, call);
}

}  // namespace gradus
