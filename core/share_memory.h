// Whether two pieces of memory are partly the same: by address, since storages that wrap memory of
// somebody else may be of one.
#pragma once

#include <cstdint>

#include "core/storage.h"

namespace gradus {

inline bool share_memory(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  const auto x_end = x + static_cast<uintptr_t>(a_bytes),
             y_end = y + static_cast<uintptr_t>(b_bytes);
  return a_bytes > 0 && b_bytes > 0 && x < y_end && y < x_end;
}

inline bool share_memory(const Storage& a, const Storage& b) {
  return a.device() == b.device() && share_memory(a.data(), static_cast<int64_t>(a.bytes()),
                                                  b.data(), static_cast<int64_t>(b.bytes()));
}

}  // namespace gradus
