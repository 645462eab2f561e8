// Operands of conv2d's kernels for Hopper: weights in the order of their sums, f32 in two parts.
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

}  // namespace

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
