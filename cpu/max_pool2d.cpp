#include "core/ops/max_pool2d.h"

#include <limits>
#include <type_traits>

#include "cpu/dispatch.h"
#include "cpu/max_pool2d_backward.h"
#include "cpu/max_pool2d_pairs.h"
#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace gradus::GRADUS_ISA {
namespace {

// Outputs of one row that are worked on together in a contiguous tensor.
constexpr int64_t kRun = 64;

// The tap of each running maximum, as wide as the value so that both fill vectors alike.
template <class T>
using Tap = std::conditional_t<sizeof(acc_t<T>) == 8, int64_t, int32_t>;

// Values in a cache line.
template <class T>
constexpr int64_t kLine = 64 / sizeof(T);

// Lets `count` values, `step` apart, compete with the running maxima. A NaN wins over a number and
// stays; an equal value does not win.
template <int64_t kStep, class T>
void compete(const T* x, int64_t runtime_step, int64_t count, int64_t tap, acc_t<T>* best,
             Tap<T>* taps) {
  const int64_t step = kStep == 0 ? runtime_step : kStep;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<acc_t<T>>(x[i * step]);
    const bool wins = !(value <= best[i]) & (best[i] == best[i]);
    best[i] = wins ? value : best[i];
    taps[i] = wins ? static_cast<Tap<T>>(tap) : taps[i];
  }
}

template <class T>
void compete(const T* x, int64_t step, int64_t count, int64_t tap, acc_t<T>* best, Tap<T>* taps) {
  if (step == 1) return compete<1>(x, step, count, tap, best, taps);
  if (step == 2) return compete<2>(x, step, count, tap, best, taps);
  compete<0>(x, step, count, tap, best, taps);
}

// Where results go: y, and the index if one is wanted.
template <class T, class Index>
struct Output {
  T* y;
  Index* index;  // may be null
  void store(int64_t at, int64_t count, const acc_t<T>* best, const Tap<T>* taps) const {
    for (int64_t i = 0; i < count; ++i) y[at + i] = static_cast<T>(best[i]);
    if (index == nullptr) return;
    for (int64_t i = 0; i < count; ++i) index[at + i] = static_cast<Index>(taps[i]);
  }
};

template <class T>
GRADUS_INLINE Vec<acc_t<T>> load_acc(const T* x) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    return load_vector(x);
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
            compete<1>(values, 1, count, r * g.taps(1) + s, best, taps);
          }
        }
      }
      output.store(to + c, count, best, taps);
      c += count;
    }
  }
}

// The windows of tap s that lie inside a row of x, among [first, first + count).
struct Span {
  int64_t begin, end;
  Span(const MaxPoolGeometry& g, int64_t s, int64_t first, int64_t count) {
    const int64_t stride = g.window.stride[1];
    const int64_t left =
        g.window.padding[1] - s * g.window.dilation[1];  // start is q·stride - left
    begin = std::max(first, left <= 0 ? 0 : (left + stride - 1) / stride);
    end = std::min(first + count, (g.w + left + stride - 1) / stride);
  }
};

// One row of windows of one plane, contiguous: neighbouring outputs side by side.
template <class T, class Index>
void pool_row(const MaxPoolGeometry& g, const T* x, int64_t pi, int64_t to,
              const Output<T, Index>& output) {
  acc_t<T> best[kRun];
  Tap<T> taps[kRun];
  const int64_t r0 = g.first_tap(0, pi), r1 = g.end_tap(0, pi), s_count = g.taps(1);
  for (int64_t first = 0; first < g.q; first += kRun) {
    const int64_t count = std::min(kRun, g.q - first);
    std::fill(best, best + count, -std::numeric_limits<acc_t<T>>::infinity());
    for (int64_t i = 0; i < count; ++i)
      taps[i] = static_cast<Tap<T>>(r0 * s_count + g.first_tap(1, first + i));
    // What meets x of the last window and of the first.
    const int64_t s0 = g.first_tap(1, first + count - 1), s1 = g.end_tap(1, first);
    for (int64_t r = r0; r < r1; ++r) {
      const T* row = x + (g.start(0, pi) + r * g.window.dilation[0]) * g.x[2];
      for (int64_t s = s0; s < s1; ++s) {
        const Span span(g, s, first, count);
        if (span.begin >= span.end) continue;
        compete(row + g.start(1, span.begin) + s * g.window.dilation[1], g.window.stride[1],
                span.end - span.begin, r * s_count + s, best + span.begin - first,
                taps + span.begin - first);
      }
    }
    output.store(to + first, count, best, taps);
  }
}

template <class T, class Index>
void forward(Cpu& cpu, const MaxPoolGeometry& g, const T* x, const Output<T, Index>& output) {
  // One line: a row of windows, of one image (channels-last) or of one plane.
  const int64_t planes = g.channels_last ? 1 : g.c;
  const int64_t line = g.channels_last ? g.q * g.c : g.q;
  if (line == 0) return;
  parallel_tiles(cpu, g.n * planes * g.p, std::max<int64_t>(1, kTile / 4 / line),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t pi = i % g.p, plane = i / g.p;
                     const T* from = x + plane / planes * g.x[0] + plane % planes * g.x[1];
                     const int64_t to =
                         plane / planes * g.y[0] + plane % planes * g.y[1] + pi * g.y[2];
                     if (g.channels_last)
                       pool_pixels(g, from, pi, to, output);
                     else
                       pool_row(g, from, pi, to, output);
                   }
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
