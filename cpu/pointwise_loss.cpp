#include "core/ops/pointwise_loss.h"

#include "cpu/activation_pack.h"
#include "cpu/dispatch.h"
#include "cpu/lanes.h"
#include "cpu/strided.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {
namespace {

constexpr int64_t kBlock = 512;  // values that are kept on the stack between f and the sum

// Strides with which a view reads as `shape`; 0 where it is not given.
Strides strides_as(const AnyView& view, const Shape& shape) {
  return view ? broadcast_strides(view.shape, view.strides, shape)
              : Strides::filled(shape.rank(), 0);
}

// Where an operand's row begins and how far apart its elements are.
template <class T>
struct Line {
  T* data;  // null for 1
  int64_t step;

  Line from(int64_t i) const { return {data == nullptr ? nullptr : data + i * step, step}; }
};

template <class T>
Line<T> line_of(const AnyView& view, int64_t offset, int64_t step) {
  T* data = view.as<std::remove_const_t<T>>();
  return {data == nullptr ? nullptr : data + offset, step};
}

// The next elements of an operand in acc, a register at a time: read where they lie, or gathered
// and widened before.
template <class A>
class Run {
 public:
  using V = ActivationPack<A>;

  template <class T>
  Run(const Line<T>& line, int64_t count) : data_(buffer_), count_(count) {
    if (line.data == nullptr || line.step == 0) {
      data_ = nullptr;
      all_ = V(line.data == nullptr ? A(1) : static_cast<A>(*line.data));
    } else if (line.step != 1) {
      for (int64_t i = 0; i < count; ++i) buffer_[i] = static_cast<A>(line.data[i * line.step]);
    } else if constexpr (std::is_same_v<std::remove_const_t<T>, A>) {
      data_ = line.data;
    } else {
      for_each_lanes<A>(count, [&](int64_t i, auto valid, int) {
        store(buffer_ + i, load(line.data + i, valid), valid);
      });
    }
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  V at(int64_t i) const { return data_ == nullptr ? all_ : V(load_lanes(data_ + i, count_ - i)); }

 private:
  A buffer_[kBlock];
  const A* data_;
  int64_t count_;
  V all_{A(0)};
};

// The way of a run of results in acc to where they are wanted.
template <class T>
void write_run(const acc_t<T>* from, const Line<T>& to, int64_t count) {
  if (to.step == 1) {
    for_each_lanes<acc_t<T>>(count, [&](int64_t i, auto valid, int) {
      store(to.data + i, load(from + i, valid), valid);
    });
  } else {
    for (int64_t i = 0; i < count; ++i) to.data[i * to.step] = static_cast<T>(from[i]);
  }
}

// ---- forward ------------------------------------------------------------------------------------

template <class T>
struct LossLine {
  using A = acc_t<T>;
  Line<const T> x, t;
  Line<const A> weight, pos_weight;
  A beta;

