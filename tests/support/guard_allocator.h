// An allocator that catches writes outside a buffer and reads of memory nobody wrote: guard bands
// on both sides of every buffer, and NaN (all bits set) inside. It sits in front of a backend's
// own.
//
//   GuardAllocatorScope guard(kCpu);
//   ... run kernels ...
//   EXPECT_EQ(guard.damage(), "");
#pragma once

#include <memory>
#include <string>

#include "core/device.h"
#include "core/storage.h"

namespace gradus {

class GuardAllocator final : public Allocator {
 public:
  GuardAllocator(Device device, std::shared_ptr<Allocator> inner)
      : device_(device), inner_(std::move(inner)) {}

  void* allocate(size_t bytes) override;
  void deallocate(void* data, size_t bytes) noexcept override;
  AllocatorStats stats() const override { return inner_->stats(); }

  // What was found on deallocation so far; empty while every guard band was intact.
  const std::string& damage() const { return damage_; }

 private:
  Device device_;
  std::shared_ptr<Allocator> inner_;
  std::string damage_;
};

// Puts a GuardAllocator in front of the calling thread's context on `device` for its lifetime.
class GuardAllocatorScope {
 public:
  explicit GuardAllocatorScope(Device device);
  ~GuardAllocatorScope();
  GuardAllocatorScope(const GuardAllocatorScope&) = delete;
  GuardAllocatorScope& operator=(const GuardAllocatorScope&) = delete;

  const std::string& damage() const { return guard_->damage(); }

 private:
  Device device_;
  std::shared_ptr<Allocator> before_;
  std::shared_ptr<GuardAllocator> guard_;
};

}  // namespace gradus
