// The npy format in memory: what npy files and the entries of npz files share.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/error.h"
#include "nn/io/npy.h"

namespace gradus::nn {

// Where bytes come from, for error texts: "op: 'place': parts".
struct NpySource {
  std::string op;
  std::string place;

  template <class... Parts>
  void require(bool condition, const Parts&... parts) const {
    if (!condition) [[unlikely]] {
      refuse(parts...);
    }
  }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorCode::io, op, "'", place, "': ", parts...);
  }
};

// The array of a whole npy file; throws as read_npy().
NpyArray parse_npy(const NpySource& source, std::span<const std::byte> bytes);

// The bytes of the whole file, by its header: `start` holds that, or all of the file. At most
// INT64_MAX.
int64_t npy_size(const NpySource& source, std::span<const std::byte> start);

// What stands before the elements in a file of version 1.0; throws as write_npy().
std::string npy_header(std::string_view op, DType dtype, const Shape& shape, int64_t bytes);

}  // namespace gradus::nn
