#include "core/ops/random.h"

#include "cpu/dispatch.h"
#include "cpu/parallel.h"
#include "cpu/random_words.h"

namespace gradus::GRADUS_ISA {
namespace {

template <class T, class Draw>
void draw_blocks(const Draw& draw, const int64_t* state, int64_t begin, int64_t end, int64_t count,
                 T* y) {
  constexpr int64_t n = Draw::kPerBlock;
  constexpr int64_t kGroup = kRandomGroup;
  RandomWords words;
  T values[kGroup * n];
  for (int64_t group = begin; group < end; group += kGroup) {
    random_words(state, group, words);
    for (int64_t i = 0; i < kGroup; ++i) {
      T drawn[n];
      draw(Philox4{{words[0][i], words[1][i], words[2][i], words[3][i]}}, drawn);
      for (int64_t j = 0; j < n; ++j) values[i * n + j] = drawn[j];
    }
    const int64_t valid = std::min(kGroup, end - group) * n;
    std::copy_n(values, std::min(valid, count - group * n), y + group * n);
  }
}

}  // namespace

void run(Cpu& cpu, const Random& args) {
  int64_t* state = args.state.as<int64_t>();
  const int64_t count = args.y.numel();
  visit_draw(args, [&](auto type, const auto& draw) {
    using T = typename decltype(type)::type;
    constexpr int64_t n = std::remove_cvref_t<decltype(draw)>::kPerBlock;
    parallel_tiles(cpu, (count + n - 1) / n, kTile / n, [&](int64_t begin, int64_t end) {
      draw_blocks(draw, state, begin, end, count, args.y.as<T>());
    });
  });
  ++state[1];
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(Random)
