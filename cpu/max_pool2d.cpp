#include "core/ops/max_pool2d.h"

#include <limits>
#include <type_traits>

#include "cpu/dispatch.h"
#include "cpu/max_pool2d_backward.h"
#include "cpu/max_pool2d_pairs.h"
#include "cpu/parallel.h"
#include "cpu/vector.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {
namespace {

// The tap of each running maximum, as wide as the value so that both fill vectors alike.
template <class T>
using Tap = std::conditional_t<sizeof(acc_t<T>) == 8, int64_t, int32_t>;

// Values in a cache line.
template <class T>
constexpr int64_t kLine = 64 / sizeof(T);

// Lets `count` values compete with the running maxima. A NaN wins over a number and stays; an equal
// value does not win.
template <class T>
void compete(const T* x, int64_t count, int64_t tap, acc_t<T>* best, Tap<T>* taps) {
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<acc_t<T>>(x[i]);
    const bool wins = !(value <= best[i]) & (best[i] == best[i]);
    best[i] = wins ? value : best[i];
    taps[i] = wins ? static_cast<Tap<T>>(tap) : taps[i];
  }
}

// Where results go: y, and the index if one is wanted.
template <class T, class Index>
struct Output {
  T* y;
  Index* index;  // may be null
  void store(int64_t at, int64_t count, const acc_t<T>* best, const Tap<T>* taps) const {
    convert_run(best, count, y + at);
    if (index == nullptr) return;
    for (int64_t i = 0; i < count; ++i) index[at + i] = static_cast<Index>(taps[i]);
  }
};

template <class T>
GRADUS_INLINE Vec<acc_t<T>> load_acc(const T* x) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    return load_vector(x);
  } else if constexpr (kLanes<acc_t<T>> == kLaneCount<acc_t<T>>) {
    return load(x);
  } else {
    acc_t<T> values[kLanes<acc_t<T>>];
    for (int i = 0; i < kLanes<acc_t<T>>; ++i) values[i] = static_cast<acc_t<T>>(x[i]);
    return load_vector(values);
  }
}

// The taps of one window that lie inside x.
struct Inside {
  int64_t r_begin, r_end, s_begin, s_end;
};

// A vector of values of one tap competes with the running maxima.
template <class T>
GRADUS_INLINE void take_larger(Vec<acc_t<T>> value, int64_t tap, Vec<acc_t<T>>& most,
                               Vec<Tap<T>>& which) {
  const auto wins = ~(value <= most) & (most == most);
  most = wins ? value : most;
  which = wins ? Vec<Tap<T>>{} + static_cast<Tap<T>>(tap) : which;
}

// The window that starts at x, for U vectors of channels, in registers.
template <int U, class T>
void pool_channels(const MaxPoolGeometry& g, const T* x, const Inside& in, acc_t<T>* best,
                   Tap<T>* taps) {
  using A = acc_t<T>;
  constexpr int n = kLanes<A>;
  const int64_t row = g.window.dilation[0] * g.x[2], column = g.window.dilation[1] * g.x[3];
  Vec<A> most[U];
  Vec<Tap<T>> which[U];
  for (int u = 0; u < U; ++u) {
    most[u] = Vec<A>{} - std::numeric_limits<A>::infinity();
    which[u] = Vec<Tap<T>>{} + static_cast<Tap<T>>(in.r_begin * g.taps(1) + in.s_begin);
  }
  for (int64_t r = in.r_begin; r < in.r_end; ++r) {
    for (int64_t s = in.s_begin; s < in.s_end; ++s) {
      const int64_t tap = r * g.taps(1) + s;
      for (int u = 0; u < U; ++u)
        take_larger<T>(load_acc(x + r * row + s * column + u * n), tap, most[u], which[u]);
    }
  }
  for (int u = 0; u < U; ++u) {
    store_vector(best + u * n, most[u]);
    store_vector(taps + u * n, which[u]);
  }
}

