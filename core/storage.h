// Memory of a tensor: device-tagged, reference-counted, with a version that every in-place write
// raises. All views of one storage share its version.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "core/device.h"

namespace gradus {

struct AllocatorStats {
  int64_t bytes_in_use = 0;       // handed out now
  int64_t peak_bytes_in_use = 0;  // largest value of bytes_in_use so far
  int64_t bytes_held = 0;         // taken from the system, in use or cached
  int64_t blocks_in_use = 0;
  int64_t system_allocations = 0;  // calls to the system's allocator (cudaMalloc) so far
};

// The one virtual interface of a backend, so that tests can put guard bands around every buffer.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // Memory aligned to at least 256 bytes. Throws out_of_memory naming bytes asked, held and free.
  virtual void* allocate(size_t bytes) = 0;
  virtual void deallocate(void* data, size_t bytes) noexcept = 0;
  virtual AllocatorStats stats() const = 0;
};

class Storage {
 public:
  // Takes `bytes` from the allocator of the calling thread's context on `device`; uninitialised.
  static std::shared_ptr<Storage> make(Device device, size_t bytes);
  static std::shared_ptr<Storage> make(Device device, size_t bytes,
                                       std::shared_ptr<Allocator> allocator);
  // Wraps memory owned by somebody else, who keeps it alive.
  static std::shared_ptr<Storage> wrap(Device device, void* data, size_t bytes);
  ~Storage();

  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  bool is_wrapped() const { return allocator_ == nullptr; }
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }

 private:
  Storage(Device device, size_t bytes, std::shared_ptr<Allocator> allocator, void* data)
      : allocator_(std::move(allocator)), data_(data), bytes_(bytes), device_(device) {}

  std::shared_ptr<Allocator> allocator_;  // null for wrapped memory
  void* data_;
  size_t bytes_;
  Device device_;
  std::atomic<uint64_t> version_{0};
};

}  // namespace gradus
