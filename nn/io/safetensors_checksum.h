// The checksum of a safetensors file, which kChecksumKey names in its metadata.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"
#include "nn/io/safetensors.h"

namespace gradus::nn::safetensors {

inline constexpr std::string_view kNoDigits = "00000000";

// Where the digits are in a header; npos if there are none. A quote within a text follows a
// backslash, so that nothing else reads like this.
inline size_t find_digits(std::string_view header) {
  const std::string before = concat("\"", kChecksumKey, "\":\"");
  size_t at = header.find(before);
  while (at != std::string_view::npos && at > 0 && header[at - 1] == '\\') {
    at = header.find(before, at + 1);
  }
  if (at == std::string_view::npos) return at;
  const size_t digits = at + before.size(), end = digits + kNoDigits.size();
  return end < header.size() && header[end] == '"' ? digits : std::string_view::npos;
}

class Checksum {
 public:
  void add(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;  // zlib begins anew where the pointer is null
    crc_ = crc32_z(crc_, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  }

  // What a file begins with: the length of the header, and the header with zeros for the digits.
  void add_header(std::string header) {
    const uint64_t length = header.size();
    const size_t digits = find_digits(header);
    if (digits != std::string::npos) header.replace(digits, kNoDigits.size(), kNoDigits);
    add(std::as_bytes(std::span(&length, 1)));
    add(std::as_bytes(std::span(header)));
  }

  std::string digits() const {
    std::string text(kNoDigits);
    uLong rest = crc_;
    for (size_t i = text.size(); i-- > 0; rest >>= 4) text[i] = "0123456789abcdef"[rest & 15];
    return text;
  }

 private:
  uLong crc_ = crc32_z(0, nullptr, 0);
};

}  // namespace gradus::nn::safetensors
