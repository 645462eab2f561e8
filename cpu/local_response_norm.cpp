// Local response normalization on the CPU: vectors of pixels for contiguous tensors, vectors of
// channels for channels-last ones.
#include "core/ops/local_response_norm.h"

#include <limits>

#include "cpu/dispatch.h"
#include "cpu/lanes.h"
#include "cpu/parallel.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {
namespace {

using Geometry = LocalResponseNormGeometry;

// Pixels of one task of the forward pass: a window's rows stay in the first-level cache.
constexpr int64_t kStrip = 1024;
// Terms of one task of the backward pass that are kept: they stay in the second-level cache.
constexpr int64_t kTerms = 32768;
// Channels-last: values that are squared before their windows are read.
constexpr int64_t kBlock = 4096;

template <class A>
Lanes<A> square_root(Lanes<A> v) {
  A lanes[kLaneCount<A>];
  std::memcpy(lanes, &v, sizeof lanes);
  for (int64_t i = 0; i < kLaneCount<A>; ++i) {
    if constexpr (sizeof(A) == 4) {
      lanes[i] = __builtin_sqrtf(lanes[i]);
    } else {
      lanes[i] = __builtin_sqrt(lanes[i]);
    }
  }
  std::memcpy(&v, lanes, sizeof lanes);
  return v;
}

template <class A>
Lanes<A> raise(Lanes<A> v, A exponent) {
  for (int64_t i = 0; i < kLaneCount<A>; ++i) {
    if constexpr (sizeof(A) == 4) {
      v[i] = __builtin_powf(v[i], exponent);
    } else {
      v[i] = __builtin_pow(v[i], exponent);
    }
  }
  return v;
}

// What the sum of squares of a window becomes.
template <class A>
struct Response {
  A k, scale, beta, second;  // scale = alpha/size, second = 2·beta·alpha/size
  A at_zero;                 // denom^-beta where denom counts as 0
  ResponsePower power;

  template <class Args>
  explicit Response(const Args& args)
      : k(static_cast<A>(args.k)),
        scale(static_cast<A>(args.alpha / static_cast<double>(args.size))),
        beta(static_cast<A>(args.beta)),
        second(static_cast<A>(2 * args.beta * args.alpha / static_cast<double>(args.size))),
        at_zero(args.beta == 0 ? A(1) : A(0)),
        power(response_power(args.beta)) {}

  Lanes<A> denom(Lanes<A> squares) const { return k + scale * squares; }

