#include "core/view.h"

namespace gradus {

void detail::fail_view(DType expected, DType got) {
  fail(ErrorCode::internal, "view", "expected ", expected, ", got ", got);
}

std::string to_string(const AnyView& view) {
  if (!view.given) return "(not given)";
  return concat(view.dtype, view.shape, "@", view.device);
}

MemoryFormat format_of(const Shape& shape, const Strides& strides, std::string_view op) {
  constexpr auto contiguous = MemoryFormat::contiguous, channels_last = MemoryFormat::channels_last;
  if (strides == strides_of(shape, contiguous)) return contiguous;
  if (shape.rank() == 4 && strides == strides_of(shape, channels_last)) return channels_last;
  if (is_dense(shape, strides, contiguous)) return contiguous;
  if (is_dense(shape, strides, channels_last)) return channels_last;
  fail(ErrorCode::invalid_argument, op, "expected a contiguous or channels-last tensor, got shape ",
       shape, " with strides ", strides, "; call contiguous() first");
}

}  // namespace gradus
