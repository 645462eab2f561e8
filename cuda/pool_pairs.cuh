// Launching kernels over windows of 2 x 2 side by side (cuda/device/pool_pairs.cuh): extents, the
// width of accesses, the type of indices.
#pragma once

#include "cuda/device/pool_pairs.cuh"
#include "cuda/plan.h"
#include "cuda/pool_plan.h"

namespace gradus {

inline Pairs make_pairs(const Image& x, const Image& y) {
  Pairs g;
  g.h = x.h;
  g.w = x.w;
  g.p = y.h;
  g.q = y.w;
  g.channels = x.channels;
  g.columns = FastDivisor(static_cast<uint32_t>(y.w));
  g.rows = FastDivisor(static_cast<uint32_t>(y.h));
  return g;
}

inline unsigned pair_blocks(int64_t units, int per_thread) {
  return exact_blocks(ceil_div(units, int64_t(kPairThreads) * per_thread), "pool2d");
}

// Calls f with pair_row_width as an integral constant.
template <class T, class F>
void visit_row_pack(const Image& x, const Image& y, const F& f) {
  const int width = pair_row_width(x, y, sizeof(T));
  if constexpr (kFullPack<T> >= 8) {
    if (width == 8) return f(std::integral_constant<int, 8>());
  }
  if constexpr (kFullPack<T> >= 4) {
    if (width == 4) return f(std::integral_constant<int, 4>());
  }
  if (width == 2) return f(std::integral_constant<int, 2>());
  f(std::integral_constant<int, 1>());
}

// Units of y whose accesses to a row of x bring N elements.
template <int N>
void count_row_units(Pairs& g, const Image& y) {
  constexpr int kOutputs = kPairColumns<N> / 2;
  g.across = FastDivisor(static_cast<uint32_t>(y.w / kOutputs));
  g.units = y.numel() / kOutputs;
}

// Units of dx: N neighbours, or where N = 1 columns of two rows.
template <int N>
void count_gradient_units(Pairs& g, const Image& dx) {
  const int64_t rows = N > 1 ? dx.h : ceil_div(dx.h, 2), across = dx.w / N;
  g.across = FastDivisor(static_cast<uint32_t>(across));
  g.rows = FastDivisor(static_cast<uint32_t>(rows));
  g.units = dx.n * dx.channels * rows * across;
}

template <class T>
bool has_channel_packs(const Image& x, const Image& y) {
  return x.has_packs(kFullPack<T>, sizeof(T)) && y.has_packs(kFullPack<T>, sizeof(T));
}

// Calls f with the type of indices into x.
template <class F>
void visit_index_type(const Image& x, const F& f) {
  if (x.numel() <= INT32_MAX) {
    f(Type<uint32_t>());
  } else {
    f(Type<int64_t>());
  }
}

// Calls f with the channels that one access takes.
template <class T, class F>
void visit_channel_pack(Pairs& g, const Image& x, const Image& y, const F& f) {
  const auto with = [&](auto width) {
    constexpr int N = decltype(width)::value;
    g.across = FastDivisor(static_cast<uint32_t>(x.channels / N));
    g.units = y.numel() / N;
    f(width);
  };
  if (has_channel_packs<T>(x, y)) {
    with(std::integral_constant<int, kFullPack<T>>());
  } else {
    with(std::integral_constant<int, 1>());
  }
}

}  // namespace gradus
