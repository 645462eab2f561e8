// Where a tensor lives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gradus {

enum class DeviceType : uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device kCpu{DeviceType::cpu, 0};
inline constexpr Device kCuda{DeviceType::cuda, 0};

// "cpu", "cuda:0".
std::string to_string(Device device);

// "cpu", "cuda" or "cuda:N"; throws invalid_argument on anything else. Does not ask whether the
// device exists.
Device parse_device(std::string_view text);

}  // namespace gradus
