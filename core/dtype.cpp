#include "core/dtype.h"

namespace gradus {

DType parse_dtype(std::string_view text) {
  for (int i = 0; i <= static_cast<int>(DType::i64); ++i) {
    if (text == to_string(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  fail(ErrorCode::invalid_argument, "dtype", "expected f32, f64, f16, bf16, u8, i32 or i64, got ",
       text);
}

void detail::fail_visit(DType dtype) {
  fail(ErrorCode::unsupported, "visit", "no case for dtype ", dtype);
}

}  // namespace gradus
