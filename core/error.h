// The one error type, and check(), which every public function calls before it changes anything.
//
//   check(groups > 0, "group_norm", "groups must be positive, got ", groups);
//
// Texts read "op: what was expected, what was got" and are the same on every device. The text is
// built only on failure.
#pragma once

#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace gradus {

enum class ErrorCode : uint8_t {
  invalid_argument,  // the caller passed something that cannot work
  unsupported,       // meaningful, but this backend, dtype or build does not have it
  out_of_memory,     // text names bytes asked, held and free, or what the driver lacked them for
  autograd,          // the tape was used against its rules
  cuda,              // the driver or a library reported an error
  io,                // a file is missing, damaged or cannot be written
  internal,          // a defect of gradus
};

std::string_view to_string(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  ~Error() override;  // out of line, so that only error.cpp holds the class's tables
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

namespace detail {
void append(std::string& text, std::string_view part);
void append(std::string& text, int64_t part);
void append(std::string& text, uint64_t part);
void append(std::string& text, double part);  // shortest form, independent of the locale

template <class T>
void append_part(std::string& text, const T& part) {
  if constexpr (std::convertible_to<T, std::string_view>) {
    append(text, std::string_view(part));
  } else if constexpr (std::same_as<T, bool>) {
    append(text, part ? std::string_view("true") : std::string_view("false"));
  } else if constexpr (std::signed_integral<T>) {
    append(text, static_cast<int64_t>(part));
  } else if constexpr (std::unsigned_integral<T>) {
    append(text, static_cast<uint64_t>(part));
  } else if constexpr (std::floating_point<T>) {
    append(text, static_cast<double>(part));
  } else {
    append(text, std::string_view(to_string(part)));
  }
}
}  // namespace detail

// Joins parts (text, numbers, anything with a to_string) without touching the locale.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (detail::append_part(text, parts), ...);
  return text;
}

template <class... Parts>
[[noreturn]] void fail(ErrorCode code, std::string_view op, const Parts&... parts) {
  throw Error(code, concat(op, ": ", parts...));
}

// Throws Error(invalid_argument) unless `condition` holds.
template <class... Parts>
void check(bool condition, std::string_view op, const Parts&... parts) {
  if (!condition) [[unlikely]] {
    fail(ErrorCode::invalid_argument, op, parts...);
  }
}

}  // namespace gradus
