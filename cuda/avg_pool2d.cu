// avg_pool2d and adaptive_avg_pool2d on CUDA. Channels-last tensors go in packs of 16 bytes of
// channels, others one by one.
#include "core/ops/avg_pool2d.h"

#include "cuda/avg_pool2d_pairs.h"
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
  __device__ __forceinline__ int32_t operator()(int32_t a) const {
    return static_cast<int32_t>(divisor.quotient(static_cast<uint32_t>(a)));
  }
};

// The threads are numbered over the elements (or packs of channels) of one of the tensors in the
// order of memory. I: int32_t where all numbers and offsets fit.
template <class I>
struct AvgPlan {
  AvgWindowsOf<I> windows;
  Divide h_positions, w_positions;  // of AvgAxis::window
  Divide h_step, w_step;            // of AvgAxis::holders
  Divide items, width, height;
  I x[4], y[4];  // strides of n, c, h, w in elements
  int64_t count = 0;
  bool pixel_major = false;
};

template <class I>
struct AvgPlace {
  I n, channel, i, j;
  __device__ __forceinline__ I offset(const I (&strides)[4], I row, I column) const {
    return n * strides[0] + channel * strides[1] + row * strides[2] + column * strides[3];
  }
};

template <int PerThread, class I>
__device__ __forceinline__ AvgPlace<I> place_of(const AvgPlan<I>& p, I index) {
  const auto split = [&index](const Divide& d) {
    const I whole = d(index), part = index - whole * static_cast<I>(d.divisor.divisor);
    index = whole;
    return part;
  };
  AvgPlace<I> place;
  if (p.pixel_major) place.channel = split(p.items) * PerThread;
  place.j = split(p.width);
  place.i = split(p.height);
  if (!p.pixel_major) place.channel = split(p.items) * PerThread;
  place.n = index;
  return place;
}

// A sum per channel in three steps, so that long ones keep their digits: the terms go to `part`,
// which step() adds to the next when it has had kChain of them.
template <class A, int N>
struct ChainedSum {
  static constexpr int kChain = 256;
  A part[N] = {}, middle[N] = {}, total[N] = {};
  int terms = 0, parts = 0;

  // After `count` more terms, at most kChain.
  __device__ __forceinline__ void step(int count) {
    terms += count;
    if (terms < kChain) return;
    move(part, middle);
    terms = 0;
    if (++parts < kChain) return;
    move(middle, total);
    parts = 0;
  }
  __device__ __forceinline__ void finish() {
    move(part, middle);
    move(middle, total);
  }

 private:
  __device__ __forceinline__ static void move(A (&from)[N], A (&to)[N]) {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      to[e] += from[e];
      from[e] = A(0);
    }
  }
};

// math:  y = (sum of the window) / divisor
// grid:  1-D; one thread per PerThread channels of an output pixel
// bytes: x once (again per overlap, from caches), y once
// order: row-major within the window, in chains
template <class T, int PerThread, class I>
__global__ void __launch_bounds__(kThreads)
    avg_pool2d_forward(const __grid_constant__ AvgPlan<I> p, const T* x, T* y) {
  using A = acc_t<T>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= p.count) return;
  const auto place = place_of<PerThread>(p, static_cast<I>(thread));
  const auto rows = p.windows.h.window(place.i, p.h_positions);
  const auto columns = p.windows.w.window(place.j, p.w_positions);
  const T* from = x + place.offset(p.x, rows.begin, columns.begin);
  using Sum = ChainedSum<A, PerThread>;
  Sum sum;
  for (I r = rows.begin; r < rows.end; ++r, from += p.x[2]) {
    for (I first = 0; first < columns.size(); first += Sum::kChain) {
      const I end = min(columns.size(), first + Sum::kChain);
#pragma unroll 4
      for (I s = first; s < end; ++s) {
        const auto values = load_pack<PerThread>(from + s * p.x[3]);
#pragma unroll
        for (int e = 0; e < PerThread; ++e) sum.part[e] += static_cast<A>(values[e]);
      }
      sum.step(static_cast<int>(end - first));
    }
  }
  sum.finish();
  const A divisor = static_cast<A>(p.windows.divisor_of(rows, columns));
#pragma unroll
  for (int e = 0; e < PerThread; ++e) sum.total[e] /= divisor;
  store_pack(y + place.offset(p.y, place.i, place.j), narrow_pack<T>(sum.total));
}

// math:  dx = Σ over the windows that hold the element of dy / divisor
// grid:  1-D; one thread per PerThread channels of an input pixel; each element is written once
// bytes: dy once (again per element of a window, from caches), dx once
// order: windows in row-major order, in chains
template <class T, int PerThread, class I>
__global__ void __launch_bounds__(kThreads)
    avg_pool2d_backward(const __grid_constant__ AvgPlan<I> p, const T* dy, T* dx) {
  using A = acc_t<T>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= p.count) return;
  const auto place = place_of<PerThread>(p, static_cast<I>(thread));
  const auto down = p.windows.h.holders(place.i, p.h_step);
  const auto along = p.windows.w.holders(place.j, p.w_step);
  using Sum = ChainedSum<A, PerThread>;
  Sum sum;
  for (I i = down.begin; i < down.end; ++i) {
    const auto rows = p.windows.h.window(i, p.h_positions);
    const T* from = dy + place.offset(p.y, i, 0);
    for (I first = along.begin; first < along.end; first += Sum::kChain) {
      const I end = min(along.end, first + Sum::kChain);
      for (I j = first; j < end; ++j) {
        const auto columns = p.windows.w.window(j, p.w_positions);
        const A share = A(1) / static_cast<A>(p.windows.divisor_of(rows, columns));
        const auto values = load_pack<PerThread>(from + j * p.y[3]);
#pragma unroll
        for (int e = 0; e < PerThread; ++e) sum.part[e] += static_cast<A>(values[e]) * share;
      }
      sum.step(static_cast<int>(end - first));
    }
  }
  sum.finish();
  store_pack(dx + place.offset(p.x, place.i, place.j), narrow_pack<T>(sum.total));
}