  // denom^-beta, and 1/denom if `inverse` is given.
  Lanes<A> factor(Lanes<A> denom, Lanes<A>* inverse = nullptr) const {
    const Lanes<A> one = splat<A>(1), zero{};
    const auto none = denom < std::numeric_limits<A>::min();
    Lanes<A> r, result;
    if (power == ResponsePower::one || power == ResponsePower::other) {
      r = one / denom;
      result = power == ResponsePower::one ? r : raise<A>(denom, -beta);
      if (inverse != nullptr) *inverse = none ? zero : r;
    } else {
      r = one / square_root<A>(denom);
      result = power == ResponsePower::half ? r : r * square_root<A>(r);
      if (inverse != nullptr) *inverse = none ? zero : r * r;
    }
    return none ? splat<A>(at_zero) : result;
  }
};

// The part [begin, end) of the channels that a window reaches.
struct Window {
  int64_t begin, end;
  Window(int64_t c, int64_t before, int64_t after, int64_t channels)
      : begin(std::max<int64_t>(0, c - before)), end(std::min(channels, c + after + 1)) {}
};

// ---- contiguous: s pixels of c channels, s apart -----------------------------------------------

template <class T, class Count>
Lanes<acc_t<T>> squares_of(const T* x, int64_t s, const Window& window, Count lanes) {
  Lanes<acc_t<T>> sum{};
  for (int64_t j = window.begin; j < window.end; ++j) {
    const Lanes<acc_t<T>> v = load(x + j * s, lanes);
    sum += v * v;
  }
  return sum;
}

template <class T>
void forward_contiguous(Cpu& cpu, const LocalResponseNormForward& args, const Geometry& g) {
  using A = acc_t<T>;
  const Response<A> response(args);
  const int64_t strips = (g.s + kStrip - 1) / kStrip;
  cpu.parallel(g.n * strips, [&](int64_t task) {
    const int64_t at = task / strips * g.c * g.s + task % strips * kStrip;
    const int64_t count = std::min(kStrip, g.s - task % strips * kStrip);
    const T* x = args.x.as<T>() + at;
    T* y = args.y ? args.y.as<T>() + at : nullptr;
    A* denom = args.denom ? args.denom.as<A>() + at : nullptr;
    for (int64_t c = 0; c < g.c; ++c) {
      const Window window(c, g.before, g.after, g.c);
      for_each_lanes<A>(count, [&](int64_t i, auto lanes, int) {
        const Lanes<A> d = response.denom(squares_of(x + i, g.s, window, lanes));
        if (denom != nullptr) store(denom + c * g.s + i, d, lanes);
        if (y == nullptr) return;
        store(y + c * g.s + i, load(x + c * g.s + i, lanes) * response.factor(d), lanes);
      });
    }
  });
}

// Walks through the channels once: of the terms a ring of rows is kept, as many as a window has.
template <class T>
void backward_contiguous(Cpu& cpu, const LocalResponseNormBackward& args, const Geometry& g) {
  using A = acc_t<T>;
  const Response<A> response(args);
  constexpr int64_t kVector = kLaneCount<A>;
  const int64_t ring = std::min(g.c, g.before + g.after + 1);
  const int64_t strip = std::clamp<int64_t>(kTerms / ring / kVector, 1, kStrip / kVector) * kVector;
  const int64_t strips = (g.s + strip - 1) / strip;
  cpu.parallel(g.n * strips, [&](int64_t task) {
    const int64_t at = task / strips * g.c * g.s + task % strips * strip;
    const int64_t count = std::min(strip, g.s - task % strips * strip);
    const T *x = args.x.as<T>() + at, *dy = args.dy.as<T>() + at;
    T* dx = args.dx.as<T>() + at;
    const Workspace<A> direct(cpu, ring * strip), t(cpu, ring * strip);
    const auto add_terms = [&](int64_t c) {
      const Window window(c, g.before, g.after, g.c);
      const int64_t row = c % ring * strip;
      for_each_lanes<A>(count, [&](int64_t i, auto lanes, int) {
        Lanes<A> inverse;
        const Lanes<A> factor =
            response.factor(response.denom(squares_of(x + i, g.s, window, lanes)), &inverse);
        const Lanes<A> own = load(dy + c * g.s + i, lanes) * factor;
        store(direct.data() + row + i, own);
        store(t.data() + row + i, own * (load(x + c * g.s + i, lanes) * inverse));
      });
    };
    const auto finish = [&](int64_t c) {
      const Window window(c, g.after, g.before, g.c);
      for_each_lanes<A>(count, [&](int64_t i, auto lanes, int) {
        Lanes<A> sum{};
        int64_t row = window.begin % ring;
        for (int64_t j = window.begin; j < window.end; ++j) {
          sum += load(t.data() + row * strip + i);
          row = row + 1 == ring ? 0 : row + 1;
        }
        const Lanes<A> own = load(direct.data() + c % ring * strip + i);
        const Lanes<A> others = response.second * (load(x + c * g.s + i, lanes) * sum);
        store(dx + c * g.s + i, own - others, lanes);
      });
    };
    for (int64_t c = 0; c < g.c; ++c) {
      add_terms(c);
      if (c >= g.before) finish(c - g.before);
    }
    for (int64_t c = std::max<int64_t>(0, g.c - g.before); c < g.c; ++c) finish(c);
  });
}

// ---- channels-last: rows of c channels ---------------------------------------------------------

// Rows of c values with a vector of zeros on either side, so that every window may be read whole.
template <class A>
class PaddedRows {
 public:
  PaddedRows(Cpu& cpu, int64_t rows, int64_t channels)
      : width_(channels + 2 * kLaneCount<A>), values_(cpu, rows * width_) {
    std::fill(values_.data(), values_.data() + rows * width_, A(0));
  }
  A* row(int64_t i) const { return values_.data() + i * width_ + kLaneCount<A>; }

