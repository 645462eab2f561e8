#include "core/launch.h"

namespace gradus::detail {

Device common_device(std::string_view op, std::span<const AnyView* const> views) {
  const AnyView* first = nullptr;
  for (const AnyView* view : views) {
    if (!view->given) continue;
    if (first == nullptr) first = view;
    check(view->device == first->device, op, "all tensors must be on one device, got ", *first,
          " and ", *view);
  }
  return first == nullptr ? kCpu : first->device;
}

void require_support(std::string_view op, const Support& support, Device device, DType dtype) {
  const DTypeSet& set = device.type == DeviceType::cpu ? support.cpu : support.cuda;
  if (!set.contains(dtype)) {
    fail(ErrorCode::unsupported, op, "no ", dtype, " kernel for ", device);
  }
}

}  // namespace gradus::detail
