#include "core/ops/arithmetic.h"

#include "cpu/dispatch.h"
#include "cpu/loops.h"
#include "cpu/strided.h"

namespace gradus::GRADUS_ISA {
namespace {

// Steps, in elements, of y, a and b along a row.
using Steps = std::array<int64_t, 3>;

// y[i] = f(a[i], b[i]) along a row; the usual steps get loops of their own.
template <class T, class F>
void binary_row(T* y, const T* a, const T* b, const Steps& steps, int64_t count, const F& f) {
  if (steps == Steps{1, 1, 1}) {
    GRADUS_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) y[i] = static_cast<T>(f(load(a[i]), load(b[i])));
  } else if (steps == Steps{1, 1, 0}) {
    const auto repeated = load(*b);
    GRADUS_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) y[i] = static_cast<T>(f(load(a[i]), repeated));
  } else if (steps == Steps{1, 0, 1}) {
    const auto repeated = load(*a);
    GRADUS_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) y[i] = static_cast<T>(f(repeated, load(b[i])));
  } else {
    for (int64_t i = 0; i < count; ++i) {
      y[i * steps[0]] = static_cast<T>(f(load(a[i * steps[1]]), load(b[i * steps[2]])));
    }
  }
}

// Calls f with the function of two values that `args` asks for, computed in A.
template <class A, class F>
void with_function(const Arithmetic& args, F&& f) {
  const A alpha = static_cast<A>(args.alpha);
  switch (args.kind) {
    case Arithmetic::Kind::add:
      return f([alpha](A a, A b) { return a + alpha * b; });
    case Arithmetic::Kind::sub:
      return f([alpha](A a, A b) { return a - alpha * b; });
    case Arithmetic::Kind::mul:
      return f([](A a, A b) { return a * b; });
    case Arithmetic::Kind::div:
      return f([](A a, A b) { return a / b; });
  }
}

}  // namespace

void run(Cpu& cpu, const Arithmetic& args) {
  const AnyView &a = args.a, &b = args.b, &y = args.y;
  const Rows<3> rows(y.shape, {y.strides, broadcast_strides(a.shape, a.strides, y.shape),
                               broadcast_strides(b.shape, b.strides, y.shape)});
  visit(Floating{}, y.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    with_function<acc_t<T>>(args, [&](const auto& f) {
      T* to = y.as<T>();
      const T *left = a.as<T>(), *right = b.as<T>();
      for_each_row(cpu, rows, [&](const RowOffsets<3>& at, int64_t count) {
        binary_row(to + at[0], left + at[1], right + at[2], rows.inner_strides, count, f);
      });
    });
  });
}

void run(Cpu& cpu, const Affine& args) {
  const AnyView &x = args.x, &y = args.y;
  const Rows<2> rows(y.shape, {y.strides, x.strides});
  visit(Floating{}, y.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    const A scale = static_cast<A>(args.scale), shift = static_cast<A>(args.shift);
    T* to = y.as<T>();
    const T* from = x.as<T>();
    const int64_t to_step = rows.inner_strides[0], from_step = rows.inner_strides[1];
    for_each_row(cpu, rows, [&](const RowOffsets<2>& at, int64_t count) {
      T* row = to + at[0];
      const T* values = from + at[1];
      if (to_step == 1 && from_step == 1) {
        GRADUS_INDEPENDENT
        for (int64_t i = 0; i < count; ++i) {
          row[i] = static_cast<T>(scale * load(values[i]) + shift);
        }
      } else {
        for (int64_t i = 0; i < count; ++i) {
          row[i * to_step] = static_cast<T>(scale * load(values[i * from_step]) + shift);
        }
      }
    });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(Arithmetic)
GRADUS_DISPATCH(Affine)