template <class I>
AvgAxisOf<I> narrow_axis(const AvgAxis& axis) {
  return {.extent = static_cast<I>(axis.extent),
          .positions = static_cast<I>(axis.positions),
          .kernel = static_cast<I>(axis.kernel),
          .stride = static_cast<I>(axis.stride),
          .padding = static_cast<I>(axis.padding),
          .adaptive = axis.adaptive};
}

// Whether int32_t holds every product of AvgAxis and every offset.
bool fits_32_bits(const AvgWindows& windows, const Image& x, const Image& y) {
  bool fits = x.numel() <= INT32_MAX && y.numel() <= INT32_MAX && windows.divisor <= INT32_MAX &&
              windows.divisor >= INT32_MIN;
  for (const AvgAxis& axis : {windows.h, windows.w}) {
    for (const int64_t number :
         {axis.extent, axis.positions, axis.kernel, axis.stride, axis.padding})
      fits = fits && number < (1 << 15);
  }
  return fits;
}

template <class I>
AvgPlan<I> make_plan(const AvgWindows& windows, const Image& x, const Image& y,
                     const Image& numbered, int per_thread) {
  const auto divide = [](int64_t d) { return Divide{FastDivisor(static_cast<uint32_t>(d))}; };
  // A stride beyond any extent has one window, whatever it is.
  const auto step = [&](const AvgAxis& axis) {
    return divide(std::min<int64_t>(axis.step(), INT32_MAX));
  };
  AvgPlan<I> p;
  p.windows = {.h = narrow_axis<I>(windows.h),
               .w = narrow_axis<I>(windows.w),
               .count_include_pad = windows.count_include_pad,
               .divisor = static_cast<I>(windows.divisor)};
  p.h_positions = divide(windows.h.positions);
  p.w_positions = divide(windows.w.positions);
  p.h_step = step(windows.h);
  p.w_step = step(windows.w);
  p.items = divide(x.channels / per_thread);
  p.height = divide(numbered.h);
  p.width = divide(numbered.w);
  const auto set = [](I(&to)[4], const ImageStrides& s) {
    to[0] = static_cast<I>(s.n);
    to[1] = static_cast<I>(s.c);
    to[2] = static_cast<I>(s.h);
    to[3] = static_cast<I>(s.w);
  };
  set(p.x, x.strides());
  set(p.y, y.strides());
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

template <class F>
void visit_index_width(const AvgWindows& windows, const Image& x, const Image& y, const F& f) {
  if (fits_32_bits(windows, x, y)) {
    f(Type<int32_t>());
  } else {
    f(Type<int64_t>());
  }
}

LaunchShape shape_of(int64_t threads) {
  return {dim3(exact_blocks(ceil_div(threads, kThreads), "avg_pool2d")), kThreads};
}

}  // namespace

void run(Cuda& cuda, const AvgPool2dForward& args) {
  const MemoryFormat format = format_of(args.x, args.name);
  const Image x(args.x, format), y(args.y, format);
  if (y.numel() == 0) return;
  if (avg_pool2d_pairs_forward(cuda, args) || avg_pool2d_tiles_forward(cuda, args)) return;
  visit_packs(args.x.dtype, x, y, [&](auto type, auto per_thread) {
    visit_index_width(args.windows, x, y, [&](auto index) {
      using T = typename decltype(type)::type;
      using I = typename decltype(index)::type;
      constexpr int kPerThread = decltype(per_thread)::value;
      const auto plan = make_plan<I>(args.windows, x, y, y, kPerThread);
      launch_kernel(cuda, shape_of(plan.count), avg_pool2d_forward<T, kPerThread, I>, plan,
                    args.x.as<const T>(), args.y.as<T>());
    });
  });
}

void run(Cuda& cuda, const AvgPool2dBackward& args) {
  const MemoryFormat format = format_of(args.dx, args.name);
  const Image dx(args.dx, format), dy(args.dy, format);
  if (dx.numel() == 0) return;
  if (avg_pool2d_pairs_backward(cuda, args) || avg_pool2d_tiles_backward(cuda, args)) return;
  visit_packs(args.dx.dtype, dx, dy, [&](auto type, auto per_thread) {
    visit_index_width(args.windows, dx, dy, [&](auto index) {
      using T = typename decltype(type)::type;
      using I = typename decltype(index)::type;
      constexpr int kPerThread = decltype(per_thread)::value;
      const auto plan = make_plan<I>(args.windows, dx, dy, dx, kPerThread);
      launch_kernel(cuda, shape_of(plan.count), avg_pool2d_backward<T, kPerThread, I>, plan,
                    args.dy.as<const T>(), args.dx.as<T>());
    });
  });
}

}  // namespace gradus
