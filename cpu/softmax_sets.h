// The arithmetic of softmax (core/ops/softmax.h), for sets that have a lane each and for sets that
// are rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/exp.h"

namespace gradus::GRADUS_ISA {

// Terms that are added up one by one.
inline constexpr int64_t kChain = 256;

template <class A>
inline constexpr A kBelowAll = -std::numeric_limits<A>::infinity();

// v with the lanes from `lanes` on set to -inf.
template <class A, class Count>
inline Lanes<A> or_below_all(Lanes<A> v, Count lanes) {
  if constexpr (std::is_same_v<Count, int64_t>) {
    for (int64_t i = lanes; i < kLaneCount<A>; ++i) v[i] = kBelowAll<A>;
  }
  return v;
}

template <class A>
inline Lanes<A> log_lanes(Lanes<A> v) {
  A lanes[kLaneCount<A>];
  store(lanes, v);
  for (A& lane : lanes) lane = std::log(lane);
  return load(lanes);
}

// Largest of the lanes, halves folded onto each other; NaN may be passed over.
template <class A>
inline A max_lanes(Lanes<A> v) {
  A lanes[kLaneCount<A>];
  store(lanes, v);
  for (int64_t width = kLaneCount<A> / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i)
      lanes[i] = lanes[i + width] > lanes[i] ? lanes[i + width] : lanes[i];
  }
  return lanes[0];
}

// ---- V vectors of sets, one set per lane: element k of set s at k·inner + s --------------------

// held: [c, V·kLaneCount], where values stay in acc_t between the passes. Without it they are read,
// and their exponentials computed, again. It may be x and y, if they are stored like that.
template <int V, bool kLog, bool kHeld, class T, class Count>
inline void forward_sets(const T* x, T* y, int64_t c, int64_t inner,
                         [[maybe_unused]] acc_t<T>* held, Count lanes) {
  using A = acc_t<T>;
  constexpr int64_t n = kLaneCount<A>;
  Lanes<A> max[V], sum[V];
  for (int v = 0; v < V; ++v) max[v] = splat<A>(kBelowAll<A>), sum[v] = Lanes<A>{};
  for (int64_t k = 0; k < c; ++k) {  // 1 max
    for (int v = 0; v < V; ++v) {
      const Lanes<A> value = load(x + k * inner + v * n, lanes);
      max[v] = larger<A>(value, max[v]);
      if constexpr (kHeld) store(held + (k * V + v) * n, value);
    }
  }
  const auto shifted = [&](int64_t k, int v) {
    if constexpr (kHeld) {
      return load(held + (k * V + v) * n) - max[v];
    } else {
      return load(x + k * inner + v * n, lanes) - max[v];
    }
  };
  for (int64_t first = 0; first < c; first += kChain) {  // 2 sum
    Lanes<A> chain[V];
    for (int v = 0; v < V; ++v) chain[v] = Lanes<A>{};
    for (int64_t k = first; k < std::min(first + kChain, c); ++k) {
      for (int v = 0; v < V; ++v) {
        const Lanes<A> e = exp_lanes<A>(shifted(k, v));
        chain[v] += e;
        if constexpr (kHeld) __builtin_prefetch(x + k * inner + (V + v) * n);
        if constexpr (kHeld && !kLog) store(held + (k * V + v) * n, e);
      }
    }
    for (int v = 0; v < V; ++v) sum[v] += chain[v];
  }
  for (int v = 0; v < V; ++v) sum[v] = kLog ? log_lanes<A>(sum[v]) : A(1) / sum[v];
  for (int64_t k = 0; k < c; ++k) {  // 3 write
    for (int v = 0; v < V; ++v) {
      Lanes<A> result;
      if constexpr (kLog) {
        result = shifted(k, v) - sum[v];
      } else if constexpr (kHeld) {
        result = load(held + (k * V + v) * n) * sum[v];
      } else {
        result = exp_lanes<A>(shifted(k, v)) * sum[v];
      }
      store(y + k * inner + v * n, result, lanes);
    }
  }
}

