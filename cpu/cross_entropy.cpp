#include "core/ops/cross_entropy.h"

#include <limits>
#include <type_traits>

#include "cpu/dispatch.h"
#include "cpu/eigen.h"
#include "cpu/exp.h"
#include "cpu/labels.h"
#include "cpu/parallel.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {
namespace {

constexpr int64_t kChain = 256;  // terms that are added up one by one

// Rows that are worked on together, one per lane.
template <class A, int64_t kRows>
using Rows = Eigen::Array<A, kRows, 1>;

// Calls f with the number of rows that are worked on together: the lanes of one vector where it
// holds all rows, else 64, whose sums need not wait for each other. A row's results are the same.
template <class A, class F>
void with_rows(int64_t rows, F&& f) {
  if (rows <= kLaneCount<A>) return f(std::integral_constant<int64_t, kLaneCount<A>>());
  f(std::integral_constant<int64_t, 64>());
}

// Eigen's own exp is no smaller than the smallest normal number.
template <class A, int64_t kRows>
Rows<A, kRows> exp_rows(const Rows<A, kRows>& z) {
  Rows<A, kRows> e;
  for (int64_t i = 0; i < kRows; i += kLaneCount<A>)
    store(e.data() + i, exp_lanes<A>(load(z.data() + i)));
  return e;
}

// Up to kRows rows as z[k][row]: one class of all rows lies together, whatever the layout of x.
template <class T, int64_t kRows>
struct Tile {
  using A = acc_t<T>;
  using Lanes = Rows<A, kRows>;
  const ClassRows& shape;
  int64_t first, count;
  int64_t offsets[kRows];  // of each row's first logit
  A* z;                    // [c, kRows]; lanes beyond `count` hold 0

  Tile(const ClassRows& s, const T* x, int64_t begin, int64_t end, A* buffer)
      : shape(s), first(begin), count(end - begin), z(buffer) {
    for (int64_t i = 0; i < count; ++i) offsets[i] = row_offset(s, first + i);
    for (int64_t k = 0; k < s.c; ++k) {
      for (int64_t i = 0; i < count; ++i) at(k, i) = static_cast<A>(x[offsets[i] + k * s.inner]);
      for (int64_t i = count; i < kRows; ++i) at(k, i) = A(0);
    }
  }