 private:
  int64_t width_;
  Workspace<A> values_;
};

// Σ row[j] over the window of each of the channels c, ..., c + kLaneCount - 1.
template <class A>
Lanes<A> window_sum(const A* row, int64_t c, int64_t before, int64_t after, int64_t channels) {
  const int64_t first = c - std::min(before, c + kLaneCount<A> - 1);
  const int64_t last = c + std::min(after, channels - 1 - c);
  Lanes<A> sum{};
  for (int64_t j = first; j <= last; ++j) sum += load(row + j);
  return sum;
}

template <class T>
void square_rows(const T* x, int64_t rows, int64_t channels, const PaddedRows<acc_t<T>>& squares) {
  using A = acc_t<T>;
  for (int64_t i = 0; i < rows; ++i) {
    for_each_lanes<A>(channels, [&](int64_t c, auto lanes, int) {
      const Lanes<A> v = load(x + i * channels + c, lanes);
      store(squares.row(i) + c, v * v, lanes);
    });
  }
}

// Calls f(first row, rows) for blocks of rows of a tile.
template <class F>
void for_each_block(int64_t begin, int64_t end, int64_t block, F&& f) {
  for (int64_t row = begin; row < end; row += block) f(row, std::min(block, end - row));
}

template <class T>
void forward_channels_last(Cpu& cpu, const LocalResponseNormForward& args, const Geometry& g) {
  using A = acc_t<T>;
  const Response<A> response(args);
  const int64_t block = std::max<int64_t>(1, kBlock / g.c), tile = 4 * block;
  parallel_tiles(cpu, g.n * g.s, tile, [&](int64_t begin, int64_t end) {
    const PaddedRows<A> squares(cpu, block, g.c);
    for_each_block(begin, end, block, [&](int64_t first, int64_t rows) {
      const T* x = args.x.as<T>() + first * g.c;
      square_rows(x, rows, g.c, squares);
      for (int64_t i = 0; i < rows; ++i) {
        for_each_lanes<A>(g.c, [&](int64_t c, auto lanes, int) {
          const Lanes<A> d =
              response.denom(window_sum<A>(squares.row(i), c, g.before, g.after, g.c));
          const int64_t at = (first + i) * g.c + c;
          if (args.denom) store(args.denom.as<A>() + at, d, lanes);
          if (!args.y) return;
          store(args.y.as<T>() + at, load(x + i * g.c + c, lanes) * response.factor(d), lanes);
        });
      }
    });
  });
}

template <class T>
void backward_channels_last(Cpu& cpu, const LocalResponseNormBackward& args, const Geometry& g) {
  using A = acc_t<T>;
  const Response<A> response(args);
  const int64_t block = std::max<int64_t>(1, kBlock / g.c), tile = 4 * block;
  parallel_tiles(cpu, g.n * g.s, tile, [&](int64_t begin, int64_t end) {
    const PaddedRows<A> squares(cpu, block, g.c), t(cpu, block, g.c), direct(cpu, block, g.c);
    for_each_block(begin, end, block, [&](int64_t first, int64_t rows) {
      const T *x = args.x.as<T>() + first * g.c, *dy = args.dy.as<T>() + first * g.c;
      T* dx = args.dx.as<T>() + first * g.c;
      square_rows(x, rows, g.c, squares);
      for (int64_t i = 0; i < rows; ++i) {
        for_each_lanes<A>(g.c, [&](int64_t c, auto lanes, int) {
          Lanes<A> inverse;
          const Lanes<A> factor = response.factor(
              response.denom(window_sum<A>(squares.row(i), c, g.before, g.after, g.c)), &inverse);
          const Lanes<A> own = load(dy + i * g.c + c, lanes) * factor;
          store(direct.row(i) + c, own, lanes);
          store(t.row(i) + c, own * (load(x + i * g.c + c, lanes) * inverse), lanes);
        });
      }
      for (int64_t i = 0; i < rows; ++i) {
        for_each_lanes<A>(g.c, [&](int64_t c, auto lanes, int) {
          const Lanes<A> sum = window_sum<A>(t.row(i), c, g.after, g.before, g.c);
          const Lanes<A> others = response.second * (load(x + i * g.c + c, lanes) * sum);
          store(dx + i * g.c + c, load(direct.row(i) + c, lanes) - others, lanes);
        });
      }
    });
  });
}

}  // namespace

void run(Cpu& cpu, const LocalResponseNormForward& args) {
  if (args.x.numel() == 0) return;
  const Geometry g = local_response_norm_geometry(args.x, args.size);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (g.channels_last) {
      forward_channels_last<T>(cpu, args, g);
    } else {
      forward_contiguous<T>(cpu, args, g);
    }
  });
}

void run(Cpu& cpu, const LocalResponseNormBackward& args) {
  if (args.x.numel() == 0) return;
  const Geometry g = local_response_norm_geometry(args.x, args.size);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (g.channels_last) {
      backward_channels_last<T>(cpu, args, g);
    } else {
      backward_contiguous<T>(cpu, args, g);
    }
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(LocalResponseNormForward)
GRADUS_DISPATCH(LocalResponseNormBackward)
