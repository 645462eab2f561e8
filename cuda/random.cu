#include "core/ops/random.h"

#include "cuda/context.h"
#include "cuda/plan.h"
#include "cuda/random_state.h"

namespace gradus {
namespace {

constexpr int kThreads = 256;

// math:  core/ops/random.h
// grid:  1-D, any number of blocks; one thread per block of random bits, stepping over the grid
// bytes: fewest = actual: y written once
template <class T, class Draw>
__global__ void __launch_bounds__(kThreads)
    random_fill(const Draw draw, const int64_t* state, T* y, int64_t count) {
  constexpr int n = Draw::kPerBlock;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  int64_t block = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; block * n < count; block += step) {
    T values[n];
    draw(random_block(state, block), values);
#pragma unroll
    for (int j = 0; j < n; ++j) {
      if (block * n + j < count) y[block * n + j] = values[j];
    }
  }
}

__global__ void random_count_call(int64_t* state) { ++state[1]; }

}  // namespace

void count_random_call(Cuda& cuda, const AnyView& state) {
  random_count_call<<<1, 1, 0, cuda.stream()>>>(state.as<int64_t>());
}

void run(Cuda& cuda, const Random& args) {
  const int64_t count = args.y.numel();
  visit_draw(args, [&](auto type, const auto& draw) {
    using T = typename decltype(type)::type;
    constexpr int64_t n = std::remove_cvref_t<decltype(draw)>::kPerBlock;
    if (count == 0) return;
    random_fill<<<stepping_blocks(ceil_div(count, n), kThreads), kThreads, 0, cuda.stream()>>>(
        draw, args.state.as<int64_t>(), args.y.as<T>(), count);
  });
  count_random_call(cuda, args.state);
}

}  // namespace gradus
