// Layouts of conv2d: tensors between NCHW and padded NHWC, weights into rows of (r, s, channel).
#include "core/launch.h"
#include "cuda/conv2d_kernels.h"
#include "cuda/device/mma.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/transpose.cuh"

namespace gradus {
namespace {

constexpr int kTile = 32;
constexpr int kRows = 8;  // rows of a tile that a block handles at a time

// math    to[n][channel][pixel] = from[n][channel][pixel], 0 for channels that only `to` has: the
//         padding of groups. Where there are none and rows become columns, transpose.cuh's
// grid    one block of 32 x 8 threads per image and tile of 32 channels x 32 pixels
// bytes   from and to once
// smem    the tile, so that both sides are read and written along their own fastest axis
template <class T>
__global__ void __launch_bounds__(kTile* kRows)
    conv2d_copy_layout(const __grid_constant__ LayoutCopy p, int channel_tiles, int pixel_tiles) {
  __shared__ T tile[kTile][kTile + 1];  // [channel][pixel]
  const int channel0 = blockIdx.x % channel_tiles * kTile;
  const int64_t rest = blockIdx.x / channel_tiles;
  const int64_t pixel0 = rest % pixel_tiles * kTile, image = rest / pixel_tiles;
  const int x = threadIdx.x % kTile;
  const T* from = static_cast<const T*>(p.from) + image * p.from_strides.image;
  T* to = static_cast<T*>(p.to) + image * p.to_strides.image;
  for (int y = threadIdx.x / kTile; y < kTile; y += kRows) {
    const bool along_pixels = p.from_strides.pixel == 1;
    const int c = along_pixels ? y : x, at = along_pixels ? x : y;
    const int group = (channel0 + c) / p.to_channels, i = (channel0 + c) % p.to_channels;
    const bool inside = group < p.groups && i < p.channels && pixel0 + at < p.pixels;
    const int64_t channel = static_cast<int64_t>(group) * p.channels + i;
    tile[c][at] =
        inside ? from[channel * p.from_strides.channel + (pixel0 + at) * p.from_strides.pixel]
               : T(0.0f);
  }
  __syncthreads();
  for (int y = threadIdx.x / kTile; y < kTile; y += kRows) {
    const bool along_pixels = p.to_strides.pixel == 1;
    const int c = along_pixels ? y : x, at = along_pixels ? x : y;
    if (channel0 + c >= p.groups * p.to_channels || pixel0 + at >= p.pixels) continue;
    to[(channel0 + c) * p.to_strides.channel + (pixel0 + at) * p.to_strides.pixel] = tile[c][at];
  }
}

// Whether no channels are added, and one side runs along the pixels, the other along the channels.
// Channels-last to channels-last, as an unaligned tensor is copied, is no such thing.
bool is_transpose(const LayoutCopy& p) {
  const bool turns =
      p.from_strides.pixel == 1 ? p.to_strides.channel == 1 : p.to_strides.pixel == 1;
  return turns && p.channels == p.to_channels;
}

Transpose transpose_of(const LayoutCopy& p) {
  const int64_t channels = int64_t{p.groups} * p.channels;
  const bool to_pixels = p.from_strides.pixel == 1;  // the rows of `from` are its channels
  const StridedPlan<2> batch({p.images}, {Strides{p.to_strides.image}, {p.from_strides.image}});
  return {.rows = to_pixels ? channels : p.pixels,
          .columns = to_pixels ? p.pixels : channels,
          .x_row_stride = to_pixels ? p.from_strides.channel : p.from_strides.pixel,
          .y_column_stride = to_pixels ? p.to_strides.pixel : p.to_strides.channel,
          .batch = batch};
}

// math    to[g][out][tap][in] = from[g][out][in][tap] (backward: from[g][in][out][tap]), 0 for the
//         padding; rounded to TF32 if asked, so that the product need not
// grid    one thread per element of `to`
template <class T>
__global__ void __launch_bounds__(256) conv2d_pack_weights(const __grid_constant__ WeightPack p) {
  const int per_out = p.taps * p.padded_in;
  const int64_t e = blockIdx.x * 256ll + threadIdx.x;
  const int64_t out_of_all = e / per_out;
  if (out_of_all >= int64_t{p.out} * p.groups) return;
  const int rest = static_cast<int>(e - out_of_all * per_out);
  const int in = rest % p.padded_in, tap = rest / p.padded_in;
  const int64_t group = out_of_all / p.out;
  const auto out = static_cast<int>(out_of_all - group * p.out);
  T value = T(0.0f);
  if (in < p.in) {
    const int64_t pair =
        p.backward ? static_cast<int64_t>(in) * p.out + out : static_cast<int64_t>(out) * p.in + in;
    value = static_cast<const T*>(p.from)[(group * p.out * p.in + pair) * p.taps + tap];
  }
  if constexpr (std::is_same_v<T, float>) {
    if (p.round_tf32) value = __uint_as_float(round_to_tf32(__float_as_uint(value)));
  }
  static_cast<T*>(p.to)[e] = value;
}

}  // namespace

void copy_layout(Cuda& cuda, DType dtype, const LayoutCopy& p) {
  const int64_t channel_tiles = ceil_div(static_cast<int64_t>(p.groups) * p.to_channels, kTile);
  const int64_t pixel_tiles = ceil_div(p.pixels, kTile);
  const int64_t blocks = p.images * channel_tiles * pixel_tiles;
  const auto describe = [&] {
    const int64_t bytes = p.images * p.pixels * p.groups * (p.channels + p.to_channels);
    return TraceRecord{.name = "conv2d_layout",
                       .device = device_of(cuda),
                       .dtype = dtype,
                       .bytes = bytes * size_of(dtype),
                       .flops = 0,
                       .part = true};
  };
  trace_step(cuda, describe, [&] {
    visit(Floating{}, dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      using Word = word_t<static_cast<int>(sizeof(T))>;
      if (is_transpose(p)) {
        return transpose(cuda, "conv2d", static_cast<Word*>(p.to), static_cast<const Word*>(p.from),
                         transpose_of(p));
      }
      launch_kernel(cuda, {dim3(exact_blocks(blocks, "conv2d")), kTile * kRows},
                    conv2d_copy_layout<T>, p, static_cast<int>(channel_tiles),
                    static_cast<int>(pixel_tiles));
    });
  });
}

void pack_weights(Cuda& cuda, DType dtype, const WeightPack& p) {
  const int64_t count = static_cast<int64_t>(p.groups) * p.out * p.taps * p.padded_in;
  const int64_t blocks = ceil_div(count, 256);
  visit(Floating{}, dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_kernel(cuda, {dim3(exact_blocks(blocks, "conv2d")), 256}, conv2d_pack_weights<T>, p);
  });
}

}  // namespace gradus
