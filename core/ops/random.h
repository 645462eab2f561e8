// Random tensors, drawn from a generator's state on the device.
//
// state = {seed, calls}. Call number `calls` draws from philox(seed, kTensor + calls, block), where
// block b gives the elements b·kPerBlock ... of y in row-major order, and then adds 1 to `calls`.
// So a draw depends on nothing but seed, number of the call and place: not on the device, the
// threads or the sizes of earlier draws; and a captured graph draws anew in each replay.
//
// Both devices give the same bits for every kind and dtype.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "core/backend.h"
#include "core/box_muller.h"

namespace gradus {

struct Random {
  enum class Kind : uint8_t {
    uniform,    // [a, b): a + (b - a)·u; floating
    normal,     // a + b·z; floating
    integer,    // low, ..., high - 1; u8, i32, i64
    bernoulli,  // 1 with probability a, else 0; any dtype
  };
  static constexpr std::string_view name = "random";
  static constexpr Support support{.cpu = kAllDTypes, .cuda = kAllDTypes};

  Kind kind = Kind::uniform;
  AnyView state;  // [2], i64, contiguous
  AnyView y;      // any shape, contiguous
  double a = 0.0;
  double b = 1.0;
  int64_t low = 0;
  int64_t high = 0;

  DType dtype() const { return y.dtype; }
  auto views() const { return list_views(state, y); }
  int64_t bytes() const { return y.nbytes(); }
  int64_t flops() const { return 0; }
  static Guarantee guarantee() { return {.accumulator = "none"}; }
};

void run(Cpu&, const Random&);
void run(Cuda&, const Random&);

// Block `block` of call number state[1].
GRADUS_HD Philox4 random_block(const int64_t* state, int64_t block) {
  return philox(static_cast<uint64_t>(state[0]),
                random_stream::kTensor + static_cast<uint64_t>(state[1]),
                static_cast<uint64_t>(block));
}

// A probability as a count of the 2^24 values that word >> 8 can have.
GRADUS_HD uint32_t probability_steps(double p) {
  return static_cast<uint32_t>(nearbyint(p * 0x1p24));
}

// Each draw turns one block into kPerBlock elements.

// The largest T below `high`.
template <class T>
GRADUS_HD T largest_below(double high) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  constexpr Bits sign = Bits(Bits(1) << (8 * sizeof(T) - 1));
  const T nearest = convert_to<T>(high);
  if (static_cast<double>(nearest) < high) return nearest;
  Bits bits;
  std::memcpy(&bits, &nearest, sizeof bits);
  bits = bits == 0 ? Bits(sign + 1) : Bits((bits & sign) != 0 ? bits + 1 : bits - 1);
  T below;
  std::memcpy(static_cast<void*>(&below), &bits, sizeof bits);
  return below;
}

// u has as many bits as the significand of T, so that it stays below 1; where low + width·u rounds
// up to high all the same, the largest value below it is taken.
template <class T>
struct UniformDraw {
  static constexpr int kPerBlock = sizeof(T) == 8 ? 2 : 4;
  acc_t<T> low, width;
  double high;
  T largest;

  GRADUS_HD void operator()(const Philox4& block, T (&y)[kPerBlock]) const {
    for (int j = 0; j < kPerBlock; ++j) {
      acc_t<T> u;
      if constexpr (sizeof(T) == 8) {
        u = uniform_f64(block.words[2 * j], block.words[2 * j + 1]);
      } else if constexpr (sizeof(T) == 4) {
        u = uniform_f32(block.words[j]);
      } else {
        constexpr int bits = std::is_same_v<T, Half> ? 11 : 8;
        u = static_cast<float>(block.words[j] >> (32 - bits)) / static_cast<float>(1 << bits);
      }
      y[j] = static_cast<T>(fused(width, u, low));
      if (!(static_cast<double>(y[j]) < high)) y[j] = largest;
    }
  }
};

template <class T>
struct NormalDraw {
  static constexpr int kPerBlock = 2;
  double mean, std;

  GRADUS_HD void operator()(const Philox4& block, T (&y)[kPerBlock]) const {
    double z[kPerBlock];
    box_muller(block, z[0], z[1]);
    for (int j = 0; j < kPerBlock; ++j) y[j] = static_cast<T>(fused(std, z[j], mean));
  }
};

// 64 random bits times the number of values, upper half: biased by less than values / 2^64.
template <class T>
struct IntegerDraw {
  static constexpr int kPerBlock = 2;
  int64_t low;
  uint64_t values;

  GRADUS_HD void operator()(const Philox4& block, T (&y)[kPerBlock]) const {
    for (int j = 0; j < kPerBlock; ++j) {
      const uint64_t v0 = values & 0xFFFFFFFFu, v1 = values >> 32;
      const uint64_t w1 = block.words[2 * j], w0 = block.words[2 * j + 1];
      const uint64_t middle = w1 * v0 + (w0 * v0 >> 32);
      const uint64_t upper = w1 * v1 + (middle >> 32) + (((middle & 0xFFFFFFFFu) + w0 * v1) >> 32);
      y[j] = static_cast<T>(static_cast<int64_t>(static_cast<uint64_t>(low) + upper));
    }
  }
};

template <class T>
struct BernoulliDraw {
  static constexpr int kPerBlock = 4;
  uint32_t steps;  // probability_steps(p)

  GRADUS_HD void operator()(const Philox4& block, T (&y)[kPerBlock]) const {
    for (int j = 0; j < kPerBlock; ++j) {
      y[j] = static_cast<T>((block.words[j] >> 8) < steps ? 1.0f : 0.0f);
    }
  }
};

// Calls f(Type<T>{}, draw) with the draw that `args` asks for.
template <class F>
void visit_draw(const Random& args, F&& f) {
  switch (args.kind) {
    case Random::Kind::uniform:
      return visit(Floating{}, args.y.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        using A = acc_t<T>;
        f(type, UniformDraw<T>{static_cast<A>(args.a), static_cast<A>(args.b - args.a),
                               args.b > args.a ? args.b : std::numeric_limits<double>::infinity(),
                               largest_below<T>(args.b)});
      });
    case Random::Kind::normal:
      return visit(Floating{}, args.y.dtype, [&](auto type) {
        f(type, NormalDraw<typename decltype(type)::type>{args.a, args.b});
      });
    case Random::Kind::integer:
      return visit(TypeList<uint8_t, int32_t, int64_t>{}, args.y.dtype, [&](auto type) {
        const uint64_t values = static_cast<uint64_t>(args.high) - static_cast<uint64_t>(args.low);
        f(type, IntegerDraw<typename decltype(type)::type>{args.low, values});
      });
    case Random::Kind::bernoulli:
      return visit(AllTypes{}, args.y.dtype, [&](auto type) {
        f(type, BernoulliDraw<typename decltype(type)::type>{probability_steps(args.a)});
      });
  }
}

}  // namespace gradus
