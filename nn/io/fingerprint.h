// 64-bit FNV-1a, to tell contents apart: http://www.isthe.com/chongo/tech/comp/fnv.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gradus::nn {

class Fingerprint {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      hash_ = (hash_ ^ static_cast<uint64_t>(byte)) * 0x100000001B3ull;
    }
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }

  // 16 hex digits.
  std::string text() const {
    std::string digits(16, '0');
    uint64_t rest = hash_;
    for (size_t i = 16; i-- > 0; rest >>= 4) digits[i] = "0123456789abcdef"[rest & 15];
    return digits;
  }

 private:
  uint64_t hash_ = 0xCBF29CE484222325ull;
};

}  // namespace gradus::nn
