// Direct convolution for few input channels per group: first layers and depthwise. Any layout.
#include "core/dtype.h"
#include "cuda/conv2d_kernels.h"
#include "cuda/device/shared.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {
namespace {

constexpr int kThreads = ConvDirectPlan::kThreads;
constexpr int kPixels = 4;  // of the output, per thread

template <class T>
inline constexpr int kPack = direct_pack(dtype_of<T>);

// A thread's place: its first channel, and its lane among the block's pixels.
struct Lane {
  int channel;
  int pixel;
  __device__ __forceinline__ Lane(int channel_lanes, int channel_tile, int per_thread) {
    const int lane = threadIdx.x % channel_lanes;
    channel = (channel_tile * channel_lanes + lane) * per_thread;
    pixel = threadIdx.x / channel_lanes;
  }
};

// Weights of the block's channels, as [i, tap][channel].
template <class T>
__device__ __forceinline__ void load_weights(const DirectGather& p, acc_t<T>* shared, int first,
                                             int channels) {
  const int taps = p.gather.h.taps * p.gather.w.taps;
  for (int e = threadIdx.x; e < p.in_per_group * taps * channels; e += kThreads) {
    const int out = first + e % channels, row = e / channels;
    const int group = out / p.out_per_group, o = out % p.out_per_group;
    const int64_t at = group * p.weight_group + o * p.weight_out +
                       static_cast<int64_t>(row / taps) * p.weight_in + row % taps;
    const bool inside = out < p.out_channels;
    shared[e] = inside ? static_cast<acc_t<T>>(static_cast<const T*>(p.weights)[at]) : 0;
  }
}

template <class T, int PerThread>
__device__ __forceinline__ void store_channels(const DirectGather& p, int64_t at, int channel,
                                               const acc_t<T> (&sums)[PerThread]) {
  const auto* bias = static_cast<const acc_t<T>*>(p.bias);
  Pack<T, PerThread> values;
#pragma unroll
  for (int e = 0; e < PerThread; ++e) {
    values[e] = static_cast<T>(bias == nullptr ? sums[e] : sums[e] + bias[channel + e]);
  }
  T* to = static_cast<T*>(p.out) + at + channel * p.out_strides.c;
  if (p.vector_out) {
    store_pack(to, values);
  } else {
#pragma unroll
    for (int e = 0; e < PerThread; ++e) to[e * p.out_strides.c] = values[e];
  }
}

// math    out[m][o] = bias[o] + Σ_{i, r, s} in[m ⊕ (r, s)][i] · weights[o][i, r, s]
// grid    one block per 4 · pixel lanes pixels and tile of channels
// passes  one
// bytes   in (again per channel tile, from caches) and out once
// smem    the block's weights
// order   each output is summed by one thread, in the order (i, r, s)
template <class T, int PerThread, bool Divided>
__global__ void __launch_bounds__(kThreads)
    conv2d_direct_gather(const __grid_constant__ DirectGather p) {
  using Acc = acc_t<T>;
  auto* weights = reinterpret_cast<Acc*>(dynamic_shared());
  const int tile = blockIdx.x % p.channel_tiles, width = p.channel_lanes * PerThread;
  const Lane lane(p.channel_lanes, tile, PerThread);
  load_weights<T>(p, weights, tile * width, width);
  __syncthreads();
  if (lane.channel >= p.out_channels) return;

  const int lanes = kThreads / p.channel_lanes;
  const int64_t m0 = static_cast<int64_t>(blockIdx.x / p.channel_tiles) * lanes * kPixels;
  const int64_t group_offset =
      static_cast<int64_t>(lane.channel / p.out_per_group) * p.in_per_group * p.in_strides.c;
  int64_t in_at[kPixels], out_at[kPixels];
  int u[kPixels], v[kPixels];
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    const int64_t m = m0 + i * lanes + lane.pixel;
    const bool inside = m < p.gather.out.pixels;
    const Pixel pixel = pixel_at(p.gather.out, inside ? m : 0);
    u[i] = inside ? pixel.i * p.gather.h.scale + p.gather.h.shift : kNoPixel;
    v[i] = pixel.j * p.gather.w.scale + p.gather.w.shift;
    in_at[i] = pixel.n * p.in_strides.n + group_offset;
    out_at[i] = pixel.n * p.out_strides.n + pixel.i * p.out_strides.h + pixel.j * p.out_strides.w;
  }
  Acc sums[kPixels][PerThread] = {};
  const Acc* row = weights + threadIdx.x % p.channel_lanes * PerThread;
  const T* in = static_cast<const T*>(p.in);
  for (int c = 0; c < p.in_per_group; ++c, in += p.in_strides.c) {
    for (int r = 0; r < p.gather.h.taps; ++r) {
      for (int s = 0; s < p.gather.w.taps; ++s, row += width) {
        const auto w = load_pack<PerThread>(row);
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
          const int a = source_of<Divided>(p.gather.h, u[i] + r * p.gather.h.step);
          const int b = source_of<Divided>(p.gather.w, v[i] + s * p.gather.w.step);
          Acc x = 0;
          if (a >= 0 && b >= 0) {
            x = static_cast<Acc>(in[in_at[i] + a * p.in_strides.h + b * p.in_strides.w]);
          }
#pragma unroll
          for (int e = 0; e < PerThread; ++e) sums[i][e] += x * w[e];
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    if (u[i] != kNoPixel) store_channels<T, PerThread>(p, out_at[i], lane.channel, sums[i]);
  }
}

template <class T, int PerThread>
__device__ __forceinline__ Pack<acc_t<T>, PerThread> load_channels(const DirectWgrad& p,
                                                                   int64_t at) {
  const T* from = static_cast<const T*>(p.dy) + at;
  Pack<T, PerThread> values;
  if (p.vector_dy) {
    values = load_pack<PerThread>(from);
  } else {
#pragma unroll
    for (int e = 0; e < PerThread; ++e) values[e] = from[e * p.dy_strides.c];
  }
  Pack<acc_t<T>, PerThread> wide;
#pragma unroll
  for (int e = 0; e < PerThread; ++e) wide[e] = static_cast<acc_t<T>>(values[e]);
  return wide;
}

// Adds the block's sums over its pixel lanes: lanes of a warp by shuffles, then warps in order.
template <class Acc, int Count>
__device__ __forceinline__ void add_lanes(Acc (&sums)[Count], Acc* shared, int channel_lanes) {
  for (int distance = channel_lanes; distance < 32; distance *= 2) {
#pragma unroll
    for (int e = 0; e < Count; ++e) sums[e] += __shfl_xor_sync(~0u, sums[e], distance);
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = channel_lanes * Count;
  if (lane < channel_lanes) {
#pragma unroll
    for (int e = 0; e < Count; ++e) shared[warp * width + lane * Count + e] = sums[e];
  }
  __syncthreads();
}

// Where a column (i, r, s) lies relative to tap (0, 0) of channel 0 of the group.
struct ColumnTap {
  int64_t offset;
  int du, dv;
};

// math    partials[slice][k][i, r, s] = Σ_m dy[m][k] · x[m ⊕ (r, s)][i]
// grid    one block per slice of pixels, tile of channels k and tile of Columns columns
// passes  one over the slice
// bytes   dy once per column tile, x from caches; partials
// smem    one row of sums per warp
// order   pixels of a lane in order, lanes by a fixed tree; slices are added by conv2d_reduce
template <class T, int PerThread, int Columns>
__global__ void __launch_bounds__(kThreads)
    conv2d_direct_wgrad(const __grid_constant__ DirectWgrad p) {
  start_next_kernel();
  using Acc = acc_t<T>;
  auto* shared = reinterpret_cast<Acc*>(dynamic_shared());
  __shared__ ColumnTap columns[Columns];
  const int column0 = blockIdx.x % p.column_tiles * Columns;
  const int tile = blockIdx.x / p.column_tiles % p.channel_tiles;
  const int64_t slice = blockIdx.x / p.column_tiles / p.channel_tiles;
  const Lane lane(p.channel_lanes, tile, PerThread);
  if (threadIdx.x < Columns) {
    const int column = min(column0 + static_cast<int>(threadIdx.x), p.columns - 1);
    const int s = column % p.gather.w.taps, row = column / p.gather.w.taps;
    const int du = row % p.gather.h.taps * p.gather.h.step, dv = s * p.gather.w.step;
    const int64_t channel = row / p.gather.h.taps * p.x_strides.c;
    columns[threadIdx.x] = {channel + du * p.x_strides.h + dv * p.x_strides.w, du, dv};
  }
  __syncthreads();

  Acc sums[PerThread * Columns] = {};
  const int64_t end = min((slice + 1) * p.slice_pixels, p.gather.out.pixels);
  const int step = kThreads / p.channel_lanes;
  int64_t m = slice * p.slice_pixels + lane.pixel;
  if (lane.channel >= p.k) m = end;
  const T* x = static_cast<const T*>(p.x);
  const int64_t group_offset =
      static_cast<int64_t>(lane.channel / p.k_per_group) * p.c_per_group * p.x_strides.c;
  for (; m < end; m += step) {
    const Pixel pixel = pixel_at(p.gather.out, m);
    const auto dy =
        load_channels<T, PerThread>(p, pixel.n * p.dy_strides.n + lane.channel * p.dy_strides.c +
                                           pixel.i * p.dy_strides.h + pixel.j * p.dy_strides.w);
    const int u = pixel.i * p.gather.h.scale + p.gather.h.shift;
    const int v = pixel.j * p.gather.w.scale + p.gather.w.shift;
    const int64_t at =
        pixel.n * p.x_strides.n + group_offset + u * p.x_strides.h + v * p.x_strides.w;
#pragma unroll
    for (int e = 0; e < Columns; ++e) {
      const ColumnTap tap = columns[e];
      const bool inside = source_of<false>(p.gather.h, u + tap.du) >= 0 &&
                          source_of<false>(p.gather.w, v + tap.dv) >= 0;
      const Acc value = inside ? static_cast<Acc>(x[at + tap.offset]) : 0;
#pragma unroll
      for (int k = 0; k < PerThread; ++k) sums[k * Columns + e] += dy[k] * value;
    }
  }

  add_lanes(sums, shared, p.channel_lanes);
  const int width = p.channel_lanes * PerThread * Columns;
  for (int e = threadIdx.x; e < width; e += kThreads) {
    const int k = tile * p.channel_lanes * PerThread + e / Columns, column = column0 + e % Columns;
    if (k >= p.k || column >= p.columns) continue;
    Acc sum = 0;
    for (int warp = 0; warp < kThreads / 32; ++warp) sum += shared[warp * width + e];
    static_cast<Acc*>(p.partials)[(slice * p.k + k) * p.columns + column] = sum;
  }
}

template <class T, int PerThread>
void launch_direct_gather(Cuda& cuda, const DirectGather& p, int lanes, bool divided) {
  const int64_t blocks =
      ceil_div(p.gather.out.pixels, static_cast<int64_t>(lanes) * kPixels) * p.channel_tiles;
  const size_t shared = sizeof(acc_t<T>) * p.channel_lanes * PerThread * p.in_per_group *
                        p.gather.h.taps * p.gather.w.taps;
  const LaunchShape shape{dim3(exact_blocks(blocks, "conv2d")), kThreads, shared};
  if (divided) {
    launch_kernel(cuda, shape, conv2d_direct_gather<T, PerThread, true>, p);
  } else {
    launch_kernel(cuda, shape, conv2d_direct_gather<T, PerThread, false>, p);
  }
}

template <class T, int PerThread>
void launch_direct_wgrad(Cuda& cuda, DirectWgrad p, int64_t slices) {
  constexpr int kColumns = 9;
  p.column_tiles = static_cast<int>(ceil_div(p.columns, kColumns));
  const int64_t blocks = slices * p.channel_tiles * p.column_tiles;
  const size_t shared = sizeof(acc_t<T>) * p.channel_lanes * PerThread * kColumns * (kThreads / 32);
  launch_kernel(cuda, {dim3(exact_blocks(blocks, "conv2d")), kThreads, shared},
                conv2d_direct_wgrad<T, PerThread, kColumns>, p);
}

}  // namespace

void direct_gather(Cuda& cuda, DType dtype, DirectGather p, const ConvDirectPlan& lanes,
                   bool divided) {
  p.channel_lanes = lanes.channel_lanes;
  p.channel_tiles = static_cast<int>(lanes.channel_tiles);
  visit(Floating{}, dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (lanes.per_thread == 1) {
      launch_direct_gather<T, 1>(cuda, p, lanes.pixel_lanes(), divided);
    } else {
      launch_direct_gather<T, kPack<T>>(cuda, p, lanes.pixel_lanes(), divided);
    }
  });
}

void direct_wgrad(Cuda& cuda, DType dtype, DirectWgrad p, const ConvDirectPlan& lanes,
                  const Chunks& chunks) {
  p.channel_lanes = lanes.channel_lanes;
  p.channel_tiles = static_cast<int>(lanes.channel_tiles);
  p.slice_pixels = chunks.size;
  visit(Floating{}, dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (lanes.per_thread == 1) {
      launch_direct_wgrad<T, 1>(cuda, p, chunks.count);
    } else {
      launch_direct_wgrad<T, kPack<T>>(cuda, p, chunks.count);
    }
  });
}

}  // namespace gradus
