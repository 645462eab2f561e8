// max_pool2d where windows of 2 x 2 tile the input, whose index has two bits per output
// (core/ops/max_pool2d.h). A line is a row of windows: of one plane, or of one image with its
// channels (channels-last). Tiles are whole multiples of four lines, so that each has its own bytes
// of the index; within a tile taps are bytes.
#pragma once

#include <cstring>
#include <type_traits>

#include "core/ops/max_pool2d.h"
#include "cpu/lanes.h"
#include "cpu/parallel.h"
#include "cpu/vector.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {

struct PairLines {
  int64_t n, c, h, w, p, q;
  bool channels_last;

  PairLines(const AnyView& x, const AnyView& y)
      : n(x.shape[0]),
        c(x.shape[1]),
        h(x.shape[2]),
        w(x.shape[3]),
        p(y.shape[2]),
        q(y.shape[3]),
        channels_last(format_of(x, "max_pool2d") == MemoryFormat::channels_last) {}

  int64_t count() const { return (channels_last ? n : n * c) * p; }
  int64_t outputs() const { return channels_last ? q * c : q; }  // of a line
  int64_t row() const { return channels_last ? w * c : w; }      // elements of a row of x
  int64_t pixel() const { return channels_last ? c : 1; }
  // The first row of x of a line, and how many of the rows from there are the line's to write: the
  // last line of a plane also has the row that no window reaches.
  int64_t first_row(int64_t line) const { return line / p * h + 2 * (line % p); }
  int64_t rows(int64_t line) const {
    const int64_t i = line % p, left = h - 2 * i;
    return i == p - 1 ? left : 2;
  }
  int64_t tile() const {
    return std::max<int64_t>(1, kTile / 16 / std::max<int64_t>(outputs(), 1)) * 4;
  }
};

// Four taps, two bits each, to a byte, and back; both arrays of taps are whole multiples of four.
inline void pack_taps(const uint8_t* taps, int64_t bytes, uint8_t* packed) {
  for (int64_t i = 0; i < bytes; ++i) {
    uint32_t four;
    std::memcpy(&four, taps + 4 * i, 4);
    packed[i] = static_cast<uint8_t>(four | four >> 6 | four >> 12 | four >> 18);
  }
}
inline void unpack_taps(const uint8_t* packed, int64_t bytes, uint8_t* taps) {
  for (int64_t i = 0; i < bytes; ++i) {
    const uint32_t byte = packed[i];
    const uint32_t four = (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303u;
    std::memcpy(taps + 4 * i, &four, 4);
  }
}

namespace pairs {

template <size_t Bytes>
using Signed =
    std::conditional_t<Bytes == 8, int64_t, std::conditional_t<Bytes == 4, int32_t, int16_t>>;
// As many bytes as a vector of S has lanes.
template <class S>
struct ByteLanes {
  typedef uint8_t type __attribute__((vector_size(kLanes<S>)));
};

template <class S, int64_t lanes>
struct SmallLanes {
  typedef S type __attribute__((vector_size(lanes * sizeof(S))));
};

// The largest of four vectors and which it is: the first of equals, the first NaN over all.
template <class A>
GRADUS_INLINE void winner(const Vec<A> (&values)[4], A* y, uint8_t* taps, int64_t count) {
  using Tap = Signed<sizeof(A)>;
  Vec<A> most = values[0];
  Vec<Tap> which{};
  for (int tap = 1; tap < 4; ++tap) {
    const auto wins = ~(values[tap] <= most) & (most == most);
    most = wins ? values[tap] : most;
    which = wins ? Vec<Tap>{} + static_cast<Tap>(tap) : which;
  }
  store_lanes(y, most, count);
  // From one size to the next: g++ 12 takes further conversions element by element.
  const auto four = __builtin_convertvector(which, typename SmallLanes<int32_t, kLanes<A>>::type);
  const auto two = __builtin_convertvector(four, typename SmallLanes<int16_t, kLanes<A>>::type);
  const auto bytes = __builtin_convertvector(two, typename ByteLanes<A>::type);
  std::memcpy(taps, &bytes, static_cast<size_t>(std::min<int64_t>(count, kLanes<A>)));
}

// `outputs` windows of two rows of `width` elements; a column that is not there repeats the one
// before it, since equals never win.
template <class A>
void row_of_windows(const A* top, const A* bottom, int64_t width, int64_t outputs, A* y,
                    uint8_t* taps) {
  constexpr int64_t n = kLanes<A>;
  const auto windows = [&](const A* first, const A* second, int64_t at, int64_t count) {
    Vec<A> values[4];
    split_pairs<A>(load_vector(first), load_vector(first + n), values[0], values[1]);
    split_pairs<A>(load_vector(second), load_vector(second + n), values[2], values[3]);
    winner<A>(values, y + at, taps + at, count);
  };
  int64_t at = 0;
  for (; at + n <= outputs && 2 * (at + n) <= width; at += n)
    windows(top + 2 * at, bottom + 2 * at, at, n);
  for (; at < outputs; at += n) {
    A copies[2][2 * n] = {};
    const int64_t given = std::min(width - 2 * at, 2 * n);
    const auto size = static_cast<size_t>(given) * sizeof(A);
    std::memcpy(copies[0], top + 2 * at, size);
    std::memcpy(copies[1], bottom + 2 * at, size);
    if (given % 2 != 0) {
      copies[0][given] = copies[0][given - 1];
      copies[1][given] = copies[1][given - 1];
    }
    windows(copies[0], copies[1], at, std::min(n, outputs - at));
  }
}

// `count` channels of one window.
template <class A>
void channels_of_window(const A* const (&taps_of_x)[4], int64_t count, A* y, uint8_t* taps) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    Vec<A> values[4];
    for (int tap = 0; tap < 4; ++tap) values[tap] = load_lanes(taps_of_x[tap] + i, count - i);
    winner<A>(values, y + i, taps + i, count - i);
  }
}

