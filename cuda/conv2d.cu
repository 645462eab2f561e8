// conv2d on CUDA: which kernels an argument struct becomes.
//
// plan_conv() says which, or a table of measured choices. What takes everything is an implicit GEMM
// over channels-last tensors whose channels fill whole 16-byte vectors: other tensors (NCHW, odd
// channel counts, unaligned views) are copied to that form first, and NCHW results copied back.
// Each costs one more read and write of the tensor, which a Trace shows as conv2d_layout;
// channels-last avoids them.
#include <algorithm>

#include "core/autotune.h"
#include "core/ops/conv2d.h"
#include "core/ops/copy.h"

#include "cuda/autotune.h"
#include "cuda/conv2d_call.h"
#include "cuda/conv2d_ways.h"
#include "cuda/launch_kernel.cuh"

namespace gradus {
namespace {

void run_path(Cuda& cuda, ConvPath path, const GatherCall& call) {
  switch (path) {
    case ConvPath::depthwise:
      return gather_depthwise(cuda, call);
    case ConvPath::first:
      return gather_first(cuda, call);
    case ConvPath::direct:
      return gather_direct(cuda, call);
    case ConvPath::shift:
      return gather_shift(cuda, call);
    case ConvPath::wgmma:
      return gather_wgmma(cuda, call);
    case ConvPath::product:
      return gather_product(cuda, call);
    case ConvPath::halo:
      return gather_halo(cuda, call);
    case ConvPath::gemm:
      return gather_gemm(cuda, call);
  }
}

void run_path(Cuda& cuda, ConvPath path, const WgradCall& call) {
  switch (path) {
    case ConvPath::depthwise:
      return wgrad_depthwise(cuda, call);
    case ConvPath::first:
      return wgrad_first(cuda, call);
    case ConvPath::direct:
      return wgrad_direct(cuda, call);
    case ConvPath::shift:
      return wgrad_shift(cuda, call);
    case ConvPath::wgmma:
      return wgrad_wgmma(cuda, call);
    case ConvPath::product:
      return wgrad_product(cuda, call);
    case ConvPath::halo:
      return wgrad_halo(cuda, call);
    case ConvPath::gemm:
      return wgrad_gemm(cuda, call);
  }
}

// Memory for the image in channels-last, to which it then points; none where it is that already.
std::shared_ptr<Storage> place_channels_last(Cuda& cuda, DType dtype, Image& image) {
  if (is_channels_last(image)) return nullptr;
  const int64_t bytes = image.numel() * size_of(dtype);
  auto room = Storage::make(device_of(cuda), static_cast<size_t>(bytes), cuda.allocator());
  image.data = room->data();
  image.pixel_major = true;
  return room;
}

// The same with the image's values.
std::shared_ptr<Storage> copy_channels_last(Cuda& cuda, DType dtype, Image& image) {
  const Image from = image;
  auto room = place_channels_last(cuda, dtype, image);
  if (room) to_pixel_major(cuda, dtype, from, 1, static_cast<int>(from.channels), image.data);
  return room;
}

void run_way(Cuda& cuda, const ConvWay& way, GatherCall call) {
  call.tile = way.tile;
  call.rank = way.rank;
  if (!way.copied) return run_path(cuda, way.path, call);
  const Image out = call.out;
  const auto in_room = copy_channels_last(cuda, call.dtype, call.in);
  const auto out_room = place_channels_last(cuda, call.dtype, call.out);
  run_path(cuda, way.path, call);
  if (out_room) from_pixel_major(cuda, call.dtype, call.out.data, out);
}

Shape dw_shape(const WgradCall& call) {
  return {call.dy.channels, call.c_per_group(), call.window.kernel[0], call.window.kernel[1]};
}

// Memory for a dw that the caller does not want, to which it then points.
std::shared_ptr<Storage> place_dw(Cuda& cuda, WgradCall& call) {
  const Shape shape = dw_shape(call);
  const int64_t bytes = shape.numel() * size_of(call.dtype);
  auto room = Storage::make(device_of(cuda), static_cast<size_t>(bytes), cuda.allocator());
  call.dw = {room->data(), call.dtype, device_of(cuda), true, shape, strides_of(shape)};
  return room;
}

void run_way(Cuda& cuda, const ConvWay& way, WgradCall call) {
  call.tile = way.tile;
  call.rounds = way.rounds;
  WgradCall read = call;
  std::shared_ptr<Storage> x_room, dy_room, dw_room;
  if (!read.dw) dw_room = place_dw(cuda, read);
  if (way.copied) {
    x_room = copy_channels_last(cuda, call.dtype, read.x);
    dy_room = copy_channels_last(cuda, call.dtype, read.dy);
  }
  run_path(cuda, way.path, read);
  if (call.dbias && !conv_folds_bias(way.path, call.dtype)) bias_grad(cuda, call);
}

// The way that the table in place has for the call, or else the static one.
template <class Call>
ConvWay choose_way(Cuda& cuda, const Call& call, bool bias) {
  const ConvProblem problem = call.problem();
  Autotune* const table = Autotune::current();
  if (table == nullptr) return plan_conv(problem);
  const std::vector<ConvWay> ways = conv_ways(problem);
  std::vector<std::string> names;
  for (const ConvWay& way : ways) names.push_back(to_string(way));
  return ways[choose_measured(cuda, *table, conv_key(problem, bias), names,
                              [&](size_t i) { run_way(cuda, ways[i], call); })];
}

// The kernels count pixels, the elements of a filter and channels, which they fill up to packs, in
// 32 bits.
void check_extents(const Window& window, const Image& x, const Image& y, int64_t groups,
                   std::string_view op) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const Pair padded{x.h + 2 * window.padding[0], x.w + 2 * window.padding[1]};
  if (padded[0] >= kMost || padded[1] >= kMost) {
    fail(ErrorCode::unsupported, op, "padded input ", padded[0], "x", padded[1],
         " is too large for CUDA: extents must be below ", kMost);
  }
  const int64_t channels = round_up(std::max(x.channels, y.channels) / groups, 8);
  if (window.kernel[0] * window.kernel[1] >= kMost / channels || groups >= kMost / channels) {
    fail(ErrorCode::unsupported, op, "filters of ", window.kernel[0], "x", window.kernel[1],
         " are too large for CUDA: with channels filled up to ", channels,
         ", their elements and those of all ", groups, " groups must be below ", kMost);
  }
}

ConvCard card_of(const Cuda& cuda) {
  return {cuda.has_warpgroup_products(), std::min<int64_t>(shared_limit(cuda), kMostShared)};
}

void gather_conv(Cuda& cuda, GatherCall call, std::string_view op) {
  check_extents(call.window, call.backward ? call.out : call.in, call.backward ? call.in : call.out,
                call.groups, op);
  call.card = card_of(cuda);
  run_way(cuda, choose_way(cuda, call, static_cast<bool>(call.bias)), call);
}

// The sums of dbias have one order, whether dw is wanted or not: where the way of both folds dbias
// into dw, dw is computed in either case, and dropped.
void wgrad_conv(Cuda& cuda, WgradCall call, std::string_view op) {
  check_extents(call.window, call.x, call.dy, call.groups, op);
  call.card = card_of(cuda);
  const ConvWay way = choose_way(cuda, call, static_cast<bool>(call.dbias));
  if (call.dw || conv_folds_bias(way.path, call.dtype)) return run_way(cuda, way, call);
  bias_grad(cuda, call);
}

void fill_with_bias(Cuda& cuda, const AnyView& y, AnyView bias) {
  if (!bias) return run(cuda, Fill{.y = y});
  bias.shape = y.shape;
  bias.strides = {0, 1, 0, 0};
  run(cuda, Copy{.x = bias, .y = y});
}

}  // namespace

