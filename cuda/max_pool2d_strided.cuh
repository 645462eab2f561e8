// What both directions of max_pool2d with windows of 3 x 3 at stride 2 share.
#pragma once

#include "cuda/max_pool2d_pairs.h"
#include "cuda/pool_pairs.cuh"

namespace gradus {

struct Strided : Pairs {
  int padding = 1;  // or 0: window j begins in column 2j - padding
};

inline bool is_strided(const Window& window) {
  return window.kernel == Pair(3) && window.stride == Pair(2) && window.dilation == Pair(1) &&
         (window.padding == Pair(1) || window.padding == Pair(0));
}

// Whether the kernels take these with 16 bytes of x at a time.
template <class T>
bool has_packs(const Image& x, const Image& y, const uint8_t* index, bool pixels) {
  constexpr int kWide = kFullPack<T>;
  const auto address = reinterpret_cast<uintptr_t>(index);
  return pixels ? has_channel_packs<T>(x, y) && address % kWide == 0
                : pair_row_width(x, y, sizeof(T)) == kWide && address % (kWide / 2) == 0;
}

}  // namespace gradus
