// Operands of conv2d's kernels for Hopper: weights in the order of their sums, f32 in two parts,
// images turned.
#include "core/dtype.h"
#include "cuda/conv2d_wgmma_kernels.h"
#include "cuda/device/split_tf32.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {
namespace {

constexpr int kThreads = 256;

// math    to[part][out][tap][in] = from[out][in][tap'] (backward: from[in][out][tap']), tap' the
//         part's tap of the window; split: the big parts, then the small ones
// grid    one thread per pair (out, in), with all its taps
// bytes   from and to once
template <class T>
__global__ void __launch_bounds__(kThreads)
    conv2d_pack_wgmma_weights(const __grid_constant__ WgmmaWeights p) {
  start_next_kernel();
  const int64_t pair = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pair >= static_cast<int64_t>(p.out) * p.in) return;
  const int64_t out = pair / p.in, in = pair - out * p.in;
  const T* const from = static_cast<const T*>(p.from) +
                        (p.backward ? in * p.out + out : pair) * p.kernel_h * p.kernel_w;
  for (int i = 0; i < p.part_count; ++i) {
    const WgmmaTaps& taps = p.parts[i];
    const int count = taps.h_taps * taps.w_taps;
    T* to = static_cast<T*>(p.to) + taps.offset + out * count * p.in + in;
    for (int h = 0; h < taps.h_taps; ++h) {
      for (int w = 0; w < taps.w_taps; ++w, to += p.in) {
        const T value =
            from[(taps.h_first + h * taps.h_step) * p.kernel_w + taps.w_first + w * taps.w_step];
        if constexpr (sizeof(T) == 4) {
          if (p.split) {
            const SplitFloat parts = split_tf32(value);
            *to = parts.big;
            to[static_cast<int64_t>(p.out) * p.in * count] = parts.small;
            continue;
          }
        }
        *to = value;
      }
    }
  }
}

// math    to[i] + to[count + i] = from[i]
// grid    16 bytes per thread
// bytes   from once, to once
__global__ void __launch_bounds__(kThreads)
    conv2d_split_f32(const float* from, float* to, int64_t count) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i >= count) return;
  const Pack<float, 4> values = load_pack<4>(from + i);
  Pack<float, 4> big, small;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const SplitFloat parts = split_tf32(values[e]);
    big[e] = parts.big, small[e] = parts.small;
  }
  store_pack(to + i, big);
  store_pack(to + count + i, small);
}

constexpr int kTile = 32;

// math    see TurnedImage
// grid    one block of 32 x 8 threads per tile of 32 channels x 32 positions of a plane
// bytes   fewest: from and to once
// smem    the tile, so that both sides are read and written along their own fastest axis
__global__ void __launch_bounds__(kThreads)
    conv2d_turn_image(const __grid_constant__ TurnedImage p, int position_tiles,
                      int channel_tiles) {
  __shared__ float tile[kTile][kTile + 1];  // [position][channel]
  start_next_kernel();
  const int64_t position0 = static_cast<int64_t>(blockIdx.x % position_tiles) * kTile;
  const int rest = blockIdx.x / position_tiles;
  const int channel0 = rest % channel_tiles * kTile, plane = rest / channel_tiles;
  const int lane = threadIdx.x % kTile, first = threadIdx.x / kTile;
#pragma unroll
  for (int at = first; at < kTile; at += kThreads / kTile) {
    const bool exists = position0 + at < p.grid.pixels && channel0 + lane < p.channels;
    const Pixel place = pixel_at(p.grid, exists ? position0 + at : 0);  // row, column, image
    const int64_t h = place.n * p.stride_h + plane / p.stride_w - p.padding_h;
    const int64_t w = place.i * p.stride_w + plane % p.stride_w - p.padding_w;
    const bool inside = exists && place.j < p.images && h >= 0 && h < p.h && w >= 0 && w < p.w;
    tile[at][lane] =
        inside ? p.from[((place.j * int64_t{p.h} + h) * p.w + w) * p.channels + channel0 + lane]
               : 0.0f;
  }
  __syncthreads();
  const int64_t half = static_cast<int64_t>(p.stride_h) * p.stride_w * p.channels * p.grid.pixels;
#pragma unroll
  for (int c = first; c < kTile; c += kThreads / kTile) {
    if (channel0 + c >= p.channels || position0 + lane >= p.grid.pixels) continue;
    const int64_t row = static_cast<int64_t>(plane) * p.channels + channel0 + c;
    float* const to = p.to + row * p.grid.pixels + position0 + lane;
    if (p.split) {
      const SplitFloat parts = split_tf32(tile[lane][c]);
      *to = parts.big;
      to[half] = parts.small;
    } else {
      *to = tile[lane][c];
    }
  }
}

}  // namespace

void turn_image(Cuda& cuda, const TurnedImage& p) {
  const int64_t position_tiles = ceil_div(p.grid.pixels, kTile);
  const int64_t channel_tiles = ceil_div(p.channels, kTile);
  const int64_t blocks = position_tiles * channel_tiles * p.stride_h * p.stride_w;
  launch_kernel(cuda, {dim3(exact_blocks(blocks, "conv2d")), kThreads}, conv2d_turn_image, p,
                static_cast<int>(position_tiles), static_cast<int>(channel_tiles));
}

void pack_wgmma_weights(Cuda& cuda, DType dtype, const WgmmaWeights& p) {
  const int64_t blocks = ceil_div(static_cast<int64_t>(p.out) * p.in, kThreads);
  visit(Floating{}, dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_kernel(cuda, {dim3(exact_blocks(blocks, "conv2d")), kThreads},
                  conv2d_pack_wgmma_weights<T>, p);
  });
}

void split_f32(Cuda& cuda, const float* from, float* to, int64_t count) {
  const int64_t blocks = ceil_div(count, 4 * kThreads);
  launch_kernel(cuda, {dim3(exact_blocks(blocks, "conv2d")), kThreads}, conv2d_split_f32, from, to,
                count);
}

}  // namespace gradus