constexpr int64_t kRun = 64;  // outputs that a 16-bit type is widened for at a time

template <class T>
void forward_row(const T* top, const T* bottom, int64_t width, int64_t outputs, T* y,
                 uint8_t* taps) {
  using A = acc_t<T>;
  if constexpr (std::is_same_v<T, A>) {
    row_of_windows(top, bottom, width, outputs, y, taps);
  } else {
    A rows[2][2 * kRun], results[kRun];
    for (int64_t at = 0; at < outputs; at += kRun) {
      const int64_t given = std::min(width - 2 * at, 2 * kRun),
                    count = std::min(kRun, outputs - at);
      convert_run(top + 2 * at, given, rows[0]);
      convert_run(bottom + 2 * at, given, rows[1]);
      row_of_windows(rows[0], rows[1], given, count, results, taps + at);
      convert_run(results, count, y + at);
    }
  }
}

template <class T>
void forward_pixel(const T* const (&x)[4], int64_t channels, T* y, uint8_t* taps) {
  using A = acc_t<T>;
  if constexpr (std::is_same_v<T, A>) {
    channels_of_window(x, channels, y, taps);
  } else {
    A values[4][kRun], results[kRun];
    const A* const pointers[4] = {values[0], values[1], values[2], values[3]};
    for (int64_t at = 0; at < channels; at += kRun) {
      const int64_t count = std::min(kRun, channels - at);
      for (int tap = 0; tap < 4; ++tap) convert_run(x[tap] + at, count, values[tap]);
      channels_of_window(pointers, count, results, taps + at);
      convert_run(results, count, y + at);
    }
  }
}

template <class T>
void forward_line(const PairLines& g, const T* x, bool has_bottom, T* y, uint8_t* taps) {
  const T* below = has_bottom ? x + g.row() : x;
  if (!g.channels_last) return forward_row(x, below, g.w, g.q, y, taps);
  for (int64_t j = 0; j < g.q; ++j) {
    const int64_t left = 2 * j * g.c, right = 2 * j + 1 < g.w ? left + g.c : left;
    const T* const four[4] = {x + left, x + right, below + left, below + right};
    forward_pixel(four, g.c, y + j * g.c, taps + j * g.c);
  }
}

// dy where the tap is `tap`, else 0. S holds the bits of an element: nothing is computed.
template <class S>
GRADUS_INLINE Vec<S> taken(Vec<S> dy, Vec<Signed<sizeof(S)>> taps, int tap) {
  return taps == static_cast<Signed<sizeof(S)>>(tap) ? dy : Vec<S>{};
}
template <class S>
GRADUS_INLINE Vec<Signed<sizeof(S)>> load_taps(const uint8_t* taps, int64_t count) {
  typename ByteLanes<S>::type bytes{};
  std::memcpy(&bytes, taps, static_cast<size_t>(std::min<int64_t>(count, kLanes<S>)));
  // From one size to the next: g++ 12 takes further conversions element by element.
  const auto two = __builtin_convertvector(bytes, typename SmallLanes<int16_t, kLanes<S>>::type);
  if constexpr (sizeof(S) == 2) {
    return two;
  } else {
    const auto four = __builtin_convertvector(two, typename SmallLanes<int32_t, kLanes<S>>::type);
    if constexpr (sizeof(S) == 4) {
      return four;
    } else {
      return __builtin_convertvector(four, Vec<int64_t>);
    }
  }
}

// The two elements of a row that a window has, side by side in a lane of twice their size.
template <class S>
using PairOf = std::conditional_t<sizeof(S) == 2, uint32_t, uint64_t>;

