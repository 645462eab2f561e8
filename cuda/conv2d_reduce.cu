// Second stage of the weight and bias gradients: the slices' partial sums, added in order. It is
// ready to run when the first stage ends.
#include <type_traits>

#include "core/dtype.h"
#include "cuda/conv2d_kernels.h"
#include "cuda/device/quotient.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/slice_sum.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {
namespace {

constexpr int kThreads = 256;

// math    out[row][c][tap] = Σ_slice partials[slice][row][tap][c]
// grid    one block per Columns neighbouring partial sums; 256 / Columns threads add for each
// bytes   the partials once
// smem    one sum per warp and column
// order   a thread adds every (256 / Columns)-th slice; a warp's threads of a column are added in
//         pairs, so are the warps
// Ahead slices of a thread are on their way at a time.
template <class T, int Columns, int Ahead>
__global__ void __launch_bounds__(kThreads)
    conv2d_reduce(const __grid_constant__ SliceSum p, FastDivisor per_row, FastDivisor padded) {
  using Acc = acc_t<T>;
  constexpr int kLanes = kThreads / Columns, kWarps = kThreads / 32;
  __shared__ Acc sums[kWarps][Columns];
  const int lane = threadIdx.x / Columns, column = threadIdx.x % Columns;
  const int64_t count = p.rows * per_row.divisor;
  const auto slices = static_cast<int>(p.slices);
  const int64_t e = static_cast<int64_t>(blockIdx.x) * Columns + column;
  const int64_t row = quotient(per_row, e);
  const int position = static_cast<int>(e - row * per_row.divisor);
  const int tap = static_cast<int>(padded.quotient(position));
  const int c = position - tap * p.padded_channels;
  if (p.first_fills) start_next_kernel();
  wait_for_previous_kernel();
  if (!p.first_fills) start_next_kernel();
  const Acc* const first = static_cast<const Acc*>(p.partials) + e;
  Acc sum = 0;
  if (e < count) sum = add_slices<Ahead, 1>(first, count, slices, lane, kLanes)[0];
#pragma unroll
  for (int i = Columns; i < 32; i *= 2) sum += __shfl_xor_sync(0xffffffff, sum, i);
  if (threadIdx.x % 32 < Columns) sums[threadIdx.x / 32][column] = sum;
  __syncthreads();
  if (lane != 0 || e >= count || c >= p.channels) return;
  Acc warps[kWarps];
#pragma unroll
  for (int i = 0; i < kWarps; ++i) warps[i] = sums[i][column];
  static_cast<T*>(p.out)[(row * p.channels + c) * p.taps + tap] =
      static_cast<T>(((warps[0] + warps[1]) + (warps[2] + warps[3])) +
                     ((warps[4] + warps[5]) + (warps[6] + warps[7])));
}

constexpr int kChannels = 32;  // of a block of the kernel below

// math    as above
// grid    one block per row and 32 channels, a warp for each of up to 32 taps
// bytes   the partials once, out once
// smem    the block's sums, which are one run of `out`
// order   slices one after the other
template <class T>
__global__ void __launch_bounds__(kChannels * 32)
    conv2d_reduce_channels(const __grid_constant__ SliceSum p, int channel_tiles) {
  using Acc = acc_t<T>;
  auto* const sums = reinterpret_cast<Acc*>(dynamic_shared());  // [channel][tap]
  const int64_t row = blockIdx.x / channel_tiles;
  const int channel0 = static_cast<int>(blockIdx.x % channel_tiles) * kChannels;
  const int lane = threadIdx.x % kChannels, c = channel0 + lane;
  const int64_t count = p.rows * p.padded_channels * p.taps;
  const auto slices = static_cast<int>(p.slices);
  wait_for_previous_kernel();
  start_next_kernel();
  for (int tap = threadIdx.x / kChannels; tap < p.taps; tap += blockDim.x / kChannels) {
    Acc sum = 0;
    if (c < p.channels) {
      const Acc* const first =
          static_cast<const Acc*>(p.partials) + (row * p.taps + tap) * p.padded_channels + c;
      sum = add_slices<8, 1>(first, count, slices, 0, 1)[0];
    }
    sums[lane * p.taps + tap] = sum;
  }
  __syncthreads();
  const int run = min(kChannels, p.channels - channel0) * p.taps;
  T* const out = static_cast<T*>(p.out) + (row * p.channels + channel0) * p.taps;
  for (int i = threadIdx.x; i < run; i += blockDim.x) out[i] = static_cast<T>(sums[i]);
}

}  // namespace

void sum_slices(Cuda& cuda, DType out, const SliceSum& p) {
  const int64_t count = p.rows * p.padded_channels * p.taps;
  if (count == 0) return;
  if (conv_reduces_channels(p.channels, p.taps, p.slices)) {
    const int64_t tiles = ceil_div(p.channels, kChannels);
    return visit(Floating{}, out, [&](auto type) {
      using T = typename decltype(type)::type;
      launch_overlapping(
          cuda,
          {dim3(exact_blocks(p.rows * tiles, "conv2d")), kChannels * std::min(p.taps, 32),
           static_cast<size_t>(kChannels * p.taps) * sizeof(acc_t<T>)},
          conv2d_reduce_channels<T>, p, static_cast<int>(tiles));
    });
  }
  const auto add = [&](auto columns, auto ahead) {
    constexpr int kColumns = columns.value, kAhead = ahead.value;
    const dim3 blocks(exact_blocks(ceil_div(count, kColumns), "conv2d"));
    visit(Floating{}, out, [&](auto type) {
      using T = typename decltype(type)::type;
      launch_overlapping(cuda, {blocks, kThreads}, conv2d_reduce<T, kColumns, kAhead>, p,
                         FastDivisor(static_cast<uint32_t>(count / p.rows)),
                         FastDivisor(static_cast<uint32_t>(p.padded_channels)));
    });
  };
  switch (plan_conv_reduce_columns(count, p.slices, p.first_fills)) {
    case 8:
      return add(std::integral_constant<int, 8>{}, std::integral_constant<int, 9>{});
    case 16:
      return add(std::integral_constant<int, 16>{},
                 std::integral_constant<int, kConvReduceAhead>{});
    default:
      return add(std::integral_constant<int, 32>{}, std::integral_constant<int, 8>{});
  }
}

}  // namespace gradus
