// max_pool2d with windows of 2 x 2 side by side, the common case, at the speed of memory: launchers
// of the kernels in cuda/device/max_pool2d_pairs.cuh.
#include "cuda/max_pool2d_pairs.h"

#include "cuda/device/max_pool2d_pairs.cuh"
#include "cuda/image.h"
#include "cuda/plan.h"

namespace gradus {
namespace {

Pairs make_pairs(const Image& x, const Image& y) {
  Pairs g;
  g.h = x.h;
  g.w = x.w;
  g.p = y.h;
  g.q = y.w;
  g.channels = x.channels;
  g.columns = FastDivisor(static_cast<uint32_t>(y.w));
  g.rows = FastDivisor(static_cast<uint32_t>(y.h));
  g.index_bytes = packed_index_bytes(y.numel());
  return g;
}

unsigned blocks_of(int64_t units, int per_thread) {
  return exact_blocks(ceil_div(units, int64_t(kPairThreads) * per_thread), "max_pool2d");
}

// Calls f with the elements of x that one access takes as an integral constant: a power of two from
// 2 to 16 bytes' worth, or 1 where rows cannot be taken in pairs.
template <class T, class F>
void visit_row_pack(const Image& x, const Image& y, const F& f) {
  int width = 1;
  if (2 * int64_t(y.w) == x.w) {
    for (width = kFullPack<T>; width > 1; width /= 2) {
      const auto aligned = [&](const void* data, int count) {
        return reinterpret_cast<uintptr_t>(data) % (static_cast<size_t>(count) * sizeof(T)) == 0;
      };
      if (x.w % width == 0 && aligned(x.data, width) && aligned(y.data, width / 2)) break;
    }
  }
  if constexpr (kFullPack<T> >= 8) {
    if (width == 8) return f(std::integral_constant<int, 8>());
  }
  if constexpr (kFullPack<T> >= 4) {
    if (width == 4) return f(std::integral_constant<int, 4>());
  }
  if (width == 2) return f(std::integral_constant<int, 2>());
  f(std::integral_constant<int, 1>());
}

template <class T>
bool has_channel_packs(const Image& x, const Image& y) {
  return x.has_packs(kFullPack<T>, sizeof(T)) && y.has_packs(kFullPack<T>, sizeof(T));
}

template <class T>
void forward_contiguous(Cuda& cuda, Pairs g, const Image& x, const Image& y, uint8_t* index) {
  const T* from = static_cast<const T*>(x.data);
  T* to = static_cast<T*>(y.data);
  visit_row_pack<T>(x, y, [&](auto width) {
    constexpr int N = decltype(width)::value;
    if constexpr (N > 1) {
      g.across = FastDivisor(static_cast<uint32_t>(x.w / N));
      g.units = x.n * x.channels * y.h * (x.w / N);
      max_pool2d_forward_pairs<N>
          <<<blocks_of(g.units, 4), kPairThreads, 0, cuda.stream()>>>(g, from, to, index);
    } else {
      g.across = g.columns;
      g.units = y.numel();
      max_pool2d_forward_pairs_any<<<blocks_of(g.units, 4), kPairThreads, 0, cuda.stream()>>>(
          g, from, to, index);
    }
  });
}

template <class T>
void backward_contiguous(Cuda& cuda, Pairs g, const Image& dx, const Image& dy,
                         const uint8_t* index) {
  const T* from = static_cast<const T*>(dy.data);
  T* to = static_cast<T*>(dx.data);
  visit_row_pack<T>(dx, dy, [&](auto width) {
    constexpr int N = decltype(width)::value;
    if constexpr (N > 1) {
      g.across = FastDivisor(static_cast<uint32_t>(dx.w / N));
      g.units = dx.n * dx.channels * dy.h * (dx.w / N);
      max_pool2d_backward_pairs<N>
          <<<blocks_of(g.units, 4), kPairThreads, 0, cuda.stream()>>>(g, from, index, to);
    } else {
      g.across = FastDivisor(static_cast<uint32_t>(dx.w));
      g.rows = FastDivisor(static_cast<uint32_t>(dx.h));
      g.units = dx.numel();
      max_pool2d_backward_pairs_any<<<blocks_of(g.units, 1), kPairThreads, 0, cuda.stream()>>>(
          g, from, index, to);
    }
  });
}

// Calls f with the channels that one access takes.
template <class T, class F>
void visit_channel_pack(Pairs& g, const Image& x, const Image& y, const F& f) {
  const auto with = [&](auto width) {
    constexpr int N = decltype(width)::value;
    g.across = FastDivisor(static_cast<uint32_t>(x.channels / N));
    g.units = y.numel() / N;
    f(width);
  };
  if (has_channel_packs<T>(x, y)) {
    with(std::integral_constant<int, kFullPack<T>>());
  } else {
    with(std::integral_constant<int, 1>());
  }
}

}  // namespace

void max_pool2d_pairs_forward(Cuda& cuda, const MaxPool2dForward& args) {
  const MemoryFormat format = format_of(args.x, args.name);
  const Image x(args.x, format), y(args.y, format);
  if (y.numel() == 0) return;
  uint8_t* index = args.index.as<uint8_t>();
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    Pairs g = make_pairs(x, y);
    if (format == MemoryFormat::contiguous) return forward_contiguous<T>(cuda, g, x, y, index);
    visit_channel_pack<T>(g, x, y, [&](auto width) {
      max_pool2d_forward_pairs_pixel<decltype(width)::value>
          <<<blocks_of(g.units, 2), kPairThreads, 0, cuda.stream()>>>(
              g, static_cast<const T*>(x.data), static_cast<T*>(y.data), index);
    });
  });
}

void max_pool2d_pairs_backward(Cuda& cuda, const MaxPool2dBackward& args) {
  const MemoryFormat format = format_of(args.dx, args.name);
  const Image dx(args.dx, format), dy(args.dy, format);
  if (dx.numel() == 0) return;
  const uint8_t* index = args.index.as<uint8_t>();
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    Pairs g = make_pairs(dx, dy);
    if (format == MemoryFormat::contiguous) return backward_contiguous<T>(cuda, g, dx, dy, index);
    visit_channel_pack<T>(g, dx, dy, [&](auto width) {
      max_pool2d_backward_pairs_pixel<decltype(width)::value>
          <<<blocks_of(g.units, 2), kPairThreads, 0, cuda.stream()>>>(
              g, static_cast<const T*>(dy.data), index, static_cast<T*>(dx.data));
    });
  });
}

}  // namespace gradus
