#include "core/ops/dropout.h"

#include "cuda/context.h"
#include "cuda/device/vector.cuh"
#include "cuda/plan.h"
#include "cuda/random_state.h"

namespace gradus {
namespace {

constexpr int kThreads = 256;
constexpr int kQuad = 4;  // elements of a thread, as many as a block of random bits serves

// y = x·keep·scale for the elements from `first` on. Wide: they are whole packs.
template <bool Wide, class T>
__device__ void scale_quad(const T* x, const bool (&keep)[kQuad], acc_t<T> scale, T* y,
                           int64_t first, int64_t count) {
  constexpr int N = Wide ? (sizeof(T) == 8 ? 2 : kQuad) : 1;
#pragma unroll
  for (int j = 0; j < kQuad; j += N) {
    if (!Wide && first + j >= count) return;
    const Pack<T, N> from = load_pack<N>(x + first + j);
    Pack<T, N> to;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      to[i] = static_cast<T>(static_cast<acc_t<T>>(from[i]) * (keep[j + i] ? scale : acc_t<T>(0)));
    }
    store_pack(y + first + j, to);
  }
}

// math:  core/ops/dropout.h
// grid:  1-D, any number of blocks; four elements per thread, stepping over the grid
// bytes: fewest = actual: x read once, y and keep written once
// needs: Wide: count a multiple of 4; x and y aligned to their packs, keep to 4 bytes
template <bool Wide, class T>
__global__ void __launch_bounds__(kThreads)
    dropout_forward_quad(const T* x, T* y, uint8_t* kept, const int64_t* state, uint32_t steps,
                         acc_t<T> scale, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  int64_t quad = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; quad * kQuad < count; quad += step) {
    const int64_t first = quad * kQuad;
    const Philox4 bits = random_block(state, quad);
    bool keep[kQuad];
    Pack<uint8_t, kQuad> bytes;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      keep[j] = (bits.words[j] >> 8) >= steps;
      bytes[j] = keep[j];
    }
    scale_quad<Wide>(x, keep, scale, y, first, count);
    if constexpr (Wide) {
      store_pack(kept + first, bytes);
    } else {
      for (int j = 0; j < kQuad && first + j < count; ++j) kept[first + j] = bytes[j];
    }
  }
}

// grid, bytes, needs: as dropout_forward_quad
template <bool Wide, class T>
__global__ void __launch_bounds__(kThreads)
    dropout_backward_quad(const T* dy, T* dx, const uint8_t* kept, acc_t<T> scale, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  int64_t quad = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; quad * kQuad < count; quad += step) {
    const int64_t first = quad * kQuad;
    bool keep[kQuad] = {};
    if constexpr (Wide) {
      const Pack<uint8_t, kQuad> bytes = load_pack<kQuad>(kept + first);
#pragma unroll
      for (int j = 0; j < kQuad; ++j) keep[j] = bytes[j] != 0;
    } else {
      for (int j = 0; j < kQuad && first + j < count; ++j) keep[j] = kept[first + j] != 0;
    }
    scale_quad<Wide>(dy, keep, scale, dx, first, count);
  }
}

template <class T>
bool is_wide(const T* from, const T* to, const uint8_t* keep, int64_t count) {
  constexpr int N = sizeof(T) == 8 ? 2 : kQuad;
  return pack_width(sizeof(T), {from, to}, {}) >= N && pack_width(1, {keep}, {count}) >= kQuad;
}

unsigned blocks_of(int64_t count) { return stepping_blocks(ceil_div(count, kQuad), kThreads); }

}  // namespace

void run(Cuda& cuda, const DropoutForward& args) {
  const int64_t count = args.x.numel();
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (count == 0) return;
    const T* x = args.x.as<T>();
    T* y = args.y.as<T>();
    uint8_t* keep = args.keep.as<uint8_t>();
    const auto kernel =
        is_wide(x, y, keep, count) ? dropout_forward_quad<true, T> : dropout_forward_quad<false, T>;
    kernel<<<blocks_of(count), kThreads, 0, cuda.stream()>>>(
        x, y, keep, args.state.as<int64_t>(), probability_steps(args.p),
        static_cast<acc_t<T>>(1 / (1 - args.p)), count);
  });
  count_random_call(cuda, args.state);
}

void run(Cuda& cuda, const DropoutBackward& args) {
  const int64_t count = args.dx.numel();
  if (count == 0) return;
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* dy = args.dy.as<T>();
    T* dx = args.dx.as<T>();
    const uint8_t* keep = args.keep.as<uint8_t>();
    const auto kernel = is_wide(dy, dx, keep, count) ? dropout_backward_quad<true, T>
                                                     : dropout_backward_quad<false, T>;
    kernel<<<blocks_of(count), kThreads, 0, cuda.stream()>>>(
        dy, dx, keep, static_cast<acc_t<T>>(1 / (1 - args.p)), count);
  });
}

}  // namespace gradus
