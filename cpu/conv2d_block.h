// The two register blocks that every convolution comes down to: a few rows times one or two
// vectors, summed in registers.
#pragma once

#include <algorithm>
#include <array>

#include "cpu/vector.h"

namespace gradus::GRADUS_ISA {

// Rows that a block of two vectors may have: its sums, two operands and a broadcast fill the
// registers.
inline constexpr int kBlockRows = kRegisters == 32 ? 14 : 6;

// Terms that a register adds up one by one: of many more, each would lose digits against their sum.
// Those of 3x3 x 64 channels stay whole.
inline constexpr int64_t kDotChain = 768;

// out[i, lanes] = init[lanes] + Σ over taps (r, s) and depth d of a[i, r, s, d] · w[r, s, d, lanes]
template <class A>
struct DotBlock {
  const A* a;        // of row 0 at tap (0, 0)
  int64_t a_row;     // from one row (an output pixel) to the next
  int64_t r, s;      // taps
  int64_t a_r, a_s;  // from one tap to the next
  int64_t depth;     // consecutive values at each tap
  const A* w;        // packed: a block's lanes for every (r, s, d), in that order
  const A* init;     // lanes; null: the sums are added to out
  A* out;            // of row 0
  int64_t out_row;   // from one row to the next
};

template <class A, int P, int V>
GRADUS_INLINE void start_sums(const DotBlock<A>& g, Vec<A> (&sum)[P][V]) {
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    const Vec<A> init = g.init == nullptr ? Vec<A>{} : load_vector(g.init + v * kLanes<A>);
#pragma GCC unroll 16
    for (int i = 0; i < P; ++i) sum[i][v] = init;
  }
}

template <class A, int P, int V>
GRADUS_INLINE void store_sums(const DotBlock<A>& g, Vec<A> (&sum)[P][V]) {
  if (g.init == nullptr) {
#pragma GCC unroll 16
    for (int i = 0; i < P; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[i][v] += load_vector(g.out + i * g.out_row + v * kLanes<A>);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < P; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) store_vector(g.out + i * g.out_row + v * kLanes<A>, sum[i][v]);
  }
}

template <class A, int P, int V>
void dot_block(const DotBlock<A>& g) {
  constexpr int n = kLanes<A>;
  Vec<A> sum[P][V];
  start_sums(g, sum);
  const A* w = g.w;
  for (int64_t r = 0; r < g.r; ++r) {
    for (int64_t s = 0; s < g.s; ++s) {
      const A* a = g.a + r * g.a_r + s * g.a_s;
#pragma GCC unroll 4
      for (int64_t d = 0; d < g.depth; ++d, w += V * n) {
        Vec<A> b[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) b[v] = load_vector(w + v * n);
#pragma GCC unroll 16
        for (int i = 0; i < P; ++i) {
#pragma GCC unroll 2
          for (int v = 0; v < V; ++v) sum[i][v] += b[v] * a[i * g.a_row + d];
        }
      }
    }
  }
  store_sums(g, sum);
}

// The same where every lane has its own input (a depthwise convolution), with one vector of lanes:
//   out[i, lanes] = init[lanes] + Σ over (r, s) of a[i, r, s, lanes] · w[r, s, lanes]
template <class A, int P>
void lane_dot_block(const DotBlock<A>& g) {
  Vec<A> sum[P][1];
  start_sums(g, sum);
  const A* w = g.w;
  for (int64_t r = 0; r < g.r; ++r) {
    for (int64_t s = 0; s < g.s; ++s, w += kLanes<A>) {
      const A* a = g.a + r * g.a_r + s * g.a_s;
      const Vec<A> weight = load_vector(w);
#pragma GCC unroll 16
      for (int i = 0; i < P; ++i) sum[i][0] += weight * load_vector(a + i * g.a_row);
    }
  }
  store_sums(g, sum);
}

// out[i, lanes] += Σ over rows p and columns q of a[p, q, i] · b[p, q, lanes]
template <class A>
struct OuterBlock {
  const A* a;
  int64_t a_p, a_q;  // from one row or column to the next
  const A* b;
  int64_t b_p, b_q;
  int64_t p, q;
  A* out;           // V vectors for every i
  int64_t a_i = 1;  // from one i to the next
};

template <class A, int P, int V>
void outer_block(const OuterBlock<A>& g) {
  constexpr int n = kLanes<A>;
  Vec<A> sum[P][V] = {};
  for (int64_t p = 0; p < g.p; ++p) {
    const A* a = g.a + p * g.a_p;
    const A* b = g.b + p * g.b_p;
    for (int64_t q = 0; q < g.q; ++q, a += g.a_q, b += g.b_q) {
      Vec<A> lanes[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) lanes[v] = load_vector(b + v * n);
#pragma GCC unroll 16
      for (int i = 0; i < P; ++i) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[i][v] += lanes[v] * a[i];
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < P; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      A* out = g.out + (i * V + v) * n;
      store_vector(out, load_vector(out) + sum[i][v]);
    }
  }
}