  LossLine from(int64_t i) const {
    return {x.from(i), t.from(i), weight.from(i), pos_weight.from(i), beta};
  }
};

template <class F, class T>
void losses_of(const LossLine<T>& line, acc_t<T>* loss, int64_t count) {
  using A = acc_t<T>;
  using V = ActivationPack<A>;
  const Run<A> x(line.x, count), t(line.t, count);
  const Run<A> weight(line.weight, count), pos_weight(line.pos_weight, count);
  const V beta(line.beta), per_beta(A(1) / line.beta);
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    V value = F::f(x.at(i), t.at(i), LossNumbers<V>{beta, per_beta, pos_weight.at(i)});
    if constexpr (F::weighted) value = weight.at(i) * value;
    store_lanes(loss + i, value.v, count - i);
  }
}

// Σ of up to kBlock values, by lanes.
template <class A>
A sum_of(const A* values, int64_t count) {
  Lanes<A> sums[4] = {};
  for_each_lanes<A>(count,
                    [&](int64_t i, auto valid, int k) { sums[k] += load(values + i, valid); });
  return sum_lanes<A>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// The losses of one row, in pieces; written to `loss` unless that is not given. Returns their sum.
template <class F, class T>
double forward_line(const LossLine<T>& line, const Line<acc_t<T>>& loss, int64_t count) {
  using A = acc_t<T>;
  double total = 0;
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t size = std::min(kBlock, count - i);
    if (loss.data != nullptr && loss.step == 1) {
      losses_of<F>(line.from(i), loss.data + i, size);
      continue;
    }
    alignas(64) A values[kBlock];
    losses_of<F>(line.from(i), values, size);
    if (loss.data == nullptr) {
      total += static_cast<double>(sum_of(values, size));
    } else {
      for (int64_t j = 0; j < size; ++j) loss.data[(i + j) * loss.step] = values[j];
    }
  }
  return total;
}

template <class F, class T>
void forward(Cpu& cpu, const PointwiseLossForward& args) {
  using A = acc_t<T>;
  const bool is_none = args.reduction == Reduction::none;
  const AnyView row_loss = is_none ? args.loss : AnyView();
  const Shape& shape = args.x.shape;
  const Rows<5> rows(shape,
                     {is_none ? args.loss.strides : args.x.strides, args.x.strides, args.t.strides,
                      strides_as(args.weight, shape), strides_as(args.pos_weight, shape)});
  const std::array<int64_t, 5> steps = rows.inner_strides;
  const int64_t pieces = (rows.inner + kTile - 1) / kTile, lines = rows.count * pieces;
  const int64_t per_tile =
      pieces > 1 ? 1 : std::max<int64_t>(1, kTile / std::max<int64_t>(rows.inner, 1));
  const Workspace<double> totals(cpu, (lines + per_tile - 1) / per_tile);
  parallel_tiles(cpu, lines, per_tile, [&](int64_t begin, int64_t end) {
    double total = 0;
    for (int64_t i = begin; i < end; ++i) {
      RowOffsets<5> at = rows.offsets(i / pieces);
      const int64_t first = i % pieces * kTile;
      for (size_t k = 0; k < at.size(); ++k) at[k] += first * steps[k];
      const LossLine<T> line{
          line_of<const T>(args.x, at[1], steps[1]), line_of<const T>(args.t, at[2], steps[2]),
          line_of<const A>(args.weight, at[3], steps[3]),
          line_of<const A>(args.pos_weight, at[4], steps[4]), usable_beta<A>(args.beta)};
      total += forward_line<F>(line, line_of<A>(row_loss, at[0], steps[0]),
                               std::min(kTile, rows.inner - first));
    }
    totals.data()[begin / per_tile] = total;
  });
  if (is_none) return;
  double total = 0;
  for (int64_t begin = 0; begin < lines; begin += per_tile)
    total += totals.data()[begin / per_tile];
  if (args.reduction == Reduction::mean) total /= static_cast<double>(shape.numel());
  *args.loss.as<A>() = static_cast<A>(total);
}

// ---- backward -----------------------------------------------------------------------------------

template <class T>
struct GradientLine {
  using A = acc_t<T>;
  LossLine<T> in;
  Line<const A> dy;
  A scale;  // 1, or 1 / count for mean
};

struct ByX {
  template <class F, class V>
  static V slope(V x, V t, const LossNumbers<V>& k) {
    return F::dx(x, t, k);
  }
};
struct ByT {
  template <class F, class V>
  static V slope(V x, V t, const LossNumbers<V>& k) {
    return F::dt(x, t, k);
  }
};

template <class F, class By, class T>
void gradients_of(const GradientLine<T>& line, const Line<T>& to, int64_t count) {
  using A = acc_t<T>;
  using V = ActivationPack<A>;
  const LossLine<T>& in = line.in;
  const Run<A> x(in.x, count), t(in.t, count), dy(line.dy, count);
  const Run<A> weight(in.weight, count), pos_weight(in.pos_weight, count);
  A gradient[kBlock];
  const V beta(in.beta), per_beta(A(1) / in.beta), scale(line.scale);
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    V d = dy.at(i) * scale;
    if constexpr (F::weighted) d = d * weight.at(i);
    const LossNumbers<V> k{beta, per_beta, pos_weight.at(i)};
    store_lanes(gradient + i, (d * By::template slope<F>(x.at(i), t.at(i), k)).v, count - i);
  }
  write_run<T>(gradient, to, count);
}

template <class F, class By, class T>
void gradients_of_row(const GradientLine<T>& line, const Line<T>& to, int64_t count) {
  for (int64_t i = 0; i < count; i += kBlock) {
    const GradientLine<T> part{line.in.from(i), line.dy.from(i), line.scale};
    gradients_of<F, By>(part, to.from(i), std::min(kBlock, count - i));
  }
}

template <class F, class T>
void backward(Cpu& cpu, const PointwiseLossBackward& args) {
  using A = acc_t<T>;
  const Shape& shape = args.x.shape;
  const AnyView& first = args.dx ? args.dx : args.dt;
  const Rows<7> rows(shape, {first.strides, args.x.strides, args.t.strides,
                             strides_as(args.weight, shape), strides_as(args.pos_weight, shape),
                             strides_as(args.dy, shape), strides_as(args.dt, shape)});
  const std::array<int64_t, 7> steps = rows.inner_strides;
  const bool is_mean = args.reduction == Reduction::mean;
  const A scale = static_cast<A>(is_mean ? 1.0 / static_cast<double>(shape.numel()) : 1.0);
  for_each_row(cpu, rows, [&](const RowOffsets<7>& at, int64_t count) {
    const GradientLine<T> line{
        {line_of<const T>(args.x, at[1], steps[1]), line_of<const T>(args.t, at[2], steps[2]),
         line_of<const A>(args.weight, at[3], steps[3]),
         line_of<const A>(args.pos_weight, at[4], steps[4]), usable_beta<A>(args.beta)},
        line_of<const A>(args.dy, at[5], steps[5]),
        scale};
    if (args.dx) gradients_of_row<F, ByX>(line, line_of<T>(args.dx, at[0], steps[0]), count);
    if (args.dt) gradients_of_row<F, ByT>(line, line_of<T>(args.dt, at[6], steps[6]), count);
  });
}

}  // namespace

void run(Cpu& cpu, const PointwiseLossForward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    visit_loss(args.kind, [&](auto loss) {
      forward<typename decltype(loss)::type, typename decltype(type)::type>(cpu, args);
    });
  });
}

void run(Cpu& cpu, const PointwiseLossBackward& args) {
  if (!args.dx && !args.dt) return;
  visit(Floating{}, args.x.dtype, [&](auto type) {
    visit_loss(args.kind, [&](auto loss) {
      backward<typename decltype(loss)::type, typename decltype(type)::type>(cpu, args);
    });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(PointwiseLossForward)
GRADUS_DISPATCH(PointwiseLossBackward)