// One row of windows of one image, channels-last: the channels of a pixel side by side.
template <class T, class Index>
void pool_pixels(const MaxPoolGeometry& g, const T* x, int64_t pi, int64_t to,
                 const Output<T, Index>& output) {
  constexpr int64_t n = kLanes<acc_t<T>>;
  acc_t<T> best[4 * n];
  Tap<T> taps[4 * n];
  Inside in{g.first_tap(0, pi), g.end_tap(0, pi), 0, 0};
  for (int64_t qi = 0; qi < g.q; ++qi, to += g.y[3]) {
    in.s_begin = g.first_tap(1, qi);
    in.s_end = g.end_tap(1, qi);
    const T* from = x + g.start(0, pi) * g.x[2] + g.start(1, qi) * g.x[3];
    // What the window below reads anew: the hardware follows one long run, but not the short runs
    // of several rows. Worth a factor of 4 on an AMD EPYC. (g++ drops a call that only prefetches.)
    const T* below = from + g.window.span(0) * g.x[2];
    for (int64_t r = 0; r < std::min(g.window.stride[0], g.h); ++r, below += g.x[2]) {
      for (int64_t i = 0; i < std::min(g.window.stride[1], g.w) * g.c; i += kLine<T>)
        __builtin_prefetch(below + i);
    }
    for (int64_t c = 0; c < g.c;) {
      int64_t count = g.c - c;
      if (count >= 4 * n) {
        pool_channels<4>(g, from + c, in, best, taps);
        count = 4 * n;
      } else if (count >= 2 * n) {
        pool_channels<2>(g, from + c, in, best, taps);
        count = 2 * n;
      } else if (count >= n) {
        pool_channels<1>(g, from + c, in, best, taps);
        count = n;
      } else {
        std::fill(best, best + count, -std::numeric_limits<acc_t<T>>::infinity());
        std::fill(taps, taps + count, static_cast<Tap<T>>(in.r_begin * g.taps(1) + in.s_begin));
        for (int64_t r = in.r_begin; r < in.r_end; ++r) {
          for (int64_t s = in.s_begin; s < in.s_end; ++s) {
            const T* values =
                from + c + r * g.window.dilation[0] * g.x[2] + s * g.window.dilation[1] * g.x[3];
            compete(values, count, r * g.taps(1) + s, best, taps);
          }
        }
      }
      output.store(to + c, count, best, taps);
      c += count;
    }
  }
}

// A row of x of a contiguous tensor in acc_t, as runs: what one tap meets in neighbouring windows
// lies side by side, with -inf, which never wins, where a window meets padding. Taps whose elements
// are of one phase of the stride share a run.
template <class T>
class TapRuns {
 public:
  using A = acc_t<T>;

  TapRuns(Cpu& cpu, const MaxPoolGeometry& g)
      : w_(g.w),
        stride_(g.window.stride[1]),
        by_phase_(stride_ <= g.taps(1)),
        count_(by_phase_ ? stride_ : g.taps(1)),
        length_(g.q + (by_phase_ ? g.window.span(1) / stride_ : 0) + kLanes<A>),
        runs_(cpu, count_),
        of_taps_(cpu, g.taps(1)),
        wide_(cpu, std::is_same_v<T, A> ? 0 : w_),
        values_(cpu, count_, length_) {
    std::fill(values_.data(), values_.data() + count_ * length_,
              -std::numeric_limits<A>::infinity());
    const int64_t dilation = g.window.dilation[1];
    for (int64_t k = 0; k < count_; ++k) {
      const int64_t first = (by_phase_ ? k : k * dilation) - g.window.padding[1];
      const int64_t before = first < 0 ? (-first + stride_ - 1) / stride_ : 0;
      const int64_t from = first + before * stride_, inside = (w_ - from + stride_ - 1) / stride_;
      runs_.data()[k] = {from, k * length_ + before, std::min(inside, length_ - before)};
    }
    for (int64_t s = 0; s < g.taps(1); ++s) {
      const int64_t at = s * dilation;
      const int64_t place = by_phase_ ? at % stride_ * length_ + at / stride_ : s * length_;
      of_taps_.data()[s] = values_.data() + place;
    }
  }

  void read(const T* x) const {
    const A* row = wide_.data();
    if constexpr (std::is_same_v<T, A>) {
      row = x;
    } else {
      convert_run(x, w_, wide_.data());
    }
    for (int64_t k = 0; k < count_; ++k) {
      const Run& run = runs_.data()[k];
      A* to = values_.data() + run.to;
      if (stride_ == 1) {
        copy_every<1>(row + run.from, run.count, to);
      } else if (stride_ == 2) {
        copy_every<2>(row + run.from, run.count, to);
      } else {
        for (int64_t i = 0; i < run.count; ++i) to[i] = row[run.from + i * stride_];
      }
    }
  }
  // What tap s meets in the windows 0, 1, ...; a vector may be read from any of them on.
  const A* of_tap(int64_t s) const { return of_taps_.data()[s]; }

 private:
  struct Run {
    int64_t from, to, count;  // elements of the row, `stride` apart, and their place among values
  };
  template <int64_t kStep>
  static void copy_every(const A* from, int64_t count, A* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[kStep * i];
  }

  int64_t w_, stride_;
  bool by_phase_;
  int64_t count_, length_;
  Workspace<Run> runs_;
  Workspace<const A*> of_taps_;
  Workspace<A> wide_, values_;
};