// Without channels, or where windows meet padding only, there is nothing to add up.
void run(Cuda& cuda, const Conv2dForward& args) {
  if (args.y.numel() == 0) return;
  if (args.x.numel() == 0) return fill_with_bias(cuda, args.y, args.bias);
  const MemoryFormat format = format_of(args.x, args.name);
  gather_conv(cuda,
              {Image(args.x, format), Image(args.y, format), args.w, args.bias, args.window,
               static_cast<int>(args.groups), args.tf32, false, args.x.dtype},
              args.name);
}

void run(Cuda& cuda, const Conv2dBackwardInput& args) {
  if (args.dx.numel() == 0) return;
  if (args.dy.numel() == 0) return run(cuda, Fill{.y = args.dx});
  const MemoryFormat format = format_of(args.dx, args.name);
  gather_conv(cuda,
              {Image(args.dy, format), Image(args.dx, format), args.w, AnyView(), args.window,
               static_cast<int>(args.groups), args.tf32, true, args.dy.dtype},
              args.name);
}

void run(Cuda& cuda, const Conv2dBackwardWeight& args) {
  const MemoryFormat format = format_of(args.x, args.name);
  WgradCall call{Image(args.x, format), Image(args.dy, format),        args.dw,
                 args.window,           static_cast<int>(args.groups), args.tf32,
                 args.x.dtype};
  if (args.dbias && args.dbias.numel() > 0) call.dbias = args.dbias;
  if (args.x.numel() > 0 && args.dy.numel() > 0) {
    if (call.dw || call.dbias) wgrad_conv(cuda, call, args.name);
    return;
  }
  if (call.dw) run(cuda, Fill{.y = args.dw});
  if (call.dbias) bias_grad(cuda, call);
}

}  // namespace gradus
