// Launch choices of conv2d, as pure host functions of the shape.
#pragma once

#include "cuda/conv2d_depthwise_plan.h"
#include "cuda/conv2d_halo_plan.h"
#include "cuda/conv2d_shift_plan.h"
#include "cuda/conv2d_shift_wgrad_plan.h"

namespace gradus {

struct ConvTile {
  int rows = 0;
  int columns = 0;
  friend bool operator==(const ConvTile&, const ConvTile&) = default;
};

// Whether the direct kernels take a convolution: few input channels per group (first layers,
// depthwise), and the weights of some output channels fit shared memory.
inline bool conv_is_direct(int64_t channels, int64_t taps) {
  return channels <= 4 && channels * taps <= 160;
}

// Positions (r, s, c) whose weights the tensor-core kernel of a first layer holds in registers.
inline constexpr int kFirstPositions = 32;
inline bool conv_first_is_tensor(const ConvProblem& problem) {
  return problem.math == ConvMath::tensor && problem.taps() * problem.c <= kFirstPositions;
}

// Whether the kernel for one channel takes it, with half as many and forward.
inline bool conv_first_is_single(const ConvProblem& problem) {
  return conv_first_is_tensor(problem) && problem.kind == ConvProblem::Kind::forward &&
         problem.c == 1 && problem.taps() <= kFirstPositions / 2;
}

// Rows of the maps that a block of a first layer has at a time, equal parts: 64 KB of y; on tensor
// cores some 512 pixels, of one channel at most 1024 and no more than let four blocks of each
// multiprocessor run at once; or 32 KB of dy, of which shared memory holds two.
inline HaloTile plan_conv_first(const ConvProblem& problem) {
  const int64_t pixel = problem.k * size_of(problem.dtype);
  int64_t most = 64 * 1024 / (problem.q * pixel);
  if (problem.kind == ConvProblem::Kind::weight) {
    // Shared memory has room for whole tiles of channels.
    const int64_t width = (problem.math == ConvMath::f32 ? 64 : 32) * size_of(problem.dtype);
    most = 32 * 1024 / (problem.q * ceil_div(pixel, width) * width);
  } else if (conv_first_is_single(problem)) {
    const int64_t parts = 4 * kHaloProcessors / std::max<int64_t>(1, problem.n);
    const int64_t rows = ceil_div(problem.p, std::max<int64_t>(1, parts));
    most =
        std::clamp<int64_t>(rows, ceil_div(128, problem.q), std::max<int64_t>(1, 1024 / problem.q));
  } else if (conv_first_is_tensor(problem)) {
    most = 512 / problem.q;
  }
  most = std::max<int64_t>(1, most);
  return halo_tile(problem, 1, ceil_div(problem.p, ceil_div(problem.p, most)), problem.q);
}

// Elements of the tile of x from the first of a pixel's window to the last.
inline int64_t conv_first_window(int64_t channels, const Window& window, const HaloTile& tile) {
  const Pair &kernel = window.kernel, &dilation = window.dilation;
  const int64_t rows = (kernel[0] - 1) * dilation[0], columns = (kernel[1] - 1) * dilation[1];
  return (rows * tile.halo_columns + columns + 1) * channels;
}

// The most shared memory that its kernels ask for.
inline int64_t conv_first_shared(const ConvProblem& problem) {
  const HaloTile tile = plan_conv_first(problem);
  const int64_t size = size_of(problem.dtype), x = problem.c * tile.halo_pixels();
  if (problem.kind == ConvProblem::Kind::weight) {
    const int64_t zeros = conv_first_window(problem.c, problem.window, tile);
    const int64_t tiles = (tile.pixels() + 16) * (2 * 64 * size + 4) + size * (2 * x + zeros);
    const int64_t sums = int64_t{256} * 9 * 8 * int64_t{sizeof(float)};
    return std::max(tiles, sums);
  }
  const int64_t pixels = int64_t{sizeof(int)} * tile.pixels();
  if (conv_first_is_tensor(problem)) {
    const int64_t tiles = conv_first_is_single(problem) ? 1 : 2;
    return int64_t{64} * (kFirstPositions + 1) * int64_t{sizeof(float)} + pixels + tiles * size * x;
  }
  return int64_t{sizeof(float)} * (problem.taps() * problem.c * problem.k + x);
}

// Shared memory of the kernel for dx in strict f32: the weights in whole chunks of 8 channels, and
// two chunks of 18 x 34 pixels of 48 bytes.
inline int64_t conv_first_input_shared(const ConvProblem& problem) {
  return int64_t{sizeof(float)} * ceil_div(problem.k, 8) * 8 * 9 * problem.c + 2 * 18 * 34 * 48;
}

// The kernel for dx on tensor cores: blocks walk down segments of an image's rows, `rows` of dy at
// a time, some 128 pixels or 16 KB; two blocks fit a multiprocessor, and an image has as many
// segments as let all run at once, in f32 of one channel, where a block's weights are few, at least
// two.
struct FirstInputPlan {
  int64_t rows = 0, segments = 0, segment_rows = 0;
  int64_t z_bytes = 0, shared = 0;  // none: the channels do not suit it, or do not fit
};
inline FirstInputPlan plan_first_input(const ConvProblem& problem) {
  FirstInputPlan plan;
  if (halo_steps(problem.k, problem.dtype) == 0) return plan;
  if (problem.n * problem.h * problem.q == 0) return plan;
  if (halo_splits(problem) && problem.taps() * problem.k <= 64) return plan;
  const int64_t step_bytes = int64_t{halo_steps(problem.k, problem.dtype)} * 32;
  const int64_t least = problem.c == 1 && size_of(problem.dtype) == 4 ? 2 : 1;
  const int64_t most = std::max<int64_t>(least, 2 * kHaloProcessors / problem.n);
  plan.segment_rows = std::max<int64_t>(8, ceil_div(problem.h, most));
  plan.segments = ceil_div(problem.h, plan.segment_rows);
  const int64_t pitch = ceil_div(9 * problem.c, 2) * 2;  // of z
  // The small parts of the weights: 8 bytes of each lane for each 8 columns and 32 bytes.
  const int64_t small_parts =
      halo_splits(problem) ? step_bytes * ceil_div(9 * problem.c, 8) * 8 : 0;
  const int64_t pixels = std::min<int64_t>(128, 16 * 1024 / step_bytes);
  plan.rows = std::clamp<int64_t>(pixels / problem.q, 2, problem.h + 2) + 1;
  do {
    --plan.rows;
    plan.z_bytes = std::max(int64_t{sizeof(float)} * 2 * plan.rows * (problem.q + 4) * pitch,
                            step_bytes * 9 * problem.c);
    plan.shared = small_parts + plan.z_bytes +
                  2 * ceil_div(plan.rows * problem.q, 16) * 16 * (step_bytes + 16);
  } while (plan.rows > 2 && plan.shared > problem.shared_of_two());
  if (plan.shared > problem.shared) plan.shared = 0;
  return plan;
}

// First layers: their own kernels where y is channels-last and whole 16-byte vectors. The gradient
// of the weights holds the sums of all positions (r, s, c), which must be few; that of the input is
// for the most frequent window only, others are left to the tiles with halos.
inline bool conv_is_first(const ConvProblem& problem) {
  const int64_t vector = 16 / size_of(problem.dtype);
  if (!problem.ready || problem.groups != 1 || problem.dtype == DType::f64) return false;
  if (problem.c != 1 && problem.c != 3 && problem.c != 4) return false;
  if (problem.k % vector != 0 || problem.k > 256 * vector) return false;
  if (problem.n * problem.p > INT32_MAX - kConvBlocks) return false;  // blocks step beyond the last
  if (problem.kind == ConvProblem::Kind::input) {
    const Window& window = problem.window;
    if (window.kernel != Pair(3) || window.stride != Pair(1) || window.dilation != Pair(1)) {
      return false;
    }
    // What is copied ahead goes on past the image's last row.
    if (problem.p * problem.q > INT32_MAX - (1 << 16)) return false;
    if (plan_first_input(problem).shared > 0) return true;
    return problem.math == ConvMath::f32 && conv_first_input_shared(problem) <= problem.shared;
  }
  if (problem.kind == ConvProblem::Kind::weight && problem.taps() * problem.c > 40) return false;
  return conv_first_shared(problem) <= problem.shared;
}

// How a convolution is computed.
enum class ConvPath : uint8_t {
  depthwise,  // 3 x 3 filters of one channel each, channels-last
  first,      // y from 1, 3 or 4 channels, and the gradient of those weights, channels-last
  direct,     // any layout, few channels: plain multiply-adds
  shift,      // Hopper's, too: tiles that several taps share
  wgmma,      // Hopper's copy engine and warpgroup-wide products: many channels
  halo,       // implicit GEMM over tiles that all taps share: tensor cores, up to 64 channels
  product,    // 1x1 as one matrix product
  gemm,       // implicit GEMM whose loader gathers each tap: takes everything
};

// Whether a convolution of channels-last tensors is the product of a matrix [pixels, channels] and
// the weights; where that product could not add a bias before it is rounded, it is not.
inline bool conv_is_product(const ConvProblem& problem) {
  const Window& window = problem.window;
  if (problem.kind == ConvProblem::Kind::forward && is_half(problem.dtype)) return false;
  return problem.ready && problem.groups == 1 && window.kernel == Pair(1) &&
         window.stride == Pair(1) && window.padding == Pair(0);
}

inline bool conv_is_shift(const ConvProblem& problem) {
  return plan_shift(problem).positions > 0 || plan_shift_wgrad(problem).width > 0;
}

inline ConvPath plan_conv_path(const ConvProblem& problem) {
  if (conv_is_depthwise(problem)) return ConvPath::depthwise;
  if (conv_is_first(problem)) return ConvPath::first;
  if (conv_is_direct(problem.channels(), problem.taps())) return ConvPath::direct;
  if (conv_is_shift(problem)) return ConvPath::shift;
  if (conv_takes_wgmma(problem)) return ConvPath::wgmma;
  if (conv_is_product(problem)) return ConvPath::product;
  if (conv_is_halo(problem)) return ConvPath::halo;
  return ConvPath::gemm;
}

// A path with what its launch may be given.
struct ConvWay {
  ConvPath path = ConvPath::gemm;
  ConvTile tile = {};   // of gemm and wgmma; 0 x 0: the plan's
  int rounds = 1;       // of the blocks among which their weight gradients share the pixels
  int rank = 0;         // of a gather's halo tiles by their estimated cost
  bool copied = false;  // x and y, where they are not ready, are copied to channels-last and back
  friend bool operator==(const ConvWay&, const ConvWay&) = default;
};

// Paths whose weight gradient adds up that of the bias as well, from the dy that it has: where a
// pass over dy of its own would be a third or more of all bytes, and dy is not rounded on its way.
inline bool conv_folds_bias(ConvPath path, DType dtype) {
  return path == ConvPath::first || path == ConvPath::depthwise || path == ConvPath::halo ||
         (path == ConvPath::shift && is_half(dtype));
}

// NCHW takes the path of channels-last behind the copies, where they are not part of that path as
// they are of gemm (which pads channels, too) and wgmma. Direct kernels read any layout.
inline ConvWay plan_conv(const ConvProblem& problem) {
  const ConvPath path = plan_conv_path(problem);
  if (problem.ready || path != ConvPath::gemm) return {path};
  ConvProblem ready = problem;
  ready.ready = true;
  const ConvPath behind = plan_conv_path(ready);
  return {.path = behind, .copied = behind != ConvPath::gemm && behind != ConvPath::wgmma};
}

// Tile of pixels x output channels of the implicit GEMM. `divided`: backward to the input with a
// stride, which most taps of a pixel miss.
inline ConvTile plan_conv_gather(ConvMath math, int64_t pixels, int64_t columns, int64_t groups,
                                 bool divided) {
  if (math == ConvMath::f64) return {64, 32};
  if (columns <= 32) return {128, 32};
  if (divided) return {64, 64};
  const auto blocks = [&](int64_t rows, int64_t across) {
    return ceil_div(pixels, rows) * ceil_div(columns, across) * groups;
  };
  if (math == ConvMath::tensor && columns > 64 && blocks(128, 128) >= kConvBlocks) {
    return {128, 128};
  }
  return blocks(128, 64) >= 2 * kConvBlocks ? ConvTile{128, 64} : ConvTile{64, 64};
}

struct ConvWgradPlan {
  ConvTile tile;  // output channels x positions (r, s, channel)
  Chunks chunks;  // of the pixels
};

// rows: output channels per group; depth: taps · channels per group; tile: 0 x 0 for the best
// known.
inline ConvWgradPlan plan_conv_wgrad(ConvMath math, int64_t pixels, int64_t rows, int64_t depth,
                                     int64_t groups, ConvTile tile = {}, int rounds = 1) {
  if (tile == ConvTile{}) {
    tile = math == ConvMath::f64 ? ConvTile{32, 48} : ConvTile{rows <= 32 ? 32 : 64, 96};
  }
  const int64_t tiles = ceil_div(rows, tile.rows) * ceil_div(depth, tile.columns) * groups;
  const int64_t most = std::max<int64_t>(1, rounds * kConvBlocks / tiles);
  return {tile, plan_chunks(pixels, 256, most, 64)};
}

// How the 256 threads of a direct kernel are laid out: `channel_lanes` next to each other on
// channels (each thread has `per_thread` of them), the rest on pixels.
struct ConvDirectPlan {
  static constexpr int kThreads = 256;
  int per_thread = 1;
  int channel_lanes = 1;
  int64_t channel_tiles = 1;
  int pixel_lanes() const { return kThreads / channel_lanes; }
};

// `pack`: channels that a thread can take at once if they are in one group.
inline ConvDirectPlan plan_conv_direct(int64_t channels, int64_t channels_per_group, int pack,
                                       bool channels_last) {
  ConvDirectPlan plan;
  plan.per_thread = channels_per_group % pack == 0 ? pack : 1;
  const int64_t most = plan.per_thread == 1 ? 32 : 8;
  if (channels_last) {
    while (plan.channel_lanes < most && plan.channel_lanes * plan.per_thread < channels) {
      plan.channel_lanes *= 2;
    }
  }
  plan.channel_tiles = ceil_div(channels, int64_t{plan.channel_lanes} * plan.per_thread);
  return plan;
}

// Chunks of the pixels for the sums of a direct kernel.
inline Chunks plan_conv_direct_sum(int64_t pixels, const ConvDirectPlan& plan) {
  const int64_t most = std::max<int64_t>(1, 2 * kConvBlocks / plan.channel_tiles);
  return plan_chunks(pixels, 128, most);
}

// Second stage of a weight gradient: whether a block has all taps of 32 channels, which it writes
// as one run, each summed by one thread; few slices only.
inline bool conv_reduces_channels(int64_t channels, int64_t taps, int64_t slices) {
  return channels >= 32 && taps <= 64 && slices <= 48;
}

// Second stage of other sums over slices: a block has so many outputs, and 256 / columns threads
// for each. Few outputs: 32 threads, or 16 behind a first stage that fills the card, where no
// multiprocessor needs two blocks then and all slices are on their way at once.
inline constexpr int kConvReduceAhead = 17;  // slices of one of 16 threads
inline int plan_conv_reduce_columns(int64_t outputs, int64_t slices, bool first_fills) {
  if (outputs >= 4096) return 32;
  const bool at_once = outputs > 8 * kHaloProcessors && slices <= 16 * kConvReduceAhead;
  return first_fills && at_once ? 16 : 8;
}

}  // namespace gradus
