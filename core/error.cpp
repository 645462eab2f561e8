#include "core/error.h"

#include <charconv>

namespace gradus {

Error::~Error() = default;

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::out_of_memory:
      return "out_of_memory";
    case ErrorCode::autograd:
      return "autograd";
    case ErrorCode::cuda:
      return "cuda";
    case ErrorCode::io:
      return "io";
    case ErrorCode::internal:
      return "internal";
  }
  return "unknown";
}

namespace detail {
namespace {
template <class T>
void append_number(std::string& text, T value) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  text.append(buffer, result.ptr);
}
}  // namespace

void append(std::string& text, std::string_view part) { text.append(part); }
void append(std::string& text, int64_t part) { append_number(text, part); }
void append(std::string& text, uint64_t part) { append_number(text, part); }
void append(std::string& text, double part) { append_number(text, part); }
}  // namespace detail

}  // namespace gradus
