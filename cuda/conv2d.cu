// conv2d on CUDA: which kernels an argument struct becomes.
//
// Few input channels per group: the direct kernels, which take any layout. All else: implicit GEMM
// over channels-last tensors whose channels fill whole 16-byte vectors. Other tensors (NCHW, odd
// channel counts, unaligned views) are copied to that form in the workspace first, and NCHW results
// copied back: each costs one more read and write of the tensor, and channels-last avoids both.
#include "core/dtype.h"
#include "cuda/conv2d_kernels.h"
#include "cuda/image.h"

namespace gradus {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return ceil_div(value, multiple) * multiple; }

// Buffers of one launch, one after the other in the context's workspace.
class Scratch {
 public:
  // Returns where the buffer will start.
  size_t add(int64_t bytes) {
    const size_t at = bytes_;
    bytes_ += static_cast<size_t>(round_up(bytes, 256));
    return at;
  }
  void allocate(Cuda& cuda) { data_ = static_cast<char*>(cuda.workspace(bytes_)); }
  void* at(size_t offset) const { return data_ + offset; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

TapAxis forward_axis(const Window& window, size_t i, int extent) {
  return {static_cast<int>(window.kernel[i]),
          static_cast<int>(window.stride[i]),
          -static_cast<int>(window.padding[i]),
          static_cast<int>(window.dilation[i]),
          extent,
          {}};
}

TapAxis backward_axis(const Window& window, size_t i, int extent) {
  return {static_cast<int>(window.kernel[i]),
          1,
          static_cast<int>(window.padding[i]),
          -static_cast<int>(window.dilation[i]),
          extent,
          FastDivisor(static_cast<uint32_t>(window.stride[i]))};
}

PixelGrid pixel_grid(const Image& image) {
  return {image.n * image.pixels(), FastDivisor(static_cast<uint32_t>(image.h)),
          FastDivisor(static_cast<uint32_t>(image.w))};
}

// Forward, or backward to the input: out[m] gathers from in[m ⊕ tap].
struct GatherCall {
  Image in, out;
  AnyView w, bias;
  Window window;
  int groups;
  bool tf32, backward;
  DType dtype;

  int in_per_group() const { return static_cast<int>(in.channels / groups); }
  int out_per_group() const { return static_cast<int>(out.channels / groups); }
  int taps() const { return static_cast<int>(window.kernel[0] * window.kernel[1]); }
  bool divided() const { return backward && (window.stride[0] > 1 || window.stride[1] > 1); }
  Gather gather() const {
    const auto axis = backward ? backward_axis : forward_axis;
    return {pixel_grid(out), axis(window, 0, in.h), axis(window, 1, in.w)};
  }
};

PixelLayout pixel_layout(const Image& image) {
  return {image.channels * image.pixels(), image.channel_stride(), image.pixel_stride()};
}

// Copies `image` to [n, h, w, groups, padded channels] at `to`.
void to_pixel_major(Cuda& cuda, DType dtype, const Image& image, int groups, int padded, void* to) {
  LayoutCopy copy{image.data, to, pixel_layout(image), {}, image.n, image.pixels(), groups};
  copy.channels = static_cast<int>(image.channels / groups);
  copy.to_channels = padded;
  const int64_t pitch = static_cast<int64_t>(groups) * padded;
  copy.to_strides = {pitch * image.pixels(), 1, pitch};
  copy_layout(cuda, dtype, copy);
}

void from_pixel_major(Cuda& cuda, DType dtype, const void* from, const Image& image) {
  const int channels = static_cast<int>(image.channels);
  LayoutCopy copy{from, image.data, {}, pixel_layout(image), image.n, image.pixels(), 1};
  copy.from_strides = {channels * image.pixels(), 1, channels};
  copy.channels = copy.to_channels = channels;
  copy_layout(cuda, dtype, copy);
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

int padded_channels(const Image& image, int groups, DType dtype) {
  return static_cast<int>(round_up(image.channels / groups, 16 / size_of(dtype)));
}

// Whether the implicit GEMM can read the tensor in place.
bool is_ready(const Image& image, int groups, int padded) {
  return image.pixel_major && is_aligned(image.data) && image.channels == groups * int64_t{padded};
}

// Channels that a thread of the direct kernels takes at once.
int direct_pack(DType dtype) { return dtype == DType::f64 ? 2 : 4; }

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

  const bool tensor = call.dtype == DType::f32 ? call.tf32 : is_half(call.dtype);
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
  const auto math =
      tensor ? ConvMath::tensor : (call.dtype == DType::f64 ? ConvMath::f64 : ConvMath::f32);
  const auto tile =
      plan_conv_gather(math, p.gather.out.pixels, p.columns, p.groups, call.divided());
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

void gather_conv(Cuda& cuda, const GatherCall& call) {
  if (call.out.numel() == 0) return;
  const bool direct = conv_is_direct(call.in_per_group(), call.taps());
  direct ? gather_direct(cuda, call) : gather_gemm(cuda, call);
}

// --- backward to the weights
// ----------------------------------------------------------------------

struct WgradCall {
  Image x, dy;
  AnyView dw;
  Window window;
  int groups;
  bool tf32;
  DType dtype;

  int c_per_group() const { return static_cast<int>(x.channels / groups); }
  int k_per_group() const { return static_cast<int>(dy.channels / groups); }
  int taps() const { return static_cast<int>(window.kernel[0] * window.kernel[1]); }
  Gather gather() const {
    return {pixel_grid(dy), forward_axis(window, 0, x.h), forward_axis(window, 1, x.w)};
  }
};

// Sums of dy (columns 1, x null) or of dy · x over slices of pixels, then over the slices.
void wgrad_direct(Cuda& cuda, DType dtype, DirectWgrad p, const Image& dy, const AnyView& out) {
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

void wgrad_gemm(Cuda& cuda, const WgradCall& call) {
  const int64_t size = size_of(call.dtype);
  WgradGemm p;
  p.gather = call.gather();
  p.groups = call.groups;
  p.channels = padded_channels(call.x, call.groups, call.dtype);
  p.dy_channels = padded_channels(call.dy, call.groups, call.dtype);
  p.rows = call.k_per_group();
  p.depth = p.channels * call.taps();
  const bool tensor = call.dtype == DType::f32 ? call.tf32 : is_half(call.dtype);
  const auto math =
      tensor ? ConvMath::tensor : (call.dtype == DType::f64 ? ConvMath::f64 : ConvMath::f32);
  const auto plan = plan_conv_wgrad(math, p.gather.out.pixels, p.rows, p.depth, p.groups);

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

}  // namespace

void run(Cuda& cuda, const Conv2dForward& args) {
  const MemoryFormat format = format_of(args.x, args.name);
  gather_conv(cuda, {Image(args.x, format), Image(args.y, format), args.w, args.bias, args.window,
                     static_cast<int>(args.groups), args.tf32, false, args.x.dtype});
}

void run(Cuda& cuda, const Conv2dBackwardInput& args) {
  const MemoryFormat format = format_of(args.dx, args.name);
  gather_conv(cuda, {Image(args.dy, format), Image(args.dx, format), args.w, AnyView(), args.window,
                     static_cast<int>(args.groups), args.tf32, true, args.dy.dtype});
}

void run(Cuda& cuda, const Conv2dBackwardWeight& args) {
  const MemoryFormat format = format_of(args.x, args.name);
  const WgradCall call{Image(args.x, format), Image(args.dy, format),        args.dw,
                       args.window,           static_cast<int>(args.groups), args.tf32,
                       args.x.dtype};
  if (args.dw && args.dw.numel() > 0 && conv_is_direct(call.c_per_group(), call.taps())) {
    DirectWgrad p;
    p.gather = call.gather();
    p.x = call.x.data;
    p.x_strides = call.x.strides();
    p.c_per_group = call.c_per_group();
    p.k_per_group = call.k_per_group();
    p.columns = p.c_per_group * call.taps();
    wgrad_direct(cuda, call.dtype, p, call.dy, args.dw);
  } else if (args.dw && args.dw.numel() > 0) {
    wgrad_gemm(cuda, call);
  }
  if (args.dbias && args.dbias.numel() > 0) {
    DirectWgrad p;
    p.gather.out = pixel_grid(call.dy);
    p.k_per_group = static_cast<int>(call.dy.channels);
    wgrad_direct(cuda, call.dtype, p, call.dy, args.dbias);
  }
}

}  // namespace gradus
