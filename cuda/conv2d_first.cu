// conv2d's first layers on CUDA: launches of conv2d_first.cuh and what builds on it.
#include "cuda/conv2d_call.h"
#include "cuda/conv2d_first_plain.cuh"
#include "cuda/conv2d_first_single.cuh"
#include "cuda/conv2d_first_wgrad.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {
namespace {

FirstConv first_conv(const Image& x, const Image& y, const Window& window, const HaloTile& tile) {
  FirstConv p;
  p.x = x.data;
  p.x_strides = x.strides();
  p.images = static_cast<int>(x.n);
  p.in_h = x.h, p.in_w = x.w;
  p.out_h = y.h, p.out_w = y.w;
  p.k = static_cast<int>(y.channels);
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  p.scale_h = number(window.stride[0]), p.scale_w = number(window.stride[1]);
  p.shift_h = -number(window.padding[0]), p.shift_w = -number(window.padding[1]);
  p.step_h = number(window.dilation[0]), p.step_w = number(window.dilation[1]);
  p.taps_h = number(window.kernel[0]), p.taps_w = number(window.kernel[1]);
  p.tile = tile;
  p.tile_width = FastDivisor(static_cast<uint32_t>(y.w));
  p.halo_width = FastDivisor(static_cast<uint32_t>(tile.halo_columns));
  const int row_tiles = number(ceil_div(y.h, tile.rows));
  p.row_tiles = FastDivisor(static_cast<uint32_t>(row_tiles));
  p.tiles = p.images * row_tiles;
  p.positions = FastDivisor(static_cast<uint32_t>(p.taps_h * p.taps_w * x.channels));
  p.window = number(conv_first_window(x.channels, window, tile));
  return p;
}

template <class T, int Channels>
void forward(Cuda& cuda, const FirstConv& p) {
  constexpr int kPixels = (Channels == 1 ? 16 : 32) / kFullPack<T>;
  const size_t shared = sizeof(acc_t<T>) * Channels *
                        (static_cast<size_t>(p.taps_h) * p.taps_w * p.k +
                         static_cast<size_t>(p.tile.halo_rows) * p.tile.halo_columns);
  launch_kernel(cuda, {dim3(stepping_blocks(p.tiles, 1, kConvBlocks)), 256, shared},
                conv2d_first_forward<T, Channels, kPixels>, p);
}

// Bytes of shared memory of the kernels on tensor cores: weights of `columns` channels, the table,
// tiles of x.
template <class T, int Steps>
size_t tensor_shared(const FirstConv& p, int columns, size_t tiles, size_t channels) {
  return sizeof(uint32_t) * kFirstPitch<Steps> * static_cast<size_t>(columns) +
         sizeof(int) * static_cast<size_t>(p.tile.pixels()) +
         tiles * sizeof(T) * channels * static_cast<size_t>(p.tile.halo_pixels());
}

template <class T, int Channels, int Steps>
void forward_tensor(Cuda& cuda, const FirstConv& p) {
  constexpr int N = 4, kParts = 2, kColumns = N * 8 * kParts;
  const int64_t tiles = ceil_div(p.k, kColumns);
  // Two blocks for each multiprocessor: those that run at a time.
  const int64_t blocks = std::max<int64_t>(1, 2 * kHaloProcessors / tiles);
  launch_overlapping(
      cuda,
      {.grid = dim3(stepping_blocks(p.tiles, 1, blocks), static_cast<unsigned>(tiles)),
       .threads = 256,
       .shared_bytes = tensor_shared<T, Steps>(p, kColumns, 2, Channels)},
      conv2d_first_tensor<T, Channels, N, Steps, kParts>, p);
}

template <class T>
void forward_single(Cuda& cuda, const FirstConv& p) {
  constexpr int kSteps = kFirstPositions * static_cast<int>(sizeof(T)) / 64;
  const auto channel_tiles = static_cast<unsigned>(ceil_div(p.k, 32));
  launch_overlapping(cuda,
                     {.grid = dim3(exact_blocks(p.tiles, "conv2d"), channel_tiles),
                      .threads = 256,
                      .shared_bytes = tensor_shared<T, kSteps>(p, 32, 1, 1)},
                     conv2d_first_single<T, kSteps>, p);
}

// A block for each slice and K channels, with room for their tiles or their sums.
template <class T, int Channels, int K>
LaunchShape wgrad_shape(const Cuda& cuda, const FirstConv& p, int64_t slices, int64_t sums) {
  using Tiles = FirstWgradTiles<T, Channels, K>;
  const int64_t pixels =
      ceil_div(int64_t{p.tile.rows} * p.out_w, Tiles::kPixels) * int64_t{Tiles::kPixels};
  const int64_t tiles =
      pixels * (2 * int64_t{Tiles::Dy::kPitch} + int64_t{sizeof(int)}) +
      int64_t{sizeof(T)} * (2 * int64_t{Channels} * p.tile.halo_pixels() + p.window);
  // A multiprocessor has two blocks. Where there were room for a third, the next launch's first
  // blocks, which start before this one ends, would lie three on some and one on others.
  const int64_t place = cuda.has_hopper_features() ? kMostShared / 3 + 1 : 0;
  return {.grid = dim3(exact_blocks(slices, "conv2d"), static_cast<unsigned>(ceil_div(p.k, K))),
          .threads = 256,
          .shared_bytes = static_cast<size_t>(std::max({tiles, sums, place}))};
}

template <class T, int Channels, int Parts, int N>
void wgrad(Cuda& cuda, const FirstConv& p, int64_t slices) {
  const int64_t sums =
      int64_t{sizeof(float)} * 8 / Parts * FirstWgradProduct<T, Channels, Parts, N>::kSums;
  launch_overlapping(cuda, wgrad_shape<T, Channels, 32 * Parts>(cuda, p, slices, sums),
                     p.bias_sums == nullptr ? conv2d_first_wgrad<T, Channels, Parts, N, false>
                                            : conv2d_first_wgrad<T, Channels, Parts, N, true>,
                     p);
}

// The tensor-core kernel for the positions (r, s, c), at most 40.
template <class T, int Channels, int Parts>
void wgrad_tensor(Cuda& cuda, const FirstConv& p, int64_t slices) {
  const int positions = static_cast<int>(p.positions.divisor);
  if constexpr (Channels == 1) {
    if (positions <= 16) return wgrad<T, Channels, Parts, 2>(cuda, p, slices);
  }
  positions <= 32 ? wgrad<T, Channels, Parts, 4>(cuda, p, slices)
                  : wgrad<T, Channels, Parts, 5>(cuda, p, slices);
}

template <int Channels>
void wgrad_plain(Cuda& cuda, const FirstConv& p, int64_t slices) {
  const int64_t sums = int64_t{256} * sizeof(FirstPlainSums<Channels>::c);
  launch_overlapping(cuda, wgrad_shape<float, Channels, 64>(cuda, p, slices, sums),
                     p.bias_sums == nullptr ? conv2d_first_wgrad_plain<Channels, false>
                                            : conv2d_first_wgrad_plain<Channels, true>,
                     p);
}

// f(type, channels) for the dtypes and channel counts of first layers.
template <class F>
void visit_first(DType dtype, int64_t channels, const F& f) {
  visit(TypeList<float, Half, BFloat16>{}, dtype, [&](auto type) {
    if (channels == 1) return f(type, std::integral_constant<int, 1>{});
    if (channels == 3) return f(type, std::integral_constant<int, 3>{});
    f(type, std::integral_constant<int, 4>{});
  });
}

}  // namespace