// Rows of windows of planes, contiguous: neighbouring outputs side by side.
template <class T, class Index>
class PoolRows {
 public:
  using A = acc_t<T>;

  PoolRows(Cpu& cpu, const MaxPoolGeometry& g)
      : g_(g), runs_(cpu, g), best_(cpu, g.q + n), taps_(cpu, g.q + n) {}

  void pool(const T* x, int64_t pi, int64_t to, const Output<T, Index>& output) const {
    const int64_t r0 = g_.first_tap(0, pi), r1 = g_.end_tap(0, pi), s_count = g_.taps(1);
    A* best = best_.data();
    Tap<T>* taps = taps_.data();
    std::fill(best, best + g_.q + n, -std::numeric_limits<A>::infinity());
    for (int64_t i = 0; i < g_.q; ++i) {
      taps[i] = static_cast<Tap<T>>(r0 * s_count + g_.first_tap(1, i));
    }
    for (int64_t r = r0; r < r1; ++r) {
      runs_.read(x + (g_.start(0, pi) + r * g_.window.dilation[0]) * g_.x[2]);
      for (int64_t i = 0; i < g_.q; i += n) {
        Vec<A> most = load_vector(best + i);
        Vec<Tap<T>> which = load_vector(taps + i);
        for (int64_t s = 0; s < s_count; ++s) {
          take_larger<T>(load_vector(runs_.of_tap(s) + i), r * s_count + s, most, which);
        }
        store_vector(best + i, most);
        store_vector(taps + i, which);
      }
    }
    output.store(to, g_.q, best, taps);
  }

 private:
  static constexpr int64_t n = kLanes<A>;
  const MaxPoolGeometry& g_;
  TapRuns<T> runs_;
  Workspace<A> best_;
  Workspace<Tap<T>> taps_;
};

template <class T, class Index>
void forward(Cpu& cpu, const MaxPoolGeometry& g, const T* x, const Output<T, Index>& output) {
  // One line: a row of windows, of one image (channels-last) or of one plane.
  const int64_t planes = g.channels_last ? 1 : g.c;
  const int64_t line = g.channels_last ? g.q * g.c : g.q;
  if (line == 0) return;
  const auto for_lines = [&](int64_t begin, int64_t end, const auto& pool) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t pi = i % g.p, n = i / g.p / planes, plane = i / g.p % planes;
      pool(x + n * g.x[0] + plane * g.x[1], pi, n * g.y[0] + plane * g.y[1] + pi * g.y[2]);
    }
  };
  parallel_tiles(cpu, g.n * planes * g.p, std::max<int64_t>(1, kTile / 4 / line),
                 [&](int64_t begin, int64_t end) {
                   if (g.channels_last) {
                     return for_lines(begin, end, [&](const T* from, int64_t pi, int64_t to) {
                       pool_pixels(g, from, pi, to, output);
                     });
                   }
                   const PoolRows<T, Index> rows(cpu, g);
                   for_lines(begin, end, [&](const T* from, int64_t pi, int64_t to) {
                     rows.pool(from, pi, to, output);
                   });
                 });
}

}  // namespace

void run(Cpu& cpu, const MaxPool2dForward& args) {
  if (packs_index(args.window)) {
    return visit(Floating{}, args.x.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      forward_pairs(cpu, PairLines(args.x, args.y), args.x.as<T>(), args.y.as<T>(),
                    args.index.as<uint8_t>());
    });
  }
  const MaxPoolGeometry g(args.x, args.y, args.window);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    T* y = args.y.as<T>();
    if (args.index && args.index.dtype == DType::i32)
      forward(cpu, g, args.x.as<T>(), Output<T, int32_t>{y, args.index.as<int32_t>()});
    else
      forward(cpu, g, args.x.as<T>(), Output<T, uint8_t>{y, args.index.as<uint8_t>()});
  });
}

void run(Cpu& cpu, const MaxPool2dBackward& args) {
  if (packs_index(args.window)) {
    return visit(Floating{}, args.dx.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      using S = std::conditional_t<sizeof(T) == 8, T,
                                   std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
      backward_pairs(cpu, PairLines(args.dx, args.dy), static_cast<const S*>(args.dy.data),
                     args.index.as<uint8_t>(), static_cast<S*>(args.dx.data));
    });
  }
  const MaxPoolGeometry g(args.dx, args.dy, args.window);
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* dy = args.dy.as<T>();
    T* dx = args.dx.as<T>();
    if (args.index.dtype == DType::u8)
      max_pool2d_backward(cpu, g, dy, args.index.as<uint8_t>(), dx);
    else
      max_pool2d_backward(cpu, g, dy, args.index.as<int32_t>(), dx);
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(MaxPool2dForward)
GRADUS_DISPATCH(MaxPool2dBackward)