  A& at(int64_t k, int64_t i) const { return z[k * kRows + i]; }
  Eigen::Map<Lanes> rows(int64_t k) const { return Eigen::Map<Lanes>(z + k * kRows); }
};

// Σ_k e/c·w_k, what label smoothing gives to all classes together.
template <class A>
A smoothing_weight(const AnyView& weight, int64_t c, double label_smoothing) {
  if (!weight || label_smoothing == 0) return static_cast<A>(label_smoothing);
  double total = 0;
  for (int64_t k = 0; k < c; ++k) total += static_cast<double>(weight_at<A>(weight, k));
  return static_cast<A>(label_smoothing / static_cast<double>(c) * total);
}

template <class T, int64_t kRows>
RowTotal forward_tile(const CrossEntropyForward& args, const Tile<T, kRows>& tile,
                      acc_t<T> smoothed) {
  using A = acc_t<T>;
  using Lanes = Rows<A, kRows>;
  const int64_t c = tile.shape.c;
  Lanes max = tile.rows(0);  // 1 max; it may pass over a NaN, since the sum does not
  for (int64_t k = 1; k < c; ++k) {
    const auto z = tile.rows(k);
    max = (z > max).select(z, max);
  }
  Lanes sum = Lanes::Zero(), smooth = Lanes::Zero();
  const A share = static_cast<A>(args.label_smoothing / static_cast<double>(c));
  for (int64_t first = 0; first < c; first += kChain) {  // 2 sum
    Lanes chain = Lanes::Zero(), smooth_chain = Lanes::Zero();
    for (int64_t k = first; k < std::min(first + kChain, c); ++k) {
      auto z = tile.rows(k);
      z -= max;
      chain += exp_rows<A, kRows>(z);
      if (share != 0) smooth_chain += share * weight_at<A>(args.weight, k) * z;
    }
    sum += chain, smooth += smooth_chain;
  }
  const Lanes log_sum = sum.log();
  const A rest = static_cast<A>(1 - args.label_smoothing);
  RowTotal total;
  for (int64_t i = 0; i < tile.count; ++i) {  // 3 loss
    const int64_t row = tile.first + i, label = label_at(args.labels, row);
    args.max.as<A>()[row] = max[i];
    args.log_sum.as<A>()[row] = log_sum[i];
    A loss = 0, weight = 0;
    if (label != args.ignore_index) {
      const bool is_valid = label >= 0 && label < c;
      weight = is_valid ? weight_at<A>(args.weight, label) : A(0);
      loss = is_valid ? rest * weight * (log_sum[i] - tile.at(label, i))
                      : std::numeric_limits<A>::quiet_NaN();
      if (share != 0) loss += smoothed * log_sum[i] - smooth[i];
    }
    if (args.reduction == Reduction::none) args.loss.as<A>()[row] = loss;
    total.loss += static_cast<double>(loss);
    total.weight += static_cast<double>(weight);
  }
  return total;
}

template <class T>
void forward(Cpu& cpu, const CrossEntropyForward& args) {
  using A = acc_t<T>;
  const ClassRows shape = class_rows(args.x, args.name);
  const A smoothed = smoothing_weight<A>(args.weight, shape.c, args.label_smoothing);
  with_rows<A>(shape.rows, [&](auto together) {
    constexpr int64_t kRows = together();
    const int64_t tiles = (shape.rows + kRows - 1) / kRows;
    const Workspace<RowTotal> totals(cpu, tiles);
    parallel_tiles(cpu, shape.rows, kRows, [&](int64_t begin, int64_t end) {
      const Workspace<A> z(cpu, shape.c * kRows);
      const Tile<T, kRows> tile(shape, args.x.as<T>(), begin, end, z.data());
      totals.data()[begin / kRows] = forward_tile(args, tile, smoothed);
    });
    write_loss<A>(args, totals.data(), tiles);
  });
}

template <class T, int64_t kRows>
void backward_tile(const CrossEntropyBackward& args, const Tile<T, kRows>& tile,
                   acc_t<T> smoothed) {
  using A = acc_t<T>;
  using Lanes = Rows<A, kRows>;
  const int64_t c = tile.shape.c;
  const A rest = static_cast<A>(1 - args.label_smoothing);
  const A share = static_cast<A>(args.label_smoothing / static_cast<double>(c));
  int64_t labels[kRows];
  Lanes shift = Lanes::Zero(), log_sum = Lanes::Zero();
  Lanes d = Lanes::Zero(), direct = Lanes::Zero();
  for (int64_t i = 0; i < tile.count; ++i) {  // 1 per row
    const int64_t row = tile.first + i;
    labels[i] = label_at(args.labels, row);
    shift[i] = args.max.as<A>()[row];
    log_sum[i] = args.log_sum.as<A>()[row];
    d[i] = args.dy.as<A>()[args.reduction == Reduction::none ? row : 0];
    if (args.reduction == Reduction::mean) d[i] /= *args.divisor.as<A>();
    if (labels[i] == args.ignore_index) continue;
    const bool is_valid = labels[i] >= 0 && labels[i] < c;
    direct[i] = is_valid ? rest * weight_at<A>(args.weight, labels[i])
                         : std::numeric_limits<A>::quiet_NaN();
  }
  T* dx = args.dx.as<T>();
  for (int64_t k = 0; k < c; ++k) {  // 2 write
    const A smooth = share * weight_at<A>(args.weight, k);
    const Lanes p = exp_rows<A, kRows>((tile.rows(k) - shift) - log_sum);
    const Lanes all = p * (direct + smoothed) - smooth;
    for (int64_t i = 0; i < tile.count; ++i) {
      const A own = labels[i] == k ? direct[i] : A(0);
      const A gradient = labels[i] == args.ignore_index ? A(0) : d[i] * (all[i] - own);
      dx[tile.offsets[i] + k * tile.shape.inner] = static_cast<T>(gradient);
    }
  }
}

template <class T>
void backward(Cpu& cpu, const CrossEntropyBackward& args) {
  using A = acc_t<T>;
  const ClassRows shape = class_rows(args.x, args.name);
  const A smoothed = smoothing_weight<A>(args.weight, shape.c, args.label_smoothing);
  with_rows<A>(shape.rows, [&](auto together) {
    constexpr int64_t kRows = together();
    parallel_tiles(cpu, shape.rows, kRows, [&](int64_t begin, int64_t end) {
      const Workspace<A> z(cpu, shape.c * kRows);
      const Tile<T, kRows> tile(shape, args.x.as<T>(), begin, end, z.data());
      backward_tile(args, tile, smoothed);
    });
  });
}

}  // namespace

void run(Cpu& cpu, const CrossEntropyForward& args) {
  check_host_labels(Fault::Kind::label, args.labels, args.x.shape[1], args.ignore_index);
  visit(Floating{}, args.x.dtype,
        [&](auto type) { forward<typename decltype(type)::type>(cpu, args); });
}

void run(Cpu& cpu, const CrossEntropyBackward& args) {
  visit(Floating{}, args.x.dtype,
        [&](auto type) { backward<typename decltype(type)::type>(cpu, args); });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(CrossEntropyForward)
GRADUS_DISPATCH(CrossEntropyBackward)
