// Moving images between a tensor's format and dtype and the kernels' own: channels innermost, in
// acc_t, with the zeros of the padding written out.
#pragma once

#include "core/view.h"
#include "cpu/conv2d_axis.h"
#include "cpu/lanes.h"
#include "cpu/vector.h"

namespace gradus::GRADUS_ISA {

// One group of the channels of a tensor [n, c, h, w].
template <class T>
struct ImageView {
  T* data;           // of channel 0 of the group, image 0
  int64_t channels;  // of the group
  Strides strides;   // n, c, h, w
  bool channels_last;

  T* at(int64_t n, int64_t h, int64_t w) const {
    return data + n * strides[0] + h * strides[2] + w * strides[3];
  }
};

template <class T>
ImageView<T> image_view(const AnyView& view, MemoryFormat format, int64_t group, int64_t groups) {
  const Strides strides = strides_of(view.shape, format);
  const int64_t channels = view.shape[1] / groups;
  return {view.as<T>() + group * channels * strides[1], channels, strides,
          format == MemoryFormat::channels_last};
}

// Rows and columns [top, top + rows) x [left, left + columns) of an image.
struct Patch {
  int64_t top, rows, left, columns;
};

// `count` neighbouring pixels, to `pitch` values apart.
template <class T>
void read_pixels(const ImageView<const T>& x, const T* from, int64_t count, acc_t<T>* to,
                 int64_t pitch) {
  using A = acc_t<T>;
  const int64_t c = x.channels;
  if (x.channels_last) {
    const bool joined = x.strides[3] == c && pitch == c;  // nothing between pixels on either side
    const int64_t runs = joined ? 1 : count, length = joined ? count * c : c;
    for (int64_t i = 0; i < runs; ++i, from += x.strides[3], to += pitch)
      convert_run(from, length, to);
  } else if constexpr (std::is_same_v<T, A>) {
    transpose(from, x.strides[1], c, count, to, pitch);
  } else {
    for (int64_t j = 0; j < c; ++j) {
      for (int64_t i = 0; i < count; ++i)
        to[i * pitch + j] = static_cast<A>(from[j * x.strides[1] + i]);
    }
  }
}

// The patch of image n (h x w) in acc_t, channels innermost and pixels `pitch` apart; zero outside
// the image.
template <class T>
void read_patch(const ImageView<const T>& x, int64_t n, int64_t h, int64_t w, const Patch& patch,
                acc_t<T>* to, int64_t pitch) {
  using A = acc_t<T>;
  const int64_t begin = std::clamp<int64_t>(-patch.left, 0, patch.columns);
  const int64_t end = std::clamp<int64_t>(w - patch.left, begin, patch.columns);
  const int64_t row_values = patch.columns * pitch;
  const bool joined = patch.left == 0 && patch.columns == w;  // rows follow each other
  for (int64_t i = 0; i < patch.rows;) {
    const int64_t row = patch.top + i;
    const int64_t rows = joined ? std::min(patch.rows - i, h - row) : 1;
    if (row < 0 || row >= h || begin == end) {
      std::fill(to, to + row_values, A(0));
      to += row_values;
      ++i;
      continue;
    }
    std::fill(to, to + begin * pitch, A(0));
    read_pixels<T>(x, x.at(n, row, patch.left + begin), joined ? rows * w : end - begin,
                   to + begin * pitch, pitch);
    if (!joined) std::fill(to + end * pitch, to + row_values, A(0));
    to += rows * row_values;
    i += rows;
  }
}

// Writes `count` pixels of `lanes` channels, `pitch` apart in `from`, to every `step`-th column of
// a row of y that starts at `to`, from channel `first` on.
template <class T>
void write_pixels(const acc_t<T>* from, int64_t pitch, int64_t count, int64_t first, int64_t lanes,
                  const ImageView<T>& y, T* to, int64_t step) {
  to += first * y.strides[1];
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    if (!y.channels_last && step == 1) {
      return transpose(from, pitch, count, lanes, to, y.strides[1]);
    }
  }
  if (y.channels_last) {
    for (int64_t i = 0; i < count; ++i, from += pitch, to += step * y.strides[3])
      convert_run(from, lanes, to);
    return;
  }
  for (int64_t k = 0; k < lanes; ++k, to += y.strides[1]) {
    for (int64_t i = 0; i < count; ++i) to[i * step] = static_cast<T>(from[i * pitch + k]);
  }
}

}  // namespace gradus::GRADUS_ISA
