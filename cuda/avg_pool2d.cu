// avg_pool2d and adaptive_avg_pool2d on CUDA. Channels-last tensors go in packs of 16 bytes of
// channels, others one by one.
#include "core/ops/avg_pool2d.h"

#include "cuda/device/quotient.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/image.h"
#include "cuda/launch_kernel.cuh"
#include "cuda/plan.h"

namespace gradus {
namespace {

constexpr int kThreads = 256;

// a / d for the divisions of AvgAxis.
struct Divide {
  FastDivisor divisor;
  __device__ __forceinline__ int64_t operator()(int64_t a) const { return quotient(divisor, a); }
};

// The threads are numbered over the elements (or packs of channels) of one of the tensors in the
// order of memory.
struct AvgPlan {
  AvgWindows windows;
  Divide h_positions, w_positions;  // of AvgAxis::window
  Divide h_step, w_step;            // of AvgAxis::holders
  FastDivisor items, width, height;
  ImageStrides x, y;  // elements
  int64_t count = 0;
  bool pixel_major = false;
};

struct AvgPlace {
  int64_t n, channel, i, j;
};

template <int PerThread>
__device__ __forceinline__ AvgPlace place_of(const AvgPlan& p, int64_t index) {
  const auto split = [&index](const FastDivisor& d) {
    const int64_t whole = quotient(d, index), part = index - whole * d.divisor;
    index = whole;
    return part;
  };
  AvgPlace place;
  if (p.pixel_major) place.channel = split(p.items) * PerThread;
  place.j = split(p.width);
  place.i = split(p.height);
  if (!p.pixel_major) place.channel = split(p.items) * PerThread;
  place.n = index;
  return place;
}

// math:  y = (sum of the window) / divisor
// grid:  1-D; one thread per PerThread channels of an output pixel
// bytes: x once (again per overlap, from caches), y once
// order: row-major within the window
template <class T, int PerThread>
__global__ void __launch_bounds__(kThreads)
    avg_pool2d_forward(const __grid_constant__ AvgPlan p, const T* x, T* y) {
  using A = acc_t<T>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= p.count) return;
  const AvgPlace place = place_of<PerThread>(p, thread);
  const AvgAxis::Range rows = p.windows.h.window(place.i, p.h_positions);
  const AvgAxis::Range columns = p.windows.w.window(place.j, p.w_positions);
  const T* plane = x + place.n * p.x.n + place.channel * p.x.c;
  A sums[PerThread] = {};
  for (int64_t r = rows.begin; r < rows.end; ++r) {
#pragma unroll 4
    for (int64_t s = columns.begin; s < columns.end; ++s) {
      const auto values = load_pack<PerThread>(plane + r * p.x.h + s * p.x.w);
#pragma unroll
      for (int e = 0; e < PerThread; ++e) sums[e] += static_cast<A>(values[e]);
    }
  }
  const A divisor = static_cast<A>(p.windows.divisor_of(rows, columns));
  Pack<T, PerThread> result;
#pragma unroll
  for (int e = 0; e < PerThread; ++e) result[e] = static_cast<T>(sums[e] / divisor);
  store_pack(y + place.n * p.y.n + place.channel * p.y.c + place.i * p.y.h + place.j * p.y.w,
             result);
}

// math:  dx = Σ over the windows that hold the element of dy / divisor
// grid:  1-D; one thread per PerThread channels of an input pixel; each element is written once
// bytes: dy once (again per element of a window, from caches), dx once
// order: windows in row-major order
template <class T, int PerThread>
__global__ void __launch_bounds__(kThreads)
    avg_pool2d_backward(const __grid_constant__ AvgPlan p, const T* dy, T* dx) {
  using A = acc_t<T>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= p.count) return;
  const AvgPlace place = place_of<PerThread>(p, thread);
  const AvgAxis::Range down = p.windows.h.holders(place.i, p.h_step);
  const AvgAxis::Range along = p.windows.w.holders(place.j, p.w_step);
  const T* plane = dy + place.n * p.y.n + place.channel * p.y.c;
  A sums[PerThread] = {};
  for (int64_t i = down.begin; i < down.end; ++i) {
    const AvgAxis::Range rows = p.windows.h.window(i, p.h_positions);
    for (int64_t j = along.begin; j < along.end; ++j) {
      const AvgAxis::Range columns = p.windows.w.window(j, p.w_positions);
      const A divisor = static_cast<A>(p.windows.divisor_of(rows, columns));
      const auto values = load_pack<PerThread>(plane + i * p.y.h + j * p.y.w);
#pragma unroll
      for (int e = 0; e < PerThread; ++e) sums[e] += static_cast<A>(values[e]) / divisor;
    }
  }
  Pack<T, PerThread> result;
#pragma unroll
  for (int e = 0; e < PerThread; ++e) result[e] = static_cast<T>(sums[e]);
  store_pack(dx + place.n * p.x.n + place.channel * p.x.c + place.i * p.x.h + place.j * p.x.w,
             result);
}

