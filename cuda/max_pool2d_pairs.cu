// max_pool2d with windows of 2 x 2 side by side, the common case, at the speed of memory: launchers
// of the kernels in cuda/device/pool_pairs.cuh.
#include "cuda/max_pool2d_pairs.h"

#include "cuda/pool_pairs.cuh"

namespace gradus {
namespace {

template <class T>
void forward_contiguous(Cuda& cuda, Pairs g, const Image& x, const Image& y, uint8_t* index) {
  visit_row_pack<T>(x, y, [&](auto width) {
    constexpr int N = decltype(width)::value;
    count_row_units<N>(g, y);
    visit_index_type(x, [&](auto type) {
      using I = typename decltype(type)::type;
      const auto kernel = index != nullptr ? max_pool2d_forward_pairs<N, true, I, T>
                                           : max_pool2d_forward_pairs<N, false, I, T>;
      kernel<<<pair_blocks(g.units, kRowUnits), kPairThreads, 0, cuda.stream()>>>(
          g, static_cast<const T*>(x.data), static_cast<T*>(y.data), index);
    });
  });
}

template <class T>
void backward_contiguous(Cuda& cuda, Pairs g, const Image& dx, const Image& dy,
                         const uint8_t* index) {
  visit_row_pack<T>(dx, dy, [&](auto width) {
    constexpr int N = decltype(width)::value;
    count_gradient_units<N>(g, dx);
    visit_index_type(dx, [&](auto type) {
      using I = typename decltype(type)::type;
      const auto launch = [&](auto kernel) {
        kernel<<<pair_blocks(g.units, kRowUnits), kPairThreads, 0, cuda.stream()>>>(
            g, static_cast<const T*>(dy.data), index, static_cast<T*>(dx.data));
      };
      if constexpr (N > 1) {
        launch(max_pool2d_backward_pairs<N, I, T>);
      } else {
        launch(max_pool2d_backward_pairs_any<I, T>);
      }
    });
  });
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
      visit_index_type(x, [&](auto index_type) {
        constexpr int N = decltype(width)::value;
        using I = typename decltype(index_type)::type;
        const auto kernel = index != nullptr ? max_pool2d_forward_pairs_pixel<N, true, I, T>
                                             : max_pool2d_forward_pairs_pixel<N, false, I, T>;
        kernel<<<pair_blocks(g.units, kPixelUnits), kPairThreads, 0, cuda.stream()>>>(
            g, static_cast<const T*>(x.data), static_cast<T*>(y.data), index);
      });
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
      visit_index_type(dx, [&](auto index_type) {
        max_pool2d_backward_pairs_pixel<decltype(width)::value, typename decltype(index_type)::type>
            <<<pair_blocks(g.units, kPixelUnits), kPairThreads, 0, cuda.stream()>>>(
                g, static_cast<const T*>(dy.data), index, static_cast<T*>(dx.data));
      });
    });
  });
}

}  // namespace gradus
