// max_pool2d on CUDA. Channels-last tensors go in packs of 16 bytes of channels, others one by one.
#include "core/dtype.h"
#include "core/ops/max_pool2d.h"
#include "cuda/device/max_pool2d.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/image.h"
#include "cuda/launch_kernel.cuh"
#include "cuda/max_pool2d_pairs.h"
#include "cuda/plan.h"

namespace gradus {
namespace {

constexpr int kThreads = 256;

// Terms, at most, that are added one to the other before their sum is added to that of the others.
constexpr int kChain = 256;

// The winner of a window so far: the first of equals, the first NaN over all.
template <class T, int PerThread>
struct Best {
  acc_t<T> values[PerThread];
  int taken[PerThread];
  bool found = false;
  __device__ __forceinline__ void compete(const Pack<T, PerThread>& candidates, int tap) {
#pragma unroll
    for (int e = 0; e < PerThread; ++e) {
      const auto value = static_cast<acc_t<T>>(candidates[e]);
      const bool wins = !found || (!(value <= values[e]) && values[e] == values[e]);
      values[e] = wins ? value : values[e];
      taken[e] = wins ? tap : taken[e];
    }
    found = true;
  }
};

// The taps of a window along one axis that meet x: first, ..., end - 1.
struct TapsInside {
  int first, end;
  __device__ __forceinline__ TapsInside(const PoolAxis& axis, int start) {
    const auto steps = [&](int distance) {  // the fewest that go as far
      const int up = distance + axis.dilation - 1;
      return static_cast<int>(axis.by_dilation.quotient(static_cast<uint32_t>(up)));
    };
    first = start >= 0 ? 0 : steps(-start);
    end = min(steps(axis.extent - start), axis.kernel);
  }
};

// math    y = max of the window, index = r·S + s of the first maximum, or of the first NaN
// grid    one thread per PerThread channels of an output pixel
// bytes   x once (overlaps from caches), y and index once
// order   window elements in row-major order
// Side: that of a square window whose loads are all in flight together, or 0 for any window
template <class T, class Index, int PerThread, int Side>
__global__ void __launch_bounds__(kThreads)
    max_pool2d_forward(const __grid_constant__ Pool p, const T* x, T* y, Index* index) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= p.count) return;
  const PoolItem item = pool_item<PerThread>(p, thread);
  const T* plane = x + item.n * p.x.n + item.channel * p.x.c;
  const int top = item.i * p.h.stride - p.h.padding, left = item.j * p.w.stride - p.w.padding;
  Best<T, PerThread> best;
  if constexpr (Side > 0) {
    const auto is_inside = [&](int h, int w) {
      return h >= 0 && h < p.h.extent && w >= 0 && w < p.w.extent;
    };
    Pack<T, PerThread> taps[Side * Side];
#pragma unroll
    for (int tap = 0; tap < Side * Side; ++tap) {
      const int h = top + tap / Side * p.h.dilation, w = left + tap % Side * p.w.dilation;
      if (is_inside(h, w)) taps[tap] = load_pack<PerThread>(plane + h * p.x.h + w * p.x.w);
    }
#pragma unroll
    for (int tap = 0; tap < Side * Side; ++tap) {
      const int h = top + tap / Side * p.h.dilation, w = left + tap % Side * p.w.dilation;
      if (is_inside(h, w)) best.compete(taps[tap], tap);
    }
  } else {
    const TapsInside rows(p.h, top), columns(p.w, left);
    for (int r = rows.first; r < rows.end; ++r) {
      const T* row = plane + (top + r * p.h.dilation) * p.x.h;
      for (int s = columns.first; s < columns.end; ++s) {
        const int w = left + s * p.w.dilation;
        best.compete(load_pack<PerThread>(row + w * p.x.w), r * p.w.kernel + s);
      }
    }
  }
  const int64_t at = item.n * p.y.n + item.channel * p.y.c + item.i * p.y.h + item.j * p.y.w;
  store_pack(y + at, narrow_pack<T>(best.values));
  Pack<Index, PerThread> taken;
#pragma unroll
  for (int e = 0; e < PerThread; ++e) taken[e] = static_cast<Index>(best.taken[e]);
  if (index != nullptr) store_pack(index + at, taken);
}

// The windows along one axis that hold input coordinate `at`: positions first, ..., last.
struct Covering {
  int first, last;
  __device__ __forceinline__ Covering(const PoolAxis& axis, int at) {
    const int end = at + axis.padding, before = end - axis.reach;
    first = before <= 0 ? 0 : axis.by_stride.quotient(before + axis.stride - 1);
    last = min(static_cast<int>(axis.by_stride.quotient(end)), axis.positions - 1);
  }
};

