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

// Calls f with a word as large as an element: the compiler makes vectors of words, but not of the
// structs that 16-bit numbers are.
template <class F>
void visit_word(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

}  // namespace

void run(Cpu& cpu, const Copy& args) {
  const Rows<2> rows(args.y.shape, {args.y.strides, args.x.strides});
  const auto copy = [&](auto* y, const auto* x) {
    for_each_row(cpu, rows, [&](const RowOffsets<2>& at, int64_t count) {
      copy_row(y + at[0], rows.inner_strides[0], x + at[1], rows.inner_strides[1], count);
    });
  };
  if (args.x.dtype == args.y.dtype) {
    return visit_word(args.y.dtype, [&](auto word) {
      using Word = decltype(word);
      copy(static_cast<Word*>(args.y.data), static_cast<const Word*>(args.x.data));
    });
  }
  visit(AllTypes{}, args.y.dtype, [&](auto to) {
    visit(AllTypes{}, args.x.dtype, [&](auto from) {
      using To = typename decltype(to)::type;
      using From = typename decltype(from)::type;
      if constexpr (!std::is_same_v<To, From>) copy(args.y.as<To>(), args.x.as<From>());
    });
  });
}

void run(Cpu& cpu, const Fill& args) {
  const Rows<1> rows(args.y.shape, {args.y.strides});
  visit_word(args.y.dtype, [&](auto word) {
    visit(AllTypes{}, args.y.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      const T value = convert_to<T>(args.value);
      if constexpr (sizeof value == sizeof word) std::memcpy(&word, &value, sizeof word);
    });
    auto* y = static_cast<decltype(word)*>(args.y.data);
    for_each_row(cpu, rows, [&](const RowOffsets<1>& at, int64_t count) {
      copy_row(y + at[0], rows.inner_strides[0], &word, 0, count);
    });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(Copy)
GRADUS_DISPATCH(Fill)
