// Operands of conv2d's kernels for Hopper: weights in the order of their sums, f32 in two parts.
#include <algorithm>

#include "core/dtype.h"
#include "cuda/conv2d_wgmma_kernels.h"
#include "cuda/device/split_tf32.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {
namespace {

constexpr int kThreads = 256;
constexpr int kTurn = 32;  // sides of the blocks' tiles

// math    to[part][out][tap][in] = from[out][in][tap'] (backward: from[in][out][tap']), tap' the
//         part's tap of the window; split: the big parts, then the small ones
// grid    32 pairs (out, tap) x 32 channels in, those fastest; y the part
// bytes   from and to once
// smem    the tile, so that neighbouring threads both read and write neighbours in memory
// needs   at most 2^31 pairs (out, tap)
template <class T>
__global__ void __launch_bounds__(kThreads)
    conv2d_pack_wgmma_weights(const __grid_constant__ WgmmaWeights p) {
  start_next_kernel();
  constexpr int kPitch = kTurn + (sizeof(T) == 2 ? 2 : 1), kWarps = kThreads / kTurn;
  __shared__ T tile[kTurn * kPitch];
  const WgmmaTaps& taps = p.parts[blockIdx.y];
  const int count = taps.h_taps * taps.w_taps, window = p.kernel_h * p.kernel_w;
  const int rows = p.out * count, across = (p.in + kTurn - 1) / kTurn;
  const int row0 = static_cast<int>(blockIdx.x) / across * kTurn;
  const int in0 = static_cast<int>(blockIdx.x) % across * kTurn;
  const int lane = threadIdx.x % kTurn, warp = threadIdx.x / kTurn;
  if (row0 + lane < rows) {
    const int out = (row0 + lane) / count, tap = row0 + lane - out * count;
    const int h = tap / taps.w_taps, w = tap - h * taps.w_taps;
    const int at = (taps.h_first + h * taps.h_step) * p.kernel_w + taps.w_first + w * taps.w_step;
    const int64_t step = static_cast<int64_t>(p.backward ? p.out : 1) * window;
    const T* const from = static_cast<const T*>(p.from) +
                          static_cast<int64_t>(out) * (p.backward ? 1 : p.in) * window + at;
#pragma unroll
    for (int k = 0; k < kTurn; k += kWarps) {
      const int in = k + warp;
      if (in0 + in < p.in) tile[lane * kPitch + in] = from[(in0 + in) * step];
    }
  }
  __syncthreads();
  if (in0 + lane >= p.in) return;
#pragma unroll
  for (int k = 0; k < kTurn; k += kWarps) {
    const int row = k + warp;
    if (row0 + row >= rows) continue;
    const T value = tile[row * kPitch + lane];
    T* const to =
        static_cast<T*>(p.to) + taps.offset + static_cast<int64_t>(row0 + row) * p.in + in0 + lane;
    if constexpr (sizeof(T) == 4) {
      if (p.split) {
        const SplitFloat parts = split_tf32(value);
        *to = parts.big;
        to[static_cast<int64_t>(rows) * p.in] = parts.small;
        continue;
      }
    }
    *to = value;
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

}  // namespace

void pack_wgmma_weights(Cuda& cuda, DType dtype, const WgmmaWeights& p) {
  int most = 0;
  for (int i = 0; i < p.part_count; ++i) {
    most = std::max(most, p.parts[i].h_taps * p.parts[i].w_taps);
  }
  const int64_t blocks =
      ceil_div(static_cast<int64_t>(p.out) * most, kTurn) * ceil_div(p.in, kTurn);
  visit(Floating{}, dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const dim3 grid(exact_blocks(blocks, "conv2d"), static_cast<unsigned>(p.part_count));
    launch_kernel(cuda, {.grid = grid, .threads = kThreads}, conv2d_pack_wgmma_weights<T>, p);
  });
}

void split_f32(Cuda& cuda, const float* from, float* to, int64_t count) {
  const int64_t blocks = ceil_div(count, 4 * kThreads);
  launch_kernel(cuda, {dim3(exact_blocks(blocks, "conv2d")), kThreads}, conv2d_split_f32, from, to,
                count);
}

}  // namespace gradus