// math    dx[h][w] = Σ dy over the windows that took (h, w), 0 if there are none
// grid    one thread per PerThread channels of an input pixel; each element is written once
// bytes   dy and index once (again per overlap, from caches), dx once
// order   windows in row-major order, in chains
// Dense: dilation 1, so that every element between the ends of a window is one of its taps
template <class T, class Index, int PerThread, bool Dense>
__global__ void __launch_bounds__(kThreads)
    max_pool2d_backward_gather(const __grid_constant__ Pool p, const T* dy, const Index* index,
                               T* dx) {
  using Acc = acc_t<T>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= p.count) return;
  const PoolItem item = pool_item<PerThread>(p, thread);
  const Covering rows(p.h, item.i), columns(p.w, item.j);
  Acc sums[PerThread] = {}, chain[PerThread] = {};
  int terms = 0;
  const auto end_chain = [&] {
#pragma unroll
    for (int e = 0; e < PerThread; ++e) {
      sums[e] += chain[e];
      chain[e] = 0;
    }
  };
  for (int i = rows.first; i <= rows.last; ++i) {
    const int down = item.i + p.h.padding - i * p.h.stride;
    const int r = Dense ? down : down / p.h.dilation;
    if (!Dense && r * p.h.dilation != down) continue;
    for (int j = columns.first; j <= columns.last; ++j) {
      const int along = item.j + p.w.padding - j * p.w.stride;
      const int s = Dense ? along : along / p.w.dilation;
      if (!Dense && s * p.w.dilation != along) continue;
      const int64_t at = item.n * p.y.n + item.channel * p.y.c + i * p.y.h + j * p.y.w;
      const auto values = load_pack<PerThread>(dy + at);
      const auto taken = load_pack<PerThread>(index + at);
#pragma unroll
      for (int e = 0; e < PerThread; ++e) {
        const bool is_taken = static_cast<int>(taken[e]) == r * p.w.kernel + s;
        chain[e] += is_taken ? static_cast<Acc>(values[e]) : Acc(0);
      }
      if (++terms % kChain == 0) end_chain();
    }
  }
  end_chain();
  Pack<T, PerThread> result;
#pragma unroll
  for (int e = 0; e < PerThread; ++e) result[e] = static_cast<T>(sums[e]);
  store_pack(dx + item.n * p.x.n + item.channel * p.x.c + item.i * p.x.h + item.j * p.x.w, result);
}

// math    as above, for windows that tile the input: kernel = stride, dilation 1, no padding
// grid    one thread per PerThread channels of a window, and of what the windows leave uncovered
// bytes   dy, index and dx once
// order   nothing is added
template <class T, class Index, int PerThread>
__global__ void __launch_bounds__(kThreads)
    max_pool2d_backward_tiles(const __grid_constant__ Pool p, const T* dy, const Index* index,
                              T* dx) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= p.count) return;
  const PoolItem item = pool_item<PerThread>(p, thread);
  const bool covered = item.i < p.h.positions && item.j < p.w.positions;
  Pack<T, PerThread> values{};
  Pack<Index, PerThread> taken{};
  if (covered) {
    const int64_t at = item.n * p.y.n + item.channel * p.y.c + item.i * p.y.h + item.j * p.y.w;
    values = load_pack<PerThread>(dy + at);
    taken = load_pack<PerThread>(index + at);
  }
  T* plane = dx + item.n * p.x.n + item.channel * p.x.c;
  for (int r = 0; r < p.h.kernel; ++r) {
    const int h = item.i * p.h.stride + r;
    if (h >= p.h.extent) break;
    for (int s = 0; s < p.w.kernel; ++s) {
      const int w = item.j * p.w.stride + s;
      if (w >= p.w.extent) break;
      Pack<T, PerThread> result;
#pragma unroll
      for (int e = 0; e < PerThread; ++e) {
        const bool is_taken = static_cast<int>(taken[e]) == r * p.w.kernel + s;
        result[e] = covered && is_taken ? values[e] : T(0.0f);
      }
      store_pack(plane + h * p.x.h + w * p.x.w, result);
    }
  }
}

// Extent and padding are below 2^28, so that no stride, dilation or reach matters beyond kMost:
// sums stay below 2^31.
PoolAxis pool_axis(const Window& window, size_t i, int extent, int positions) {
  constexpr int64_t kMost = 1 << 29;
  if (window.padding[i] >= (1 << 28)) {
    fail(ErrorCode::unsupported, "max_pool2d", "on CUDA the padding must be below 2^28, got ",
         window.padding[i]);
  }
  PoolAxis axis;
  axis.extent = extent;
  axis.positions = positions;
  axis.kernel = static_cast<int>(window.kernel[i]);
  axis.stride = static_cast<int>(std::min(window.stride[i], kMost));
  axis.padding = static_cast<int>(window.padding[i]);
  axis.dilation = static_cast<int>(std::min(window.dilation[i], kMost));
  axis.reach = static_cast<int>(std::min(window.span(static_cast<int>(i)) - 1, kMost));
  axis.by_stride = FastDivisor(static_cast<uint32_t>(axis.stride));
  axis.by_dilation = FastDivisor(static_cast<uint32_t>(axis.dilation));
  return axis;
}