void gather_first(Cuda& cuda, const GatherCall& call) {
  if (call.backward) return gather_first_input(cuda, call);
  FirstConv p = first_conv(call.in, call.out, call.window, plan_conv_first(call.problem()));
  p.weights = call.w.data;
  p.bias = call.bias.data;
  p.out = call.out.data;
  const bool tensor = conv_first_is_tensor(call.problem());
  visit_first(call.dtype, call.in.channels, [&](auto type, auto channels) {
    using T = typename decltype(type)::type;
    constexpr int kChannels = decltype(channels)::value;
    constexpr int kSteps = kFirstPositions * static_cast<int>(sizeof(T)) / 32;
    if (!tensor) return forward<T, kChannels>(cuda, p);
    if constexpr (kChannels == 1) {
      if (conv_first_is_single(call.problem())) return forward_single<T>(cuda, p);
    }
    forward_tensor<T, kChannels, kSteps>(cuda, p);
  });
}

void wgrad_first(Cuda& cuda, const WgradCall& call) {
  FirstConv p = first_conv(call.x, call.dy, call.window, plan_conv_first(call.problem()));
  // As few as leave the longest as long.
  const int64_t slices = plan_chunks(p.tiles, 1, 2 * kHaloProcessors).count;
  const int positions = call.taps() * call.c_per_group();
  p.dy = call.dy.data;
  Scratch scratch;
  const int64_t bytes = slices * p.k * int64_t{sizeof(float)};
  const size_t partials = scratch.add(bytes * positions);
  const size_t bias_sums = scratch.add(call.dbias ? bytes : 0);
  scratch.allocate(cuda);
  p.out = scratch.at(partials);
  if (call.dbias) p.bias_sums = static_cast<float*>(scratch.at(bias_sums));
  visit_first(call.dtype, call.x.channels, [&](auto type, auto channels) {
    using T = typename decltype(type)::type;
    constexpr int kChannels = decltype(channels)::value;
    if (call.math() == ConvMath::f32) return wgrad_plain<kChannels>(cuda, p, slices);
    p.k <= 32 ? wgrad_tensor<T, kChannels, 1>(cuda, p, slices)
              : wgrad_tensor<T, kChannels, 2>(cuda, p, slices);
  });
  sum_slices(cuda, call.dw.dtype,
             {.partials = p.out,
              .out = call.dw.data,
              .slices = slices,
              .rows = p.k,
              .channels = call.c_per_group(),
              .padded_channels = call.c_per_group(),
              .taps = call.taps(),
              .first_fills = true});
  if (call.dbias) sum_bias(cuda, call.dbias, p.bias_sums, slices);
}

}  // namespace gradus
