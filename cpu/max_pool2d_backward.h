// The gradient of max_pool2d (core/ops/max_pool2d.h): every element the sum over the windows that
// took it.
#pragma once

#include <array>
#include <type_traits>

#include "cpu/chained_row.h"
#include "cpu/max_pool2d_geometry.h"
#include "cpu/parallel.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {

// One row of dx in acc_t, channels-last: [w, c], the sum over the windows that meet it.
template <class T, class Index>
void gradient_pixels(const MaxPoolGeometry& g, const T* dy, const Index* index, int64_t hi,
                     ChainedRow<acc_t<T>>& chained, acc_t<T>* sum) {
  const int64_t stride = g.window.stride[0], dilation = g.window.dilation[0];
  chained.start(sum);
  // The taps by which the first window and those before the last can meet the row.
  const int64_t below_first = hi + g.window.padding[0],
                below_last = below_first - (g.p - 1) * stride;
  const int64_t r0 = below_last <= 0 ? 0 : (below_last + dilation - 1) / dilation;
  const int64_t r1 = std::min(g.taps(0), below_first / dilation + 1);
  for (int64_t r = r0; r < r1; ++r) {
    const int64_t start = below_first - r * dilation;
    if (start % stride != 0) continue;
    int64_t at = start / stride * g.y[2];
    for (int64_t qi = 0; qi < g.q; ++qi, at += g.c) {
      for (int64_t s = g.first_tap(1, qi); s < g.end_tap(1, qi); ++s) {
        const int64_t wi = g.start(1, qi) + s * g.window.dilation[1];
        const auto tap = static_cast<Index>(r * g.taps(1) + s);
        acc_t<T>* to = sum + wi * g.c;
        for (int64_t j = 0; j < g.c; ++j) {
          const auto value = static_cast<acc_t<T>>(dy[at + j]);
          to[j] += index[at + j] == tap ? value : acc_t<T>(0);
        }
      }
      chained.step(1);
    }
  }
  chained.finish();
}

// Where the taps of a window lie in a contiguous plane, from the first on: a table for as many as
// one byte tells apart.
class TapOffsets {
 public:
  explicit TapOffsets(const MaxPoolGeometry& g)
      : taps_(g.taps(1)), row_(g.window.dilation[0] * g.w), column_(g.window.dilation[1]) {
    const int64_t most = std::min<int64_t>(std::ssize(near_), g.taps(0) * g.taps(1));
    for (int32_t tap = 0; tap < most; ++tap) near_[static_cast<size_t>(tap)] = (*this)[tap];
  }
  int64_t operator[](uint8_t tap) const { return near_[tap]; }
  int64_t operator[](int32_t tap) const { return tap / taps_ * row_ + tap % taps_ * column_; }

 private:
  int64_t taps_, row_, column_;
  std::array<int64_t, 256> near_{};
};

// One plane of dx in acc_t: [h, w]; every window adds to the element it took.
template <class T, class Index>
void gradient_plane(const MaxPoolGeometry& g, const T* dy, const Index* index,
                    const TapOffsets& offsets, ChainedRow<acc_t<T>>& chained, acc_t<T>* sum) {
  chained.start(sum);
  const int64_t overlap = g.most_holders(1);
  for (int64_t pi = 0; pi < g.p; ++pi, dy += g.q, index += g.q) {
    const int64_t first = g.start(0, pi) * g.w + g.start(1, 0);
    const int64_t top = std::max<int64_t>(0, g.start(0, pi));
    const int64_t bottom = std::min(g.h, g.start(0, pi) + g.window.span(0));
    for (int64_t begin = 0; begin < g.q; begin += chained.kChain) {
      const int64_t end = std::min(begin + chained.kChain, g.q);
      for (int64_t qi = begin; qi < end; ++qi)
        sum[first + qi * g.window.stride[1] + offsets[index[qi]]] += static_cast<acc_t<T>>(dy[qi]);
      chained.step(std::min(end - begin, overlap), top * g.w, bottom * g.w);
    }
  }
  chained.finish();
}

template <class T, class Index>
void max_pool2d_backward(Cpu& cpu, const MaxPoolGeometry& g, const T* dy, const Index* index,
                         T* dx) {
  using A = acc_t<T>;
  const TapOffsets offsets(g);
  // A line is what one step writes: a row of an image (channels-last) or a plane.
  const int64_t line = g.channels_last ? g.w * g.c : g.h * g.w;
  const int64_t lines = g.channels_last ? g.h : g.c;  // of one image
  if (line == 0) return;
  parallel_tiles(cpu, g.n * lines, std::max<int64_t>(1, kTile / line),
                 [&](int64_t begin, int64_t end) {
                   const Workspace<A> scratch(cpu, std::is_same_v<T, A> ? 0 : line);
                   ChainedRow<A> chained(cpu, line, g.most_holders(0) * g.most_holders(1));
                   for (int64_t i = begin; i < end; ++i) {
                     T* to = dx + i * line;
                     A* sum = scratch.data();
                     if constexpr (std::is_same_v<T, A>) sum = to;
                     const int64_t from = g.channels_last ? i / lines * g.y[0] : i * g.p * g.q;
                     if (g.channels_last)
                       gradient_pixels(g, dy + from, index + from, i % lines, chained, sum);
                     else
                       gradient_plane(g, dy + from, index + from, offsets, chained, sum);
                     if constexpr (!std::is_same_v<T, A>) {
                       for (int64_t j = 0; j < line; ++j) to[j] = static_cast<T>(sum[j]);
                     }
                   }
                 });
}

}  // namespace gradus::GRADUS_ISA
