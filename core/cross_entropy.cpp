#include "core/ops/cross_entropy.h"

namespace gradus {

ClassRows class_rows(const AnyView& x, std::string_view op) {
  check(x.shape.rank() >= 2, op, "expected logits [n, c, ...], got ", x);
  const bool is_channels_last = format_of(x, op) == MemoryFormat::channels_last;
  ClassRows result{.rows = x.shape[0], .c = x.shape[1], .inner = 1};
  for (int axis = 2; axis < x.shape.rank(); ++axis) {
    result.rows *= x.shape[axis];
    if (!is_channels_last) result.inner *= x.shape[axis];
  }
  return result;
}

void check_host_labels(Fault::Kind kind, const AnyView& labels, int64_t classes,
                       int64_t ignore_index) {
  visit(TypeList<uint8_t, int32_t, int64_t>{}, labels.dtype, [&](auto type) {
    const auto* label = labels.as<typename decltype(type)::type>();
    for (int64_t i = 0; i < labels.numel(); ++i) {
      const int64_t value = static_cast<int64_t>(label[i]);
      if (value != ignore_index && (value < 0 || value >= classes)) {
        raise({.kind = kind, .value = value, .index = i, .limit = classes});
      }
    }
  });
}

}  // namespace gradus
