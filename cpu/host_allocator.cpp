#include "cpu/host_allocator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <new>

#include "core/error.h"

namespace gradus {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kHugePage = size_t(2) << 20, kSmallestHuge = 2 * kHugePage;
constexpr size_t kRounding = size_t(64) << 10;  // of smaller blocks that are kept
// What the address sanitizer should see freed is not kept.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kSmallestCached = size_t(-1);
#else
constexpr size_t kSmallestCached = size_t(128) << 10;  // from here on malloc asks the system, too
#endif

constexpr size_t kLargestAllocation = size_t(1) << 46;  // sums of larger ones would overflow

bool is_cached(size_t bytes) { return bytes >= kSmallestCached; }
bool is_huge(size_t bytes) { return bytes >= kSmallestHuge; }

// Of the block that serves a request.
size_t block_size(size_t bytes) {
  if (!is_cached(bytes)) return bytes;
  const size_t rounding = is_huge(bytes) ? kHugePage : kRounding;
  return (bytes + rounding - 1) / rounding * rounding;
}

std::align_val_t alignment_of(size_t bytes) {
  return std::align_val_t(is_huge(bytes) ? kHugePage : kAlignment);
}

void* system_allocate(size_t bytes) {
  void* data = ::operator new(bytes, alignment_of(bytes), std::nothrow);
  // Fewer page faults; only speed depends on it.
  if (data != nullptr && is_huge(bytes)) (void)madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

void system_free(void* data, size_t bytes) { ::operator delete(data, alignment_of(bytes)); }

[[noreturn]] void refuse(size_t bytes, int64_t in_use) {
  fail(ErrorCode::out_of_memory, "out of memory", "asked for ", bytes, " bytes on cpu, holding ",
       in_use, ", and ", sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGE_SIZE), " of ",
       sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE), " are free");
}

}  // namespace

HostAllocator::~HostAllocator() { empty_cache(); }

void* HostAllocator::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > kLargestAllocation) refuse(bytes, stats_.bytes_in_use);
  const size_t size = block_size(bytes);
  const int64_t in_use = stats_.bytes_in_use + static_cast<int64_t>(size);
  const int64_t peak = std::max(stats_.peak_bytes_in_use, in_use);
  void* data = nullptr;
  if (const auto free = cache_.find(size); free != cache_.end()) {
    data = free->second.back();
    free->second.pop_back();
    if (free->second.empty()) cache_.erase(free);
    cached_bytes_ -= static_cast<int64_t>(size);
  } else {
    release_until(peak - in_use);
    data = system_allocate(size);
    if (data == nullptr) {
      release_until(0);
      data = system_allocate(size);
    }
    if (data == nullptr) refuse(bytes, stats_.bytes_in_use);
    ++stats_.system_allocations;
  }
  stats_.bytes_in_use = in_use;
  stats_.peak_bytes_in_use = peak;
  ++stats_.blocks_in_use;
  return data;
}

void HostAllocator::deallocate(void* data, size_t bytes) noexcept {
  const size_t size = block_size(bytes);
  const std::lock_guard lock(mutex_);
  stats_.bytes_in_use -= static_cast<int64_t>(size);
  --stats_.blocks_in_use;
  if (!is_cached(bytes)) return system_free(data, size);
  try {
    cache_[size].push_back(data);
    cached_bytes_ += static_cast<int64_t>(size);
  } catch (const std::bad_alloc&) {
    const auto entry = cache_.find(size);
    if (entry != cache_.end() && entry->second.empty()) cache_.erase(entry);
    system_free(data, size);
  }
}

void HostAllocator::release_until(int64_t cached_bytes) noexcept {
  while (cached_bytes_ > cached_bytes) {
    const auto largest = std::prev(cache_.end());
    system_free(largest->second.back(), largest->first);
    cached_bytes_ -= static_cast<int64_t>(largest->first);
    largest->second.pop_back();
    if (largest->second.empty()) cache_.erase(largest);
  }
}

void HostAllocator::empty_cache() noexcept {
  const std::lock_guard lock(mutex_);
  release_until(0);
}

AllocatorStats HostAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  AllocatorStats stats = stats_;
  stats.bytes_held = stats_.bytes_in_use + cached_bytes_;
  return stats;
}

std::shared_ptr<HostAllocator> host_allocator() {
  static const auto allocator = std::make_shared<HostAllocator>();
  return allocator;
}

}  // namespace gradus
