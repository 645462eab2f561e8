// Softmax and log-softmax. Where sets lie side by side (inner > 1), each lane has a set of its own;
// where a set is a row, the lanes run along it. Short rows and narrow columns are gathered first,
// so that each lane has a set again.
#include "core/ops/softmax.h"

#include "cpu/dispatch.h"
#include "cpu/parallel.h"
#include "cpu/softmax_sets.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {
namespace {

constexpr int64_t kHeldValues = 1 << 16;  // of a tile, at most; a quarter of a second-level cache
constexpr int kVectors = 4;               // of sets, worked on side by side

template <class A>
constexpr int64_t kSets = kVectors* kLaneCount<A>;

// Calls f(constant V, first set, lanes) for the vectors of `count` sets, kVectors at a time.
template <class A, class F>
void for_each_vectors(int64_t count, F&& f) {
  int64_t i = 0;
  for (; i + kSets<A> <= count; i += kSets<A>)
    f(std::integral_constant<int, kVectors>(), i, FullLanes<A>{});
  for (; i + kLaneCount<A> <= count; i += kLaneCount<A>)
    f(std::integral_constant<int, 1>(), i, FullLanes<A>{});
  if (i < count) f(std::integral_constant<int, 1>(), i, count - i);
}

// Calls f(buffer, item) for all items in parallel; buffer: `values` of A.
template <class A, class F>
void for_each_with_buffer(Cpu& cpu, int64_t items, int64_t elements_per_item, int64_t values,
                          F&& f) {
  const int64_t tile = std::max<int64_t>(1, kTile / elements_per_item);
  parallel_tiles(cpu, items, tile, [&](int64_t begin, int64_t end) {
    const Workspace<A> buffer(cpu, values);
    for (int64_t i = begin; i < end; ++i) f(buffer.data(), i);
  });
}

// ---- sets side by side: pieces of at most kSets of them -----------------------------------------

template <class A, class F>
void for_each_piece(Cpu& cpu, const SoftmaxGeometry& g, int64_t values, F&& f) {
  const int64_t pieces = (g.inner + kSets<A> - 1) / kSets<A>;
  const int64_t elements = g.c * std::min(g.inner, kSets<A>);
  for_each_with_buffer<A>(cpu, g.outer * pieces, elements, values, [&](A* buffer, int64_t i) {
    const int64_t set = i % pieces * kSets<A>;
    const int64_t at = i / pieces * g.c * g.inner + set;
    for_each_vectors<A>(std::min(kSets<A>, g.inner - set), [&](auto v, int64_t first, auto lanes) {
      f(buffer, at + first, v, lanes);
    });
  });
}

template <bool kLog, class T>
void forward_columns(Cpu& cpu, const SoftmaxGeometry& g, const T* x, T* y) {
  using A = acc_t<T>;
  const bool is_held = g.c * kSets<A> <= kHeldValues;
  for_each_piece<A>(cpu, g, is_held ? g.c * kSets<A> : 0,
                    [&](A* held, int64_t at, auto v, auto lanes) {
                      if (is_held) {
                        forward_sets<v(), kLog, true>(x + at, y + at, g.c, g.inner, held, lanes);
                      } else {
                        forward_sets<v(), kLog, false>(x + at, y + at, g.c, g.inner, held, lanes);
                      }
                    });
}

template <bool kLog, class T>
void backward_columns(Cpu& cpu, const SoftmaxGeometry& g, const T* y, const T* dy, T* dx) {
  using A = acc_t<T>;
  const bool is_held = 2 * g.c * kSets<A> <= kHeldValues;
  for_each_piece<A>(
      cpu, g, is_held ? 2 * g.c * kSets<A> : 0, [&](A* held, int64_t at, auto v, auto lanes) {
        if (is_held) {
          backward_sets<v(), kLog, true>(y + at, dy + at, dx + at, g.c, g.inner, held, lanes);
        } else {
          backward_sets<v(), kLog, false>(y + at, dy + at, dx + at, g.c, g.inner, held, lanes);
        }
      });
}

// ---- short rows and narrow columns: gathered as [c, kSets] --------------------------------------

// Calls f(place in x, place in the buffer) for every value of `sets` sets from `first` on.
template <class A, class F>
void for_each_value(const SoftmaxGeometry& g, int64_t first, int64_t sets, F&& f) {
  for (int64_t i = 0; i < sets; ++i) {
    const int64_t set = first + i;
    const int64_t at = set / g.inner * g.c * g.inner + set % g.inner;
    for (int64_t k = 0; k < g.c; ++k) f(at + k * g.inner, k * kSets<A> + i);
  }
}

template <bool kLog, class T>
void forward_gathered(Cpu& cpu, const SoftmaxGeometry& g, const T* x, T* y) {
  using A = acc_t<T>;
  const int64_t sets = g.outer * g.inner, values = g.c * kSets<A>;
  const int64_t pieces = (sets + kSets<A> - 1) / kSets<A>;
  for_each_with_buffer<A>(cpu, pieces, values, values, [&](A* z, int64_t i) {
    const int64_t first = i * kSets<A>, count = std::min(kSets<A>, sets - first);
    if (count < kSets<A>) std::fill(z, z + values, A(0));
    for_each_value<A>(g, first, count,
                      [&](int64_t at, int64_t to) { z[to] = static_cast<A>(x[at]); });
    forward_sets<kVectors, kLog, true>(z, z, g.c, kSets<A>, z, FullLanes<A>{});
    for_each_value<A>(g, first, count,
                      [&](int64_t at, int64_t from) { y[at] = static_cast<T>(z[from]); });
  });
}

template <bool kLog, class T>
void backward_gathered(Cpu& cpu, const SoftmaxGeometry& g, const T* y, const T* dy, T* dx) {
  using A = acc_t<T>;
  const int64_t sets = g.outer * g.inner, values = g.c * kSets<A>;
  const int64_t pieces = (sets + kSets<A> - 1) / kSets<A>;
  for_each_with_buffer<A>(cpu, pieces, values, 2 * values, [&](A* out, int64_t i) {
    const int64_t first = i * kSets<A>, count = std::min(kSets<A>, sets - first);
    A* d = out + values;
    if (count < kSets<A>) std::fill(out, out + 2 * values, A(0));
    for_each_value<A>(g, first, count, [&](int64_t at, int64_t to) {
      out[to] = static_cast<A>(y[at]);
      d[to] = static_cast<A>(dy[at]);
    });
    backward_sets<kVectors, kLog, false>(out, d, d, g.c, kSets<A>, out, FullLanes<A>{});
    for_each_value<A>(g, first, count,
                      [&](int64_t at, int64_t from) { dx[at] = static_cast<T>(d[from]); });
  });
}

// ---- rows ---------------------------------------------------------------------------------------

template <bool kLog, class T>
void forward_rows(Cpu& cpu, const SoftmaxGeometry& g, const T* x, T* y) {
  using A = acc_t<T>;
  constexpr bool is_in_place = std::is_same_v<A, T>;
  const bool is_held = !is_in_place && !kLog && g.c <= kHeldValues;
  for_each_with_buffer<A>(cpu, g.outer, g.c, is_held ? g.c : 0, [&](A* buffer, int64_t i) {
    A* held = buffer;
    if constexpr (is_in_place) held = y + i * g.c;
    forward_row<kLog>(x + i * g.c, y + i * g.c, g.c, held);
  });
}

template <bool kLog, class T>
void backward_rows(Cpu& cpu, const SoftmaxGeometry& g, const T* y, const T* dy, T* dx) {
  for_each_with_buffer<acc_t<T>>(cpu, g.outer, g.c, 0, [&](acc_t<T>*, int64_t i) {
    backward_row<kLog>(y + i * g.c, dy + i * g.c, dx + i * g.c, g.c);
  });
}

template <class A>
bool is_gathered(const SoftmaxGeometry& g) {
  if (g.inner == 1) return g.c <= kLaneCount<A>;
  return g.inner < kLaneCount<A> && g.c * kSets<A> <= kHeldValues;
}

template <bool kLog, class T>
void forward(Cpu& cpu, const SoftmaxForward& args) {
  const SoftmaxGeometry g = softmax_geometry(args.x, args.axis);
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  if (is_gathered<acc_t<T>>(g)) return forward_gathered<kLog>(cpu, g, x, y);
  g.inner == 1 ? forward_rows<kLog>(cpu, g, x, y) : forward_columns<kLog>(cpu, g, x, y);
}

template <bool kLog, class T>
void backward(Cpu& cpu, const SoftmaxBackward& args) {
  const SoftmaxGeometry g = softmax_geometry(args.y, args.axis);
  const T *y = args.y.as<T>(), *dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  if (is_gathered<acc_t<T>>(g)) return backward_gathered<kLog>(cpu, g, y, dy, dx);
  g.inner == 1 ? backward_rows<kLog>(cpu, g, y, dy, dx) : backward_columns<kLog>(cpu, g, y, dy, dx);
}

}  // namespace

void run(Cpu& cpu, const SoftmaxForward& args) {
  if (args.x.numel() == 0) return;
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    args.log ? forward<true, T>(cpu, args) : forward<false, T>(cpu, args);
  });
}

void run(Cpu& cpu, const SoftmaxBackward& args) {
  if (args.y.numel() == 0) return;
  visit(Floating{}, args.y.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    args.log ? backward<true, T>(cpu, args) : backward<false, T>(cpu, args);
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(SoftmaxForward)
GRADUS_DISPATCH(SoftmaxBackward)
