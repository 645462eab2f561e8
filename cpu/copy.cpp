#include "core/ops/copy.h"

#include <cstring>

#include "cpu/dispatch.h"
#include "cpu/parallel.h"
#include "cpu/strided.h"

namespace gradus::GRADUS_ISA {
namespace {

template <class To, class From>
void copy_row(To* y, int64_t y_stride, const From* x, int64_t x_stride, int64_t count) {
  if (x_stride == 1 && y_stride == 1) {
    for (int64_t i = 0; i < count; ++i) y[i] = convert_to<To>(x[i]);
  } else if (x_stride == 0 && y_stride == 1) {
    const To value = convert_to<To>(*x);
    for (int64_t i = 0; i < count; ++i) y[i] = value;
  } else {
    for (int64_t i = 0; i < count; ++i) y[i * y_stride] = convert_to<To>(x[i * x_stride]);
  }
}

}  // namespace

void run(Cpu& cpu, const Copy& args) {
  const Rows<2> rows(args.y.shape, {args.y.strides, args.x.strides});
  visit(AllTypes{}, args.y.dtype, [&](auto to) {
    visit(AllTypes{}, args.x.dtype, [&](auto from) {
      using To = typename decltype(to)::type;
      using From = typename decltype(from)::type;
      To* y = args.y.as<To>();
      const From* x = args.x.as<From>();
      for_each_row(cpu, rows, [&](const RowOffsets<2>& at, int64_t count) {
        copy_row(y + at[0], rows.inner_strides[0], x + at[1], rows.inner_strides[1], count);
      });
    });
  });
}

void run(Cpu& cpu, const Fill& args) {
  const Rows<1> rows(args.y.shape, {args.y.strides});
  visit(AllTypes{}, args.y.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    T* y = args.y.as<T>();
    const T value = convert_to<T>(args.value);
    for_each_row(cpu, rows, [&](const RowOffsets<1>& at, int64_t count) {
      for (int64_t i = 0; i < count; ++i) y[at[0] + i * rows.inner_strides[0]] = value;
    });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(Copy)
GRADUS_DISPATCH(Fill)
