// The backward pass of max_pool2d with windows of 3 x 3 at stride 2 and padding 1, as networks for
// large images have it, for contiguous tensors: a thread writes 16 bytes of two rows.
#include "cuda/max_pool2d_pairs.h"

#include "cuda/device/round.cuh"
#include "cuda/pool_pairs.cuh"

namespace gradus {
namespace {

// dy and the taken taps of windows j, ..., j + N of one row of windows; where there is no window,
// its tap is none.
template <int N, class T>
struct TakenRow {
  acc_t<T> values[N + 1];
  uint32_t taps[N + 1];

  __device__ __forceinline__ TakenRow(const T* dy, const uint8_t* index, bool exists, bool next) {
    Pack<T, N> some{};
    Pack<uint8_t, N> some_taps = repeat_pack<N>(uint8_t(255));
    if (exists) {
      some = load_pack<N>(dy);
      some_taps = load_pack<N>(index);
    }
    const T last = exists && next ? dy[N] : T(0.0f);
#pragma unroll
    for (int e = 0; e < N; ++e) values[e] = static_cast<acc_t<T>>(some[e]), taps[e] = some_taps[e];
    values[N] = static_cast<acc_t<T>>(last);
    taps[N] = exists && next ? index[N] : 255;
  }
  // What tap (r, s) of window j + e passes to its element.
  __device__ __forceinline__ acc_t<T> from(int e, int r, int s) const {
    return taps[e] == static_cast<uint32_t>(3 * r + s) ? values[e] : acc_t<T>(0);
  }
};

// math    dx = Σ dy over the windows that took the element
// grid    1-D; a thread takes rows 2i and 2i + 1 of 2N neighbours of dx: here `across` is w / 2N
// and
//         `rows` is ceil(h / 2)
// bytes   fewest = actual from memory: dy and the index again for the row above, from the cache
// needs   contiguous; w = 2q, N divides q; dx aligned to 2N elements, dy and index to N
// order   windows in row-major order
// Measured at 64x128x112x112: 98 % of a copy in f32 and 96 % in bf16; element by element 14 and 7
// %.
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_backward_3x3_stride_2(const __grid_constant__ Pairs g, const T* __restrict__ dy,
                                     const uint8_t* __restrict__ index, T* __restrict__ dx) {
  using A = acc_t<T>;
  const I unit = static_cast<I>(blockIdx.x) * kPairThreads + threadIdx.x;
  if (unit >= static_cast<I>(g.units)) return;
  const RowPlace<I> place(g, unit);
  const int i = static_cast<int>(place.i), j = static_cast<int>(place.column) * N;
  const I from = (place.plane * static_cast<I>(g.p) + place.i) * static_cast<I>(g.q) + j;
  const bool next = j + N < g.q;
  const TakenRow<N, T> above(dy + from, index + from, i < g.p, next);
  const TakenRow<N, T> below(dy + from + g.q, index + from + g.q, i + 1 < g.p, next);
  A even[2 * N], odd[2 * N];
#pragma unroll
  for (int e = 0; e < N; ++e) {
    even[2 * e] = above.from(e, 1, 1);
    even[2 * e + 1] = above.from(e, 1, 2) + above.from(e + 1, 1, 0);
    odd[2 * e] = above.from(e, 2, 1) + below.from(e, 0, 1);
    odd[2 * e + 1] = above.from(e, 2, 2) + above.from(e + 1, 2, 0);
    odd[2 * e + 1] = (odd[2 * e + 1] + below.from(e, 0, 2)) + below.from(e + 1, 0, 0);
  }
  T* to = dx + ((place.plane * static_cast<I>(g.h) + 2 * place.i) * static_cast<I>(g.w) + 2 * j);
  store_pack(to, round_pack<T, 2 * N>(even));
  if (2 * i + 1 < g.h) store_pack(to + g.w, round_pack<T, 2 * N>(odd));
}

}  // namespace

bool max_pool2d_strided_backward(Cuda& cuda, const MaxPool2dBackward& args) {
  const Window& window = args.window;
  if (window.kernel != Pair(3) || window.stride != Pair(2) || window.padding != Pair(1) ||
      window.dilation != Pair(1)) {
    return false;
  }
  const MemoryFormat format = format_of(args.dx, args.name);
  const Image dx(args.dx, format), dy(args.dy, format);
  if (format == MemoryFormat::channels_last || dx.numel() == 0) return false;
  bool launched = false;
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int N = kFullPack<T> / 2;
    const auto* index = args.index.as<const uint8_t>();
    if (pair_row_width(dx, dy, sizeof(T)) != kFullPack<T> ||
        reinterpret_cast<uintptr_t>(index) % N != 0) {
      return;
    }
    Pairs g = make_pairs(dx, dy);
    g.across = FastDivisor(static_cast<uint32_t>(dx.w / (2 * N)));
    g.rows = FastDivisor(static_cast<uint32_t>(ceil_div(dx.h, 2)));
    g.units = dx.n * dx.channels * ceil_div(dx.h, 2) * (dx.w / (2 * N));
    visit_index_type(dx, [&](auto index_type) {
      max_pool2d_backward_3x3_stride_2<N, typename decltype(index_type)::type>
          <<<pair_blocks(g.units, 1), kPairThreads, 0, cuda.stream()>>>(g, args.dy.as<const T>(),
                                                                        index, args.dx.as<T>());
    });
    launched = true;
  });
  return launched;
}

}  // namespace gradus
