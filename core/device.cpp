#include "core/device.h"

#include <charconv>

#include "core/error.h"

namespace gradus {

std::string to_string(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : concat("cuda:", device.index);
}

Device parse_device(std::string_view text) {
  if (text == "cpu") return kCpu;
  if (text == "cuda") return kCuda;
  if (text.starts_with("cuda:")) {
    const std::string_view digits = text.substr(5);
    int index = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (result.ec == std::errc() && result.ptr == digits.data() + digits.size() && index >= 0) {
      return {DeviceType::cuda, index};
    }
  }
  fail(ErrorCode::invalid_argument, "device", "expected cpu, cuda or cuda:N, got '", text, "'");
}

}  // namespace gradus
