// conv2d's problems as its paths get them, and what the paths share. Host-only.
#pragma once

#include "core/dtype.h"
#include "cuda/conv2d_kernels.h"
#include "cuda/image.h"

namespace gradus {

inline int64_t round_up(int64_t value, int64_t multiple) {
  return ceil_div(value, multiple) * multiple;
}

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

inline TapAxis forward_axis(const Window& window, size_t i, int extent) {
  return {static_cast<int>(window.kernel[i]),
          static_cast<int>(window.stride[i]),
          -static_cast<int>(window.padding[i]),
          static_cast<int>(window.dilation[i]),
          extent,
          {}};
}

inline TapAxis backward_axis(const Window& window, size_t i, int extent) {
  return {static_cast<int>(window.kernel[i]),
          1,
          static_cast<int>(window.padding[i]),
          -static_cast<int>(window.dilation[i]),
          extent,
          FastDivisor(static_cast<uint32_t>(window.stride[i]))};
}

inline PixelGrid pixel_grid(const Image& image) {
  return {image.n * image.pixels(), FastDivisor(static_cast<uint32_t>(image.h)),
          FastDivisor(static_cast<uint32_t>(image.w))};
}

inline bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Whether the fast paths can read or write the tensor in place.
inline bool is_channels_last(const Image& image) {
  return image.pixel_major && is_aligned(image.data);
}

// What paths are chosen by beside the call, as in ConvProblem.
struct ConvCard {
  bool wgmma = false;
  int64_t shared = kMostShared;
};

inline ConvProblem conv_problem(ConvProblem::Kind kind, DType dtype, bool tf32, const Image& x,
                                const Image& y, const Window& window, int groups,
                                const ConvCard& card) {
  return {kind,
          dtype,
          conv_math(dtype, tf32),
          x.n,
          groups,
          x.channels / groups,
          x.h,
          x.w,
          y.channels / groups,
          y.h,
          y.w,
          window,
          is_channels_last(x) && is_channels_last(y),
          card.wgmma,
          card.shared};
}

// Forward, or backward to the input: out[m] gathers from in[m ⊕ tap].
struct GatherCall {
  Image in, out;
  AnyView w, bias;
  Window window;
  int groups;
  bool tf32, backward;
  DType dtype;
  ConvTile tile = {};  // of gemm and wgmma; 0 x 0: the plan's
  int rank = 0;        // of halo tiles by their estimated cost
  ConvCard card = {};

  int in_per_group() const { return static_cast<int>(in.channels / groups); }
  int out_per_group() const { return static_cast<int>(out.channels / groups); }
  int taps() const { return static_cast<int>(window.kernel[0] * window.kernel[1]); }
  ConvMath math() const { return conv_math(dtype, tf32); }
  ConvProblem problem() const {
    const auto kind = backward ? ConvProblem::Kind::input : ConvProblem::Kind::forward;
    return conv_problem(kind, dtype, tf32, backward ? out : in, backward ? in : out, window, groups,
                        card);
  }
  bool divided() const { return backward && (window.stride[0] > 1 || window.stride[1] > 1); }
  // Rows or columns of zeros before `in`, without dilation.
  int zeros_before(size_t axis) const {
    const auto padding = window.padding[axis];
    return static_cast<int>(backward ? window.kernel[axis] - 1 - padding : padding);
  }
  Gather gather() const {
    const auto axis = backward ? backward_axis : forward_axis;
    return {pixel_grid(out), axis(window, 0, in.h), axis(window, 1, in.w)};
  }
};

// The gradient of the weights.
struct WgradCall {
  Image x, dy;
  AnyView dw;
  Window window;
  int groups;
  bool tf32;
  DType dtype;
  ConvTile tile = {};  // of gemm and wgmma; 0 x 0: the plan's
  int rounds = 1;      // of the blocks that share the pixels
  AnyView dbias = {};  // [k], acc; where not given it is not wanted
  ConvCard card = {};