// Threads numbered over `height` x `width` places of each image.
Pool make_pool(const Image& x, const Image& y, const Window& window, int per_thread, int height,
               int width) {
  Pool p;
  p.h = pool_axis(window, 0, x.h, y.h);
  p.w = pool_axis(window, 1, x.w, y.w);
  p.x = x.strides();
  p.y = y.strides();
  p.items = FastDivisor(static_cast<uint32_t>(x.channels / per_thread));
  p.height = FastDivisor(static_cast<uint32_t>(height));
  p.width = FastDivisor(static_cast<uint32_t>(width));
  p.count = x.n * (x.channels / per_thread) * height * width;
  p.pixel_major = per_thread > 1 || (x.pixel_major && y.pixel_major);
  return p;
}

template <class Kernel, class... Args>
void launch_pool(Cuda& cuda, const Pool& p, Kernel kernel, const Args&... args) {
  const int64_t blocks = ceil_div(p.count, kThreads);
  launch_kernel(cuda, {dim3(exact_blocks(blocks, "max_pool2d")), kThreads}, kernel, p, args...);
}

// Calls f with the types of the elements and of the index, and the channels that a thread takes:
// 16 bytes of them where all three tensors allow it.
template <class F>
void visit_pool(DType dtype, const Image& x, const Image& y, const AnyView& index, const F& f) {
  Image indices = y;
  indices.data = index.data;
  visit(Floating{}, dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto with_index = [&](auto narrow) {
      using Index = typename decltype(narrow)::type;
      constexpr int kPack = 16 / static_cast<int>(std::max(sizeof(T), sizeof(Index)));
      const bool packs = x.has_packs(kPack, sizeof(T)) && y.has_packs(kPack, sizeof(T)) &&
                         indices.has_packs(kPack, sizeof(Index));
      if (packs) {
        f(type, narrow, std::integral_constant<int, kPack>());
      } else {
        f(type, narrow, std::integral_constant<int, 1>());
      }
    };
    if (index.given && index.dtype == DType::i32) {
      with_index(Type<int32_t>());
    } else {
      with_index(Type<uint8_t>());
    }
  });
}

}  // namespace

void run(Cuda& cuda, const MaxPool2dForward& args) {
  if (packs_index(args.window)) return max_pool2d_pairs_forward(cuda, args);
  if (max_pool2d_strided_forward(cuda, args)) return;
  const MemoryFormat format = format_of(args.x, args.name);
  const Image x(args.x, format), y(args.y, format);
  if (y.numel() == 0) return;
  visit_pool(args.x.dtype, x, y, args.index, [&](auto type, auto narrow, auto per_thread) {
    using T = typename decltype(type)::type;
    using Index = typename decltype(narrow)::type;
    constexpr int kPerThread = decltype(per_thread)::value;
    const auto kernel = args.window.kernel == Pair(3) ? max_pool2d_forward<T, Index, kPerThread, 3>
                                                      : max_pool2d_forward<T, Index, kPerThread, 0>;
    launch_pool(cuda, make_pool(x, y, args.window, kPerThread, y.h, y.w), kernel,
                args.x.as<const T>(), args.y.as<T>(), args.index.as<Index>());
  });
}

void run(Cuda& cuda, const MaxPool2dBackward& args) {
  if (packs_index(args.window)) return max_pool2d_pairs_backward(cuda, args);
  if (max_pool2d_strided_backward(cuda, args)) return;
  const MemoryFormat format = format_of(args.dx, args.name);
  const Image dx(args.dx, format), dy(args.dy, format);
  if (dx.numel() == 0) return;
  const Window& window = args.window;
  const bool tiles = window.kernel == window.stride && window.padding == Pair{0, 0} &&
                     window.dilation == Pair{1, 1};
  visit_pool(args.dx.dtype, dx, dy, args.index, [&](auto type, auto narrow, auto per_thread) {
    using T = typename decltype(type)::type;
    using Index = typename decltype(narrow)::type;
    constexpr int kPerThread = decltype(per_thread)::value;
    const T* from = args.dy.as<const T>();
    const Index* index = args.index.as<const Index>();
    T* to = args.dx.as<T>();
    if (tiles && dx.pixel_major) {
      const int across = static_cast<int>(ceil_div(dx.w, window.stride[1]));
      const int down = static_cast<int>(ceil_div(dx.h, window.stride[0]));
      launch_pool(cuda, make_pool(dx, dy, window, kPerThread, down, across),
                  max_pool2d_backward_tiles<T, Index, kPerThread>, from, index, to);
    } else {
      const auto kernel = window.dilation == Pair(1)
                              ? max_pool2d_backward_gather<T, Index, kPerThread, true>
                              : max_pool2d_backward_gather<T, Index, kPerThread, false>;
      launch_pool(cuda, make_pool(dx, dy, window, kPerThread, dx.h, dx.w), kernel, from, index, to);
    }
  });
}

}  // namespace gradus
