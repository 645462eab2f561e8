#include "cpu/host_allocator.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/expect_error.h"

namespace gradus {
namespace {

constexpr size_t kMegabyte = size_t(1) << 20;

TEST(HostAllocator, BlocksAreAlignedAndWritable) {
  HostAllocator allocator;
  for (const size_t bytes : {size_t(1), size_t(1000), kMegabyte / 8, 4 * kMegabyte - 1,
                             4 * kMegabyte, 5 * kMegabyte, 8 * kMegabyte}) {
    void* data = allocator.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 256, 0u);
    std::memset(data, 1, bytes);
    allocator.deallocate(data, bytes);
  }
  EXPECT_EQ(allocator.stats().bytes_in_use, 0);
  EXPECT_EQ(allocator.stats().blocks_in_use, 0);
}

TEST(HostAllocator, SmallBlocksAreFreedAtOnce) {
  constexpr size_t kBytes = 100000;
  HostAllocator allocator;
  allocator.deallocate(allocator.allocate(kBytes), kBytes);
  EXPECT_EQ(allocator.stats().bytes_held, 0);
}

TEST(HostAllocator, RefusesWhatTheSystemDoesNotHave) {
  HostAllocator allocator;
  void* kept = allocator.allocate(16 * kMegabyte);
  EXPECT_ERROR(allocator.allocate(size_t(1) << 50), ErrorCode::out_of_memory,
               "asked for 1125899906842624 bytes on cpu", "holding 16777216");
  EXPECT_EQ(allocator.stats().bytes_in_use, 16 << 20);
  allocator.deallocate(kept, 16 * kMegabyte);
}

#ifndef __SANITIZE_ADDRESS__  // under which nothing is kept

TEST(HostAllocator, AFreedBlockServesTheNextRequestOfItsSize) {
  for (const size_t bytes : {kMegabyte / 2, 10 * kMegabyte}) {
    HostAllocator allocator;
    void* first = allocator.allocate(bytes);
    allocator.deallocate(first, bytes);
    EXPECT_EQ(allocator.stats().bytes_held, static_cast<int64_t>(bytes));
    EXPECT_EQ(allocator.stats().bytes_in_use, 0);
    void* second = allocator.allocate(bytes - 5);
    EXPECT_EQ(second, first);
    EXPECT_EQ(allocator.stats().system_allocations, 1);
    void* third = allocator.allocate(bytes);
    EXPECT_EQ(allocator.stats().system_allocations, 2);
    allocator.deallocate(third, bytes);
    allocator.deallocate(second, bytes - 5);
  }
}

TEST(HostAllocator, HoldsNoMoreThanWasInUseAtOnce) {
  HostAllocator allocator;
  for (size_t megabytes = 4; megabytes <= 64; megabytes += 4) {
    void* data = allocator.allocate(megabytes * kMegabyte);
    EXPECT_LE(allocator.stats().bytes_held, static_cast<int64_t>(megabytes * kMegabyte));
    allocator.deallocate(data, megabytes * kMegabyte);
  }
  EXPECT_EQ(allocator.stats().peak_bytes_in_use, 64 << 20);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().bytes_held, 0);
}

#endif

}  // namespace
}  // namespace gradus