  int c_per_group() const { return static_cast<int>(x.channels / groups); }
  int k_per_group() const { return static_cast<int>(dy.channels / groups); }
  int taps() const { return static_cast<int>(window.kernel[0] * window.kernel[1]); }
  ConvMath math() const { return conv_math(dtype, tf32); }
  ConvProblem problem() const {
    return conv_problem(ConvProblem::Kind::weight, dtype, tf32, x, dy, window, groups, card);
  }
  Gather gather() const {
    return {pixel_grid(dy), forward_axis(window, 0, x.h), forward_axis(window, 1, x.w)};
  }
};

inline PixelLayout pixel_layout(const Image& image) {
  return {image.channels * image.pixels(), image.channel_stride(), image.pixel_stride()};
}

// Copies `image` to [n, h, w, groups, padded channels] at `to`.
inline void to_pixel_major(Cuda& cuda, DType dtype, const Image& image, int groups, int padded,
                           void* to) {
  LayoutCopy copy{image.data, to, pixel_layout(image), {}, image.n, image.pixels(), groups};
  copy.channels = static_cast<int>(image.channels / groups);
  copy.to_channels = padded;
  const int64_t pitch = static_cast<int64_t>(groups) * padded;
  copy.to_strides = {pitch * image.pixels(), 1, pitch};
  copy_layout(cuda, dtype, copy);
}

inline void from_pixel_major(Cuda& cuda, DType dtype, const void* from, const Image& image) {
  const int channels = static_cast<int>(image.channels);
  LayoutCopy copy{from, image.data, {}, pixel_layout(image), image.n, image.pixels(), 1};
  copy.from_strides = {channels * image.pixels(), 1, channels};
  copy.channels = copy.to_channels = channels;
  copy_layout(cuda, dtype, copy);
}

inline int padded_channels(const Image& image, int groups, DType dtype) {
  return static_cast<int>(round_up(image.channels / groups, 16 / size_of(dtype)));
}

// Whether the implicit GEMM can read the tensor in place.
inline bool is_ready(const Image& image, int groups, int padded) {
  return image.pixel_major && is_aligned(image.data) && image.channels == groups * int64_t{padded};
}

// dbias[k] = Σ_slice sums[slice][k], in order.
inline void sum_bias(Cuda& cuda, const AnyView& dbias, const void* sums, int64_t slices) {
  sum_slices(cuda, dbias.dtype, {sums, dbias.data, slices, dbias.numel()});
}

// Depthwise on Hopper, as planned; rows > 0.
struct ConvDepthwiseRowsPlan;
void gather_depthwise_rows(Cuda&, const GatherCall&, const ConvDepthwiseRowsPlan&);

// The paths, each for what plan_conv_path() gives it; no output is empty.
void gather_depthwise(Cuda&, const GatherCall&);
void gather_first(Cuda&, const GatherCall&);
void gather_first_input(Cuda&, const GatherCall&);
void gather_direct(Cuda&, const GatherCall&);
void gather_shift(Cuda&, const GatherCall&);
void gather_wgmma(Cuda&, const GatherCall&);
void gather_product(Cuda&, const GatherCall&);
void gather_halo(Cuda&, const GatherCall&);
void gather_gemm(Cuda&, const GatherCall&);
void wgrad_depthwise(Cuda&, const WgradCall&);
void wgrad_first(Cuda&, const WgradCall&);
void wgrad_direct(Cuda&, const WgradCall&);
void wgrad_shift(Cuda&, const WgradCall&);
void wgrad_wgmma(Cuda&, const WgradCall&);
void wgrad_product(Cuda&, const WgradCall&);
void wgrad_halo(Cuda&, const WgradCall&);
void wgrad_gemm(Cuda&, const WgradCall&);
// The gradient of the bias by a pass over dy, where the path does not fold it in.
void bias_grad(Cuda&, const WgradCall&);

}  // namespace gradus
