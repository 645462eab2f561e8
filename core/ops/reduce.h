// Reductions over a set of axes to one value per set: max, min, prod, norm2, logsumexp, var, std.
// Formulas, forward and backward, and what is saved: core/ops/reductions.h.
#pragma once

#include "core/backend.h"
#include "core/ops/reductions.h"

namespace gradus {

// An entry of `reductions::All`, by its place there.
enum class ReduceKind : uint8_t {};

namespace detail {
template <class F, class... Fs>
constexpr ReduceKind reduce_kind_of(TypeList<Fs...>) {
  uint8_t index = 0, found = 0;
  ((found = std::is_same_v<F, Fs> ? index : found, ++index), ...);
  return ReduceKind{found};
}

template <class... Fs, class G>
void visit_reduction(TypeList<Fs...>, ReduceKind kind, G&& g) {
  uint8_t index = 0;
  ((static_cast<uint8_t>(kind) == index++ ? g(Type<Fs>{}) : void()), ...);
}
}  // namespace detail

template <class F>
inline constexpr ReduceKind reduce_kind = detail::reduce_kind_of<F>(reductions::All{});

// Calls g(Type<F>{}) for the struct F that `kind` stands for.
template <class G>
void visit_reduction(ReduceKind kind, G&& g) {
  detail::visit_reduction(reductions::All{}, kind, g);
}

// Whether y itself can be the first statistic of values of `dtype`.
template <class F>
constexpr bool saves_y(DType dtype) {
  return F::kExactY || (F::kStat0IsY && acc_dtype(dtype) == dtype);
}

namespace detail {
// max(0, m - correction) for the m elements of a set. Inlined, so that cpu/ shares no symbol.
inline __attribute__((always_inline)) double reduce_divisor(const AnyView& x, const AnyView& y,
                                                            double correction) {
  const double rest = static_cast<double>(x.numel() / y.numel()) - correction;
  return rest > 0 ? rest : 0;
}
}  // namespace detail

// y[j] = the reduction of the elements of x that reduce to j. The order in which parts of a set are
// merged depends on the shape, the strides and the alignment of x only.
struct ReduceForward {
  static constexpr std::string_view name = "reduce_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  ReduceKind kind;
  AnyView x;      // any shape and strides, not empty
  AnyView y;      // the rank of x, 1 along the reduced axes; contiguous
  AnyView stat0;  // like y in acc_dtype; may be absent
  AnyView stat1;  // likewise
  double correction = 0.0;

  double divisor() const { return detail::reduce_divisor(x, y, correction); }
  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, y, stat0, stat1); }
  int64_t bytes() const { return x.nbytes() + y.nbytes() + stat0.nbytes() + stat1.nbytes(); }
  int64_t flops() const { return x.numel(); }
  static Guarantee guarantee() { return {}; }
};

struct ReduceBackward {
  static constexpr std::string_view name = "reduce_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  ReduceKind kind;
  AnyView x;      // as in the forward pass
  AnyView dy;     // like y, contiguous
  AnyView stat0;  // acc_dtype, or y itself where kExactY; contiguous. Absent, as stat1 is then,
                  // where finds_statistics() holds
  AnyView stat1;  // acc_dtype; absent unless kStat1
  AnyView dx;     // the shape of x, any strides, no element twice
  double correction = 0.0;

  double divisor() const { return detail::reduce_divisor(x, dy, correction); }
  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, dy, stat0, stat1, dx); }
  int64_t bytes() const {
    return x.nbytes() + dy.nbytes() + stat0.nbytes() + stat1.nbytes() + dx.nbytes();
  }
  int64_t flops() const { return x.numel(); }
  static Guarantee guarantee() { return {}; }
};

// Whether the gradient of a reduction of x to the shape of y, if it needs more than y, finds it
// again as it reads x: then nothing else need be saved; dx is to be dense, as x is.
inline bool finds_statistics(const Cpu&, ReduceKind, const AnyView&, const AnyView&) {
  return false;
}
bool finds_statistics(const Cuda&, ReduceKind, const AnyView& x, const AnyView& y);

void run(Cpu&, const ReduceForward&);
void run(Cpu&, const ReduceBackward&);
void run(Cuda&, const ReduceForward&);
void run(Cuda&, const ReduceBackward&);

}  // namespace gradus
