#include "core/ops/activation.h"

#include "cpu/dispatch.h"
#include "cpu/loops.h"
#include "cpu/strided.h"

namespace gradus::GRADUS_ISA {

void run(Cpu& cpu, const ActivationForward& args) {
  const Rows<2> rows(args.y.shape, {args.y.strides, args.x.strides});
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    T* to = args.y.as<T>();
    const T* from = args.x.as<T>();
    const int64_t y_step = rows.inner_strides[0], x_step = rows.inner_strides[1];
    visit_activation(args.activation, [&](auto function) {
      using F = typename decltype(function)::type;
      for_each_row(cpu, rows, [&](const RowOffsets<2>& at, int64_t count) {
        T* y = to + at[0];
        const T* x = from + at[1];
        if (y_step == 1 && x_step == 1) {
          GRADUS_INDEPENDENT
          for (int64_t i = 0; i < count; ++i) y[i] = static_cast<T>(F::f(load(x[i])));
        } else {
          for (int64_t i = 0; i < count; ++i) {
            y[i * y_step] = static_cast<T>(F::f(load(x[i * x_step])));
          }
        }
      });
    });
  });
}

void run(Cpu& cpu, const ActivationBackward& args) {
  const Rows<3> rows(args.dx.shape, {args.dx.strides, args.saved.strides, args.dy.strides});
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    T* to = args.dx.as<T>();
    const T *saved = args.saved.as<T>(), *upstream = args.dy.as<T>();
    const std::array<int64_t, 3> steps = rows.inner_strides;
    visit_activation(args.activation, [&](auto function) {
      using F = typename decltype(function)::type;
      for_each_row(cpu, rows, [&](const RowOffsets<3>& at, int64_t count) {
        T* dx = to + at[0];
        const T *v = saved + at[1], *dy = upstream + at[2];
        if (steps[0] == 1 && steps[1] == 1 && steps[2] == 1) {
          GRADUS_INDEPENDENT
          for (int64_t i = 0; i < count; ++i) {
            dx[i] = static_cast<T>(F::df(load(v[i]), load(dy[i])));
          }
        } else {
          for (int64_t i = 0; i < count; ++i) {
            dx[i * steps[0]] = static_cast<T>(F::df(load(v[i * steps[1]]), load(dy[i * steps[2]])));
          }
        }
      });
    });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(ActivationForward)
GRADUS_DISPATCH(ActivationBackward)