// One of the two rows of dx (r = 0 or 1) below a row of windows. Where an integer holds two
// elements, a lane is a window; doubles are interleaved.
template <class S>
GRADUS_INLINE void windows_of_row(const S* dy, const uint8_t* taps, int64_t count, int r, S* dx,
                                  int64_t room) {
  if constexpr (sizeof(S) == 8) {
    constexpr int n = kLanes<S>;
    const Vec<S> values = load_lanes(dy, count);
    const auto which = load_taps<S>(taps, count);
    Vec<S> low, high;
    interleave<S>(taken<S>(values, which, 2 * r), taken<S>(values, which, 2 * r + 1), low, high,
                  std::make_integer_sequence<int, n>());
    store_lanes(dx, low, room);
    if (room > n) store_lanes(dx + n, high, room - n);
  } else {
    using P = PairOf<S>;
    constexpr int64_t n = kLanes<P>;
    typename SmallLanes<S, n>::type packed{};
    std::memcpy(&packed, dy, static_cast<size_t>(std::min(count, n)) * sizeof(S));
    const Vec<P> values = __builtin_convertvector(packed, Vec<P>);
    const auto which = load_taps<P>(taps, count);
    const Vec<P> pair = taken<P>(values, which, 2 * r) | taken<P>(values, which, 2 * r + 1)
                                                             << (8 * static_cast<int>(sizeof(S)));
    std::memcpy(static_cast<void*>(dx), &pair,
                static_cast<size_t>(std::min(room, 2 * n)) * sizeof(S));
  }
}
template <class S>
void backward_row(const S* dy, const uint8_t* taps, int64_t outputs, int64_t width, int r, S* dx) {
  constexpr int64_t n = sizeof(S) == 8 ? kLanes<S> : kLanes<PairOf<S>>;
  int64_t at = 0;
  for (; at + n <= outputs && 2 * (at + n) <= width; at += n)
    windows_of_row(dy + at, taps + at, n, r, dx + 2 * at, 2 * n);
  for (; at < outputs; at += n) {
    const int64_t count = std::min(n, outputs - at);
    windows_of_row(dy + at, taps + at, count, r, dx + 2 * at, std::min(2 * count, width - 2 * at));
  }
  if (2 * outputs < width) std::fill(dx + 2 * outputs, dx + width, S(0));
}

template <class S>
void backward_pixels(const PairLines& g, const S* dy, const uint8_t* taps, int r, S* dx) {
  for (int64_t j = 0; j < g.q; ++j, dy += g.c, taps += g.c) {
    for (int s = 0; s < 2 && 2 * j + s < g.w; ++s) {
      S* to = dx + (2 * j + s) * g.c;
      for (int64_t i = 0; i < g.c; i += kLanes<S>) {
        const Vec<S> values = load_lanes(dy + i, g.c - i);
        store_lanes(to + i, taken<S>(values, load_taps<S>(taps + i, g.c - i), 2 * r + s), g.c - i);
      }
    }
  }
  if (2 * g.q < g.w) std::fill(dx + 2 * g.q * g.c, dx + g.w * g.c, S(0));
}

}  // namespace pairs

template <class T>
void forward_pairs(Cpu& cpu, const PairLines& g, const T* x, T* y, uint8_t* index) {
  const int64_t outputs = g.outputs();
  if (outputs == 0) return;
  parallel_tiles(cpu, g.count(), g.tile(), [&](int64_t begin, int64_t end) {
    const int64_t bytes = packed_index_bytes((end - begin) * outputs);
    const Workspace<uint8_t> taps(cpu, 4 * bytes);
    std::memset(taps.data() + 4 * (bytes - 1), 0, 4);
    for (int64_t line = begin; line < end; ++line) {
      pairs::forward_line(g, x + g.first_row(line) * g.row(), g.rows(line) > 1, y + line * outputs,
                          taps.data() + (line - begin) * outputs);
    }
    if (index != nullptr) pack_taps(taps.data(), bytes, index + begin * outputs / 4);
  });
}

// S is an unsigned integer or floating type of the element's size.
template <class S>
void backward_pairs(Cpu& cpu, const PairLines& g, const S* dy, const uint8_t* index, S* dx) {
  const int64_t outputs = g.outputs(), row = g.row();
  if (outputs == 0) return;
  parallel_tiles(cpu, g.count(), g.tile(), [&](int64_t begin, int64_t end) {
    const int64_t bytes = packed_index_bytes((end - begin) * outputs);
    const Workspace<uint8_t> scratch(cpu, 4 * bytes);
    unpack_taps(index + begin * outputs / 4, bytes, scratch.data());
    for (int64_t line = begin; line < end; ++line) {
      const S* from = dy + line * outputs;
      const uint8_t* taps = scratch.data() + (line - begin) * outputs;
      S* to = dx + g.first_row(line) * row;
      for (int64_t r = 0; r < g.rows(line); ++r, to += row) {
        if (r == 2)
          std::fill(to, to + row, S(0));
        else if (g.channels_last)
          pairs::backward_pixels(g, from, taps, static_cast<int>(r), to);
        else
          pairs::backward_row(from, taps, outputs, g.w, static_cast<int>(r), to);
      }
    }
  });
}

}  // namespace gradus::GRADUS_ISA
