#include "core/ops/dropout.h"

#include <cstring>

#include "cpu/dispatch.h"
#include "cpu/loops.h"
#include "cpu/parallel.h"
#include "cpu/random_words.h"

namespace gradus::GRADUS_ISA {
namespace {

constexpr int64_t kGroup = 4 * kRandomGroup;  // elements
static_assert(kTile % kGroup == 0);

// keep of the group of elements from `first` on, which is a multiple of kGroup.
void draw_keep(const int64_t* state, int64_t first, uint32_t steps, uint8_t (&keep)[kGroup]) {
  RandomWords words;
  random_words(state, first / 4, words);
  for (int64_t i = 0; i < kRandomGroup; ++i) {
    for (int64_t k = 0; k < 4; ++k) keep[4 * i + k] = (words[k][i] >> 8) >= steps;
  }
}

// y = x·keep·scale.
template <class T>
void scale_kept(const T* x, const uint8_t* keep, acc_t<T> scale, T* y, int64_t count) {
  GRADUS_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    y[i] = static_cast<T>(load(x[i]) * (keep[i] ? scale : acc_t<T>(0)));
  }
}

}  // namespace

void run(Cpu& cpu, const DropoutForward& args) {
  int64_t* state = args.state.as<int64_t>();
  uint8_t* kept = args.keep.as<uint8_t>();
  const uint32_t steps = probability_steps(args.p);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* x = args.x.as<T>();
    T* y = args.y.as<T>();
    const auto scale = static_cast<acc_t<T>>(1 / (1 - args.p));
    parallel_tiles(cpu, args.x.numel(), kTile, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += kGroup) {
        const int64_t count = std::min(kGroup, end - first);
        uint8_t keep[kGroup];
        draw_keep(state, first, steps, keep);
        scale_kept(x + first, keep, scale, y + first, count);
        std::memcpy(kept + first, keep, static_cast<size_t>(count));
      }
    });
  });
  ++state[1];
}

void run(Cpu& cpu, const DropoutBackward& args) {
  const uint8_t* keep = args.keep.as<uint8_t>();
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* dy = args.dy.as<T>();
    T* dx = args.dx.as<T>();
    const auto scale = static_cast<acc_t<T>>(1 / (1 - args.p));
    parallel_tiles(cpu, args.dx.numel(), kTile, [&](int64_t begin, int64_t end) {
      scale_kept(dy + begin, keep + begin, scale, dx + begin, end - begin);
    });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(DropoutForward)
GRADUS_DISPATCH(DropoutBackward)