// held: [2, c, V·kLaneCount], where y and dy stay in acc_t; or null. dx may be dy.
template <int V, bool kLog, bool kHeld, class T, class Count>
inline void backward_sets(const T* y, const T* dy, T* dx, int64_t c, int64_t inner,
                          [[maybe_unused]] acc_t<T>* held, Count lanes) {
  using A = acc_t<T>;
  constexpr int64_t n = kLaneCount<A>;
  [[maybe_unused]] A* const held_dy = held + (kHeld ? c * V * n : 0);
  Lanes<A> sum[V];
  for (int v = 0; v < V; ++v) sum[v] = Lanes<A>{};
  for (int64_t first = 0; first < c; first += kChain) {  // 1 sum
    Lanes<A> chain[V];
    for (int v = 0; v < V; ++v) chain[v] = Lanes<A>{};
    for (int64_t k = first; k < std::min(first + kChain, c); ++k) {
      for (int v = 0; v < V; ++v) {
        const int64_t at = k * inner + v * n;
        const Lanes<A> d = load(dy + at, lanes);
        if constexpr (kHeld) {
          const Lanes<A> value = load(y + at, lanes);
          store(held + (k * V + v) * n, value);
          store(held_dy + (k * V + v) * n, d);
          chain[v] += kLog ? d : d * value;
        } else {
          chain[v] += kLog ? d : d * load(y + at, lanes);
        }
      }
    }
    for (int v = 0; v < V; ++v) sum[v] += chain[v];
  }
  for (int64_t k = 0; k < c; ++k) {  // 2 write
    for (int v = 0; v < V; ++v) {
      const int64_t at = k * inner + v * n, in_held = (k * V + v) * n;
      Lanes<A> d, value;
      if constexpr (kHeld) {
        d = load(held_dy + in_held), value = load(held + in_held);
        __builtin_prefetch(y + at + V * n);
        __builtin_prefetch(dy + at + V * n);
      } else {
        d = load(dy + at, lanes), value = load(y + at, lanes);
      }
      store(dx + at, kLog ? d - exp_lanes<A>(value) * sum[v] : value * (d - sum[v]), lanes);
    }
  }
}

// ---- a set of c neighbours ---------------------------------------------------------------------

// Σ terms(first, count, sums) over runs of c neighbours, whose four sums are of kChain vectors
// each.
template <class A, class Terms>
inline A sum_runs(int64_t c, const Terms& terms) {
  constexpr int64_t kRun = 4 * kChain * kLaneCount<A>;
  Lanes<A> total{};
  for (int64_t first = 0; first < c; first += kRun) {
    Lanes<A> sums[4] = {};
    terms(first, std::min(kRun, c - first), sums);
    total += (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
  return sum_lanes<A>(total);
}

// held: [c] for the exponentials (y itself where it is in acc_t), or null.
template <bool kLog, class T>
inline void forward_row(const T* x, T* y, int64_t c, acc_t<T>* held) {
  using A = acc_t<T>;
  Lanes<A> maxima[4];
  for (Lanes<A>& max : maxima) max = splat<A>(kBelowAll<A>);
  for_each_lanes<A>(c, [&](int64_t i, auto lanes, int k) {  // 1 max
    maxima[k] = larger<A>(or_below_all<A>(load(x + i, lanes), lanes), maxima[k]);
  });
  const A max =
      max_lanes<A>(larger<A>(larger<A>(maxima[0], maxima[1]), larger<A>(maxima[2], maxima[3])));
  const A sum = sum_runs<A>(c, [&](int64_t first, int64_t count, Lanes<A>* sums) {  // 2 sum
    for_each_lanes<A>(count, [&](int64_t i, auto lanes, int k) {
      const Lanes<A> e = exp_lanes<A>(load(x + first + i, lanes) - max);
      sums[k] += keep<A>(e, lanes);
      if (!kLog && held != nullptr) store(held + first + i, e, lanes);
    });
  });
  const A scale = A(1) / sum, log_sum = kLog ? std::log(sum) : A(0);
  for_each_lanes<A>(c, [&](int64_t i, auto lanes, int) {  // 3 write
    if (kLog) {
      store(y + i, (load(x + i, lanes) - max) - log_sum, lanes);
    } else if (held != nullptr) {
      store(y + i, load(held + i, lanes) * scale, lanes);
    } else {
      store(y + i, exp_lanes<A>(load(x + i, lanes) - max) * scale, lanes);
    }
  });
}

template <bool kLog, class T>
inline void backward_row(const T* y, const T* dy, T* dx, int64_t c) {
  using A = acc_t<T>;
  const A sum = sum_runs<A>(c, [&](int64_t first, int64_t count, Lanes<A>* sums) {  // 1 sum
    for_each_lanes<A>(count, [&](int64_t i, auto lanes, int k) {
      const Lanes<A> d = load(dy + first + i, lanes);
      sums[k] += kLog ? d : d * load(y + first + i, lanes);
    });
  });
  for_each_lanes<A>(c, [&](int64_t i, auto lanes, int) {  // 2 write
    const Lanes<A> d = load(dy + i, lanes), value = load(y + i, lanes);
    store(dx + i, kLog ? d - exp_lanes<A>(value) * sum : value * (d - sum), lanes);
  });
}

}  // namespace gradus::GRADUS_ISA
