#include "cpu/reduce.h"

#include "core/ops/reduce.h"
#include "cpu/dispatch.h"

namespace gradus::GRADUS_ISA {
namespace {

// `lanes` values that are `step` apart; 0 repeats one of them.
template <class T, class Count>
Lanes<acc_t<T>> load_strided(const T* x, int64_t step, Count lanes) {
  if (step == 1) return load(x, lanes);
  T copy[kLaneCount<acc_t<T>>] = {};
  for (int64_t i = 0; i < lanes; ++i) copy[i] = x[i * step];
  return load(copy);
}

template <class T, class Count>
void store_strided(T* y, int64_t step, Lanes<acc_t<T>> v, Count lanes) {
  if (step == 1) return store(y, v, lanes);
  T copy[kLaneCount<acc_t<T>>];
  store(copy, v);
  for (int64_t i = 0; i < lanes; ++i) y[i * step] = copy[i];
}

// dy and the statistics of each set.
template <class T>
struct Statistics {
  using A = acc_t<T>;
  const T* dy;
  const T* exact;  // the first statistic in the storage type, or
  const A* stat0;  // in acc_t
  const A* stat1;
  double divisor;

  explicit Statistics(const ReduceBackward& args)
      : dy(args.dy.as<T>()),
        exact(args.stat0.dtype == dtype_of<T> ? args.stat0.as<T>() : nullptr),
        stat0(exact == nullptr ? args.stat0.as<A>() : nullptr),
        stat1(args.stat1.as<A>()),
        divisor(args.divisor()) {}

  template <class F, class Count>
  auto terms(int64_t at, int64_t step, Count lanes) const {
    const Lanes<A> first = exact != nullptr ? load_strided(exact + at, step, lanes)
                                            : load_strided(stat0 + at, step, lanes);
    const Lanes<A> second = stat1 != nullptr ? load_strided(stat1 + at, step, lanes) : Lanes<A>{};
    return F::template terms<Math>(load_strided(dy + at, step, lanes), first, second, divisor);
  }
};

// Part of a row that lies within one set (y_step 0) or steps through the sets.
template <class F, class T>
void backward_row(T* dx, const T* x, const Statistics<T>& of, const RowOffsets<3>& at,
                  const std::array<int64_t, 3>& steps, int64_t count) {
  using A = acc_t<T>;
  T* to = dx + at[0];
  const T* from = x + at[1];
  const auto terms_of_row = of.template terms<F>(at[2], 0, FullLanes<A>{});
  for_each_lanes<A>(count, [&](int64_t i, auto lanes, int) {
    const auto terms =
        steps[2] == 0 ? terms_of_row : of.template terms<F>(at[2] + i * steps[2], steps[2], lanes);
    const Lanes<A> values = load_strided(from + i * steps[1], steps[1], lanes);
    store_strided(to + i * steps[0], steps[0], F::template dx<Math>(values, terms), lanes);
  });
}

}  // namespace

void run(Cpu& cpu, const ReduceForward& args) {
  const ReducePlan plan(args.x, args.y);
  const double divisor = args.divisor();
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    T* y = args.y.as<T>();
    A *stat0 = args.stat0.as<A>(), *stat1 = args.stat1.as<A>();
    visit_reduction(args.kind, [&](auto reduction) {
      using F = typename decltype(reduction)::type;
      reduce_all<F>(cpu, plan, args.x.as<T>(), [=](int64_t at, const PartOf<F, A>& part) {
        const Reduced<A> result = F::template finish<Math>(part, divisor);
        y[at] = static_cast<T>(result.y);
        if (stat0 != nullptr) stat0[at] = result.stat0;
        if (stat1 != nullptr) stat1[at] = result.stat1;
      });
    });
  });
}

void run(Cpu& cpu, const ReduceBackward& args) {
  const Shape& shape = args.x.shape;
  const Rows<3> rows(shape, {args.dx.strides, args.x.strides,
                             broadcast_strides(args.dy.shape, args.dy.strides, shape)});
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    T* dx = args.dx.as<T>();
    const T* x = args.x.as<T>();
    const Statistics<T> statistics(args);
    visit_reduction(args.kind, [&](auto reduction) {
      using F = typename decltype(reduction)::type;
      for_each_row(cpu, rows, [&](const RowOffsets<3>& at, int64_t count) {
        backward_row<F>(dx, x, statistics, at, rows.inner_strides, count);
      });
    });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(ReduceForward)
GRADUS_DISPATCH(ReduceBackward)