AvgPlan make_plan(const AvgWindows& windows, const Image& x, const Image& y, const Image& numbered,
                  int per_thread) {
  const auto divisor = [](int64_t d) { return FastDivisor(static_cast<uint32_t>(d)); };
  const auto step = [&](const AvgAxis& axis) {
    // A stride beyond any extent has one window, whatever it is.
    return Divide{divisor(std::min<int64_t>(axis.step(), INT32_MAX))};
  };
  AvgPlan p;
  p.windows = windows;
  p.h_positions = {divisor(windows.h.positions)};
  p.w_positions = {divisor(windows.w.positions)};
  p.h_step = step(windows.h);
  p.w_step = step(windows.w);
  p.x = x.strides();
  p.y = y.strides();
  p.items = divisor(x.channels / per_thread);
  p.height = divisor(numbered.h);
  p.width = divisor(numbered.w);
  p.count = numbered.numel() / per_thread;
  p.pixel_major = per_thread > 1 || (x.pixel_major && y.pixel_major);
  return p;
}

// Calls f with the element type and the channels that a thread takes.
template <class F>
void visit_packs(DType dtype, const Image& x, const Image& y, const F& f) {
  visit(Floating{}, dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kPack = kFullPack<T>;
    if (x.has_packs(kPack, sizeof(T)) && y.has_packs(kPack, sizeof(T))) {
      f(type, std::integral_constant<int, kPack>());
    } else {
      f(type, std::integral_constant<int, 1>());
    }
  });
}

LaunchShape shape_of(const AvgPlan& plan) {
  return {dim3(exact_blocks(ceil_div(plan.count, kThreads), "avg_pool2d")), kThreads};
}

}  // namespace

void run(Cuda& cuda, const AvgPool2dForward& args) {
  const MemoryFormat format = format_of(args.x, args.name);
  const Image x(args.x, format), y(args.y, format);
  if (y.numel() == 0) return;
  visit_packs(args.x.dtype, x, y, [&](auto type, auto per_thread) {
    using T = typename decltype(type)::type;
    constexpr int kPerThread = decltype(per_thread)::value;
    const AvgPlan plan = make_plan(args.windows, x, y, y, kPerThread);
    launch_kernel(cuda, shape_of(plan), avg_pool2d_forward<T, kPerThread>, plan,
                  args.x.as<const T>(), args.y.as<T>());
  });
}

void run(Cuda& cuda, const AvgPool2dBackward& args) {
  const MemoryFormat format = format_of(args.dx, args.name);
  const Image dx(args.dx, format), dy(args.dy, format);
  if (dx.numel() == 0) return;
  visit_packs(args.dx.dtype, dx, dy, [&](auto type, auto per_thread) {
    using T = typename decltype(type)::type;
    constexpr int kPerThread = decltype(per_thread)::value;
    const AvgPlan plan = make_plan(args.windows, dx, dy, dx, kPerThread);
    launch_kernel(cuda, shape_of(plan), avg_pool2d_backward<T, kPerThread>, plan,
                  args.dy.as<const T>(), args.dx.as<T>());
  });
}

}  // namespace gradus
