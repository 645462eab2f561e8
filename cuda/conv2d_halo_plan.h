// Launch choices of the convolutions over halo tiles (device/conv2d_halo.cuh).
#pragma once

#include <algorithm>
#include <vector>

#include "cuda/conv2d_problem.h"
#include "cuda/device/conv2d_halo_tile.h"

namespace gradus {

inline constexpr int64_t kHaloProcessors = kConvBlocks / 3;
// Warps of a gather's block, pixels that each has at a time.
inline constexpr int kHaloWarps = 8, kHaloPixels = 32;
// Images of a tile.
inline constexpr int kHaloMostImages = 16;

// 32-byte steps of a pixel in shared memory: 2 or 4 for 16-bit types, 4 or 8 for f32, enough for 32
// or 64 channels; 0 for more.
inline int halo_steps(int64_t channels, DType dtype) {
  const int least = static_cast<int>(size_of(dtype));
  return channels <= 32 ? least : (channels <= 64 ? 2 * least : 0);
}

inline HaloAxis plan_halo_axis(const ConvProblem& problem, size_t axis, int phase) {
  const Window& window = problem.window;
  const int taps = static_cast<int>(window.kernel[axis]);
  const int padding = static_cast<int>(window.padding[axis]);
  const int dilation = static_cast<int>(window.dilation[axis]);
  HaloAxis result;
  if (problem.kind == ConvProblem::Kind::forward) {
    result.taps = taps;
    result.shift = -padding;
    result.outputs = static_cast<int>(axis == 0 ? problem.p : problem.q);
    for (int r = 0; r < taps; ++r) {
      result.offset[r] = static_cast<int16_t>(r * dilation);
      result.index[r] = static_cast<int16_t>(r);
    }
    return result;
  }
  // dx at phase + i · stride meets dy at i + (phase + padding - r · dilation) / stride.
  const int stride = static_cast<int>(window.stride[axis]);
  const int extent = static_cast<int>(axis == 0 ? problem.h : problem.w);
  result.first = phase;
  result.outputs = extent > phase ? static_cast<int>(ceil_div(extent - phase, stride)) : 0;
  for (int r = taps - 1; r >= 0; --r) {
    const int distance = phase + padding - r * dilation;
    if (distance % stride != 0) continue;
    if (result.taps == 0) result.shift = distance / stride;
    result.offset[result.taps] = static_cast<int16_t>(distance / stride - result.shift);
    result.index[result.taps++] = static_cast<int16_t>(r);
  }
  return result;
}

// The shape of a gather without its pointers and its tile.
inline HaloGather halo_gather_shape(const ConvProblem& problem) {
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  const bool backward = problem.kind == ConvProblem::Kind::input;
  const int taps = number(problem.taps()), c = number(problem.c), k = number(problem.k);
  HaloGather p;
  p.images = number(problem.n);
  p.groups = number(problem.groups);
  p.in_h = number(backward ? problem.p : problem.h);
  p.in_w = number(backward ? problem.q : problem.w);
  p.out_h = number(backward ? problem.h : problem.p);
  p.out_w = number(backward ? problem.w : problem.q);
  p.channels = backward ? k : c;
  p.columns = backward ? c : k;
  p.weight_group = c * k * taps;
  p.weight_out = backward ? taps : c * taps;
  p.weight_in = backward ? c * taps : taps;
  p.weight_row = number(problem.window.kernel[1]);
  int& step_h = backward ? p.step_h : p.scale_h;
  int& step_w = backward ? p.step_w : p.scale_w;
  step_h = number(problem.window.stride[0]);
  step_w = number(problem.window.stride[1]);
  if (backward) p.phases_h = p.step_h, p.phases_w = p.step_w;
  for (int phase = 0; phase < p.phases_h; ++phase) p.h[phase] = plan_halo_axis(problem, 0, phase);
  for (int phase = 0; phase < p.phases_w; ++phase) p.w[phase] = plan_halo_axis(problem, 1, phase);
  return p;
}

// Input that `outputs` neighbouring windows of an axis cover.
inline int64_t halo_extent(const ConvProblem& problem, int axis, int64_t outputs) {
  return (outputs - 1) * problem.window.stride[static_cast<size_t>(axis)] +
         problem.window.span(axis);
}

// A tile of outputs of the forward windows with the input that they read. Extents that do not fit
// shared memory, as strides and dilations may make them, are cut, lest their products overflow: a
// tile of what is left does not fit either.
inline HaloTile halo_tile(const ConvProblem& problem, int64_t images, int64_t rows,
                          int64_t columns) {
  const auto number = [](int64_t value) {
    return static_cast<int>(std::min(value, kMostShared + 1));
  };
  return {number(images), number(rows), number(columns), number(halo_extent(problem, 0, rows)),
          number(halo_extent(problem, 1, columns))};
}

// Whether operands are in two parts, three of whose products are added: strict f32.
inline bool halo_splits(const ConvProblem& problem) { return problem.math == ConvMath::f32; }

// Output channels that a warp of a gather has: 64, or 32, or 16 for f32; no more than 32 in strict
// f32, whose sums are there twice.
inline int halo_width(int64_t columns, DType dtype, bool split) {
  if (columns <= 16 && dtype == DType::f32) return 16;
  return columns <= 32 || split ? 32 : 64;
}

// A gather with its tiles, and what a launch of it takes; no blocks: it does not fit.
struct HaloGatherPlan {
  HaloGather shape;
  int steps = 0, width = 0;
  bool split = false;           // operands in two parts
  bool three_by_three = false;  // in every phase
  int64_t blocks = 0, sets = 0, shared = 0;
  double cost = 0;
};

// The most input pixels beyond the first tap that the phases of an axis read.
inline int halo_reach(const HaloAxis* axes, int phases) {
  int reach = 0;
  for (int i = 0; i < phases; ++i) {
    if (axes[i].taps > 0) reach = std::max<int>(reach, axes[i].offset[axes[i].taps - 1]);
  }
  return reach;
}

inline int halo_most_taps(const HaloAxis* axes, int phases) {
  int most = 0;
  for (int i = 0; i < phases; ++i) most = std::max(most, axes[i].taps);
  return most;
}

// Bytes of shared memory of a gather: its weights, its tables of pixels and its tiles.
inline int64_t halo_gather_shared(const HaloGatherPlan& plan) {
  const HaloGather& p = plan.shape;
  const int64_t taps = halo_most_taps(p.h, p.phases_h) * halo_most_taps(p.w, p.phases_w);
  const int64_t weights = plan.width * (taps * plan.steps * (plan.split ? 64 : 32) + 16);
  const int64_t pixels = ceil_div(p.tile.pixels(), kHaloPixels) * kHaloPixels;
  const int64_t tables = pixels * int64_t{sizeof(int) + sizeof(HaloTarget)};
  return weights + tables + p.stages * p.tile.halo_pixels() * (plan.steps * 32 + 16);
}

// The plan with tiles of `rows` x `columns` outputs of `images` images. Its cost is that of the
// longest-working multiprocessor in pixels: those multiplied, in whole rounds of the block's warps,
// and half as much for each one loaded. Measured: a second stage saves a little where two blocks
// share a multiprocessor, and one block alone hides less of its loads.
inline HaloGatherPlan halo_gather_candidate(const ConvProblem& problem, HaloGatherPlan plan,
                                            int images, int rows, int columns, int stages) {
  HaloGather& p = plan.shape;
  const int reach_h = halo_reach(p.h, p.phases_h), reach_w = halo_reach(p.w, p.phases_w);
  p.tile = {images, rows, columns, (rows - 1) * p.scale_h + reach_h + 1,
            (columns - 1) * p.scale_w + reach_w + 1};
  p.tile_area = FastDivisor(static_cast<uint32_t>(rows * columns));
  p.tile_width = FastDivisor(static_cast<uint32_t>(columns));
  const int64_t row_tiles = ceil_div(p.h[0].outputs, rows);
  const int64_t column_tiles = ceil_div(p.w[0].outputs, columns);
  p.row_tiles = FastDivisor(static_cast<uint32_t>(row_tiles));
  p.column_tiles = FastDivisor(static_cast<uint32_t>(column_tiles));
  p.tiles = static_cast<int>(ceil_div(p.images, images) * row_tiles * column_tiles);
  p.stages = stages;
  plan.shared = halo_gather_shared(plan);
  if (plan.shared > problem.shared) return {};
  const bool two = plan.width < 64 && plan.shared <= problem.shared_of_two();
  const int64_t resident = two ? 2 : 1;
  plan.blocks =
      std::min<int64_t>(p.tiles, std::max<int64_t>(1, resident * kHaloProcessors / plan.sets));
  const int64_t at_once = std::min(resident, ceil_div(p.tiles * plan.sets, kHaloProcessors));
  const int64_t turns = ceil_div(p.tiles, plan.blocks);
  const int64_t round = kHaloWarps * kHaloPixels;
  const double tile = static_cast<double>(ceil_div(p.tile.pixels(), round) * round) +
                      0.5 * static_cast<double>(p.tile.halo_pixels());
  const double hidden = two ? (stages == 2 ? 1 : 1.03) : (stages == 2 ? 1.25 : 1.35);
  plan.cost = static_cast<double>(turns * at_once) * tile * hidden;
  return plan;
}

// Calls f(plan) for the tiles of a gather that fit shared memory.
template <class F>
void each_halo_gather(const ConvProblem& problem, const F& f) {
  HaloGatherPlan plan;
  HaloGather& p = plan.shape = halo_gather_shape(problem);
  plan.steps = halo_steps(p.channels, problem.dtype);
  plan.split = halo_splits(problem);
  plan.width = halo_width(p.columns, problem.dtype, plan.split);
  plan.three_by_three = problem.window.kernel == Pair(3) && p.phases_h == 1 && p.phases_w == 1;
  p.channel_tiles = static_cast<int>(ceil_div(p.columns, plan.width));
  plan.sets = int64_t{p.groups} * p.channel_tiles * p.phases_h * p.phases_w;
  p.vector_out = p.columns * size_of(problem.dtype) % 16 == 0;
  bool found = false;
  const auto consider = [&](int images, int rows, int columns) {
    for (const int stages : {2, 1}) {
      const auto candidate = halo_gather_candidate(problem, plan, images, rows, columns, stages);
      if (candidate.blocks == 0) continue;
      found = true;
      f(candidate);
    }
  };
  const int height = p.h[0].outputs, width = p.w[0].outputs;
  for (int columns = width; columns > 0 && !found; columns /= 2) {
    for (int parts = 1, rows = 0; parts <= height; ++parts) {
      const int next = static_cast<int>(ceil_div(height, parts));
      if (next != rows) consider(1, rows = next, columns);
    }
  }
  for (int images = 2; images <= kHaloMostImages; images *= 2) consider(images, height, width);
}

// The tiles of least cost; no blocks where none fit.
inline HaloGatherPlan plan_halo_gather(const ConvProblem& problem) {
  HaloGatherPlan best;
  each_halo_gather(problem, [&](const HaloGatherPlan& plan) {
    if (best.blocks == 0 || plan.cost < best.cost) best = plan;
  });
  return best;
}

// All of them, the least cost first.
inline std::vector<HaloGatherPlan> halo_gather_plans(const ConvProblem& problem) {
  std::vector<HaloGatherPlan> plans;
  each_halo_gather(problem, [&](const HaloGatherPlan& plan) { plans.push_back(plan); });
  std::ranges::stable_sort(plans, {}, &HaloGatherPlan::cost);
  return plans;
}

// A weight gradient with its tiles and warps; no slices: it does not fit.
struct HaloWgradPlan {
  HaloWgrad shape;
  int steps = 0;       // of a pixel of x
  bool split = false;  // operands in two parts
  int64_t slices = 0, shared = 0;
  int row_tiles = 1;  // of channels k
};

// A warp has so many channels k and positions (r, s, c); of these half in strict f32, whose sums
// are there twice.
inline constexpr int kHaloWgradWarps = 12, kHaloWgradRows = 32;
inline constexpr int halo_wgrad_columns(bool split) { return split ? 48 : 96; }

inline HaloWgrad halo_wgrad_shape(const ConvProblem& problem) {
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  const Window& window = problem.window;
  HaloWgrad p;
  p.images = number(problem.n);
  p.in_h = number(problem.h), p.in_w = number(problem.w);
  p.out_h = number(problem.p), p.out_w = number(problem.q);
  p.groups = number(problem.groups);
  p.channels = number(problem.c), p.rows = number(problem.k);
  const int64_t multiple = 32 / size_of(problem.dtype);
  p.padded = number(ceil_div(problem.c, multiple) * multiple);
  p.scale_h = number(window.stride[0]), p.scale_w = number(window.stride[1]);
  p.shift_h = -number(window.padding[0]), p.shift_w = -number(window.padding[1]);
  p.step_h = number(window.dilation[0]), p.step_w = number(window.dilation[1]);
  p.taps_h = number(window.kernel[0]), p.taps_w = number(window.kernel[1]);
  return p;
}

// Bytes of shared memory of the weight gradient's kernel.
inline int64_t halo_wgrad_shared(const HaloWgradPlan& plan, int64_t size) {
  const HaloWgrad& p = plan.shape;
  const int64_t pad = size == 4 ? 32 : 16, step = 32 / size;
  const int64_t pitch_x = plan.steps * 32 + pad;
  const int64_t pitch_y = p.row_units * kHaloWgradRows * size + pad;
  const int64_t pixels = ceil_div(p.tile.pixels(), step) * step;
  const int64_t window = int64_t{p.tile.halo_columns} * (p.taps_h - 1) * p.step_h +
                         int64_t{p.step_w} * (p.taps_w - 1) + 1;
  const int64_t tiles =
      window * pitch_x + pixels * 4 + 2 * (pixels * pitch_y + p.tile.halo_pixels() * pitch_x);
  const int64_t units = int64_t{p.row_units} * p.column_units;
  const int64_t mail = p.splits > 1 ? units * kHaloWgradRows * halo_wgrad_columns(plan.split) *
                                          int64_t{sizeof(float)}
                                    : 0;
  return std::max(tiles, mail);
}

// The largest tiles of which two fit shared memory and which occupy the card.
inline HaloWgradPlan plan_halo_wgrad(const ConvProblem& problem) {
  HaloWgradPlan plan;
  HaloWgrad& p = plan.shape = halo_wgrad_shape(problem);
  plan.steps = halo_steps(problem.c, problem.dtype);
  plan.split = halo_splits(problem);
  const int64_t columns = ceil_div(problem.taps() * p.padded, halo_wgrad_columns(plan.split));
  if (columns > kHaloWgradWarps) return {};
  p.column_units = static_cast<int>(columns);
  p.row_units = problem.k > kHaloWgradRows && 2 * columns <= kHaloWgradWarps ? 2 : 1;
  p.splits = kHaloWgradWarps / (p.row_units * p.column_units);
  plan.row_tiles = static_cast<int>(ceil_div(problem.k, p.row_units * kHaloWgradRows));
  const int64_t most = std::max<int64_t>(1, kHaloProcessors / (plan.row_tiles * p.groups));
  const auto fits = [&](int64_t images, int64_t rows) {
    p.tile = halo_tile(problem, images, rows, problem.q);
    plan.shared = halo_wgrad_shared(plan, size_of(problem.dtype));
    return plan.shared <= problem.shared;
  };
  int64_t images = 1, rows = problem.p;
  for (int64_t parts = 1; !fits(1, rows); rows = ceil_div(problem.p, ++parts)) {
    if (rows == 1) return {};
  }
  while (rows == problem.p && images < kHaloMostImages && problem.n >= 2 * images * most &&
         fits(2 * images, rows)) {
    images *= 2;
  }
  fits(images, rows);
  p.tile_area = FastDivisor(static_cast<uint32_t>(rows * problem.q));
  p.tile_width = FastDivisor(static_cast<uint32_t>(problem.q));
  p.row_tiles = static_cast<int>(ceil_div(problem.p, rows));
  p.tiles = static_cast<int>(ceil_div(problem.n, images)) * p.row_tiles;
  const Chunks slices = plan_chunks(p.tiles, 1, most);
  p.tiles_per_slice = static_cast<int>(slices.size);
  plan.slices = slices.count;
  return plan;
}

// Whether halo tiles pay: tensor cores, some but not many channels, more than one tap to share a
// tile, and no stride that leaves most of it unread. Short sums and few channels in strict f32 are
// left to plain multiply-adds, whose error is smaller there.
inline bool conv_is_halo(const ConvProblem& problem) {
  const Window& window = problem.window;
  const int64_t size = size_of(problem.dtype), vector = 16 / size;
  if (!problem.ready || problem.math == ConvMath::f64 || problem.taps() == 1) return false;
  const int64_t terms = problem.kind == ConvProblem::Kind::weight
                            ? problem.n * problem.p * problem.q
                            : problem.channels() * problem.taps();
  if (halo_splits(problem) && (problem.channels() <= 16 || terms <= 64)) return false;
  if (problem.channels() * size < 32 || problem.channels() % vector != 0) return false;
  if (halo_steps(problem.channels(), problem.dtype) == 0) return false;
  if (std::max(window.kernel[0], window.kernel[1]) > HaloAxis::kMaxTaps) return false;
  if (std::max(window.stride[0], window.stride[1]) > HaloGather::kMaxPhases) return false;
  // What the kernels count in 32 bits, and the grid's limits.
  const int64_t image = std::max(problem.p * problem.q, problem.h * problem.w);
  if (problem.n * image > INT32_MAX) return false;
  if (image * problem.groups * std::max(problem.c, problem.k) > INT32_MAX / kHaloMostImages) {
    return false;
  }
  if (problem.c * problem.k * problem.taps() > INT32_MAX) return false;
  if (problem.groups * (ceil_div(problem.c, 16) + ceil_div(problem.k, 16)) > 8192) return false;
  if (std::max(window.span(0), window.span(1)) > 1024) return false;
  if (problem.kind == ConvProblem::Kind::weight) {
    return problem.k % vector == 0 && plan_halo_wgrad(problem).shared > 0;
  }
  return plan_halo_gather(problem).blocks > 0;
}

}  // namespace gradus