// The same where every lane has its own input, with one vector of lanes:
//   out[i, lanes] += Σ over p and q of a[p, q, i, lanes] · b[p, q, lanes]
template <class A, int P>
void lane_outer_block(const OuterBlock<A>& g) {
  constexpr int n = kLanes<A>;
  Vec<A> sum[P] = {};
  for (int64_t p = 0; p < g.p; ++p) {
    const A* a = g.a + p * g.a_p;
    const A* b = g.b + p * g.b_p;
    for (int64_t q = 0; q < g.q; ++q, a += g.a_q, b += g.b_q) {
      const Vec<A> lanes = load_vector(b);
#pragma GCC unroll 16
      for (int i = 0; i < P; ++i) sum[i] += lanes * load_vector(a + i * g.a_i);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < P; ++i) store_vector(g.out + i * n, load_vector(g.out + i * n) + sum[i]);
}

template <class A>
using DotFunction = void (*)(const DotBlock<A>&);
template <class A>
using OuterFunction = void (*)(const OuterBlock<A>&);

namespace detail {
// By vectors (0: every lane has its own input, one vector) and rows.
template <class A, int V, int... I>
constexpr auto dot_table(std::integer_sequence<int, I...>) {
  if constexpr (V == 0)
    return std::array<DotFunction<A>, sizeof...(I)>{&lane_dot_block<A, I + 1>...};
  else
    return std::array<DotFunction<A>, sizeof...(I)>{&dot_block<A, I + 1, V>...};
}
template <class A, int V, int... I>
constexpr auto outer_table(std::integer_sequence<int, I...>) {
  if constexpr (V == 0)
    return std::array<OuterFunction<A>, sizeof...(I)>{&lane_outer_block<A, I + 1>...};
  else
    return std::array<OuterFunction<A>, sizeof...(I)>{&outer_block<A, I + 1, V>...};
}
inline constexpr auto kAllRows = std::make_integer_sequence<int, kBlockRows>();
}  // namespace detail

// Runs a block in parts of at most kDotChain terms: some rows of taps, some taps of a row or some
// values of a tap.
template <class A>
void run_chains(const DotBlock<A>& block, int64_t lanes, DotFunction<A> run) {
  const int64_t depth = std::min(block.depth, kDotChain);
  const int64_t s = depth < block.depth ? 1 : std::min(block.s, kDotChain / depth);
  const int64_t r = s < block.s ? 1 : std::min(block.r, kDotChain / (s * depth));
  DotBlock<A> part = block;
  for (int64_t i = 0; i < block.r; i += r) {
    for (int64_t j = 0; j < block.s; j += s) {
      for (int64_t d = 0; d < block.depth; d += depth) {
        part.a = block.a + i * block.a_r + j * block.a_s + d;
        part.r = std::min(r, block.r - i);
        part.s = std::min(s, block.s - j);
        part.depth = std::min(depth, block.depth - d);
        run(part);
        part.w += part.r * part.s * part.depth * lanes;
        part.init = nullptr;
      }
    }
  }
}

// Runs the block of `rows` (1 to kBlockRows) rows and `vectors` (1 or 2) vectors, or the block
// whose lanes have their own inputs (vectors = 0).
template <class A>
void run_block(const DotBlock<A>& block, int64_t rows, int vectors) {
  static constexpr std::array tables{detail::dot_table<A, 0>(detail::kAllRows),
                                     detail::dot_table<A, 1>(detail::kAllRows),
                                     detail::dot_table<A, 2>(detail::kAllRows)};
  const auto run = tables[static_cast<size_t>(vectors)][static_cast<size_t>(rows - 1)];
  if (block.r * block.s * block.depth <= kDotChain)
    run(block);
  else
    run_chains(block, std::max(1, vectors) * kLanes<A>, run);
}
template <class A>
void run_block(const OuterBlock<A>& block, int64_t rows, int vectors) {
  static constexpr std::array tables{detail::outer_table<A, 0>(detail::kAllRows),
                                     detail::outer_table<A, 1>(detail::kAllRows),
                                     detail::outer_table<A, 2>(detail::kAllRows)};
  tables[static_cast<size_t>(vectors)][static_cast<size_t>(rows - 1)](block);
}

}  // namespace gradus::GRADUS_ISA
