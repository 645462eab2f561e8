// The allocator of host memory. Blocks of 128 KB and more are kept when they are freed and handed
// out again: the system would clear every page of a new one first.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "core/storage.h"

namespace gradus {

// Holds no more than what was in use at once so far. Thread-safe.
class HostAllocator final : public Allocator {
 public:
  ~HostAllocator() override;

  void* allocate(size_t bytes) override;
  void deallocate(void* data, size_t bytes) noexcept override;
  AllocatorStats stats() const override;

  // Gives every block that is not in use back to the system.
  void empty_cache() noexcept;

 private:
  void release_until(int64_t cached_bytes) noexcept;  // the largest first

  mutable std::mutex mutex_;
  std::map<size_t, std::vector<void*>> cache_;  // by size; the last freed is the first used
  int64_t cached_bytes_ = 0;
  AllocatorStats stats_;
};

// The one that all threads' contexts start with.
std::shared_ptr<HostAllocator> host_allocator();

}  // namespace gradus
