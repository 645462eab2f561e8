#include "tests/support/guard_allocator.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/launch.h"

namespace gradus {
namespace {

constexpr size_t kBand = 256;
constexpr uint8_t kBandByte = 0xA5;

void copy(Device device, void* to, const void* from, size_t bytes) {
  with_backend(device, [&](auto& backend) { copy_bytes(backend, to, from, bytes); });
}

}  // namespace

void* GuardAllocator::allocate(size_t bytes) {
  char* base = static_cast<char*>(inner_->allocate(bytes + 2 * kBand));
  std::vector<uint8_t> fill(bytes + 2 * kBand, kBandByte);
  std::fill_n(fill.begin() + kBand, bytes, uint8_t{0xFF});
  copy(device_, base, fill.data(), fill.size());
  return base + kBand;
}

void GuardAllocator::deallocate(void* data, size_t bytes) noexcept {
  char* base = static_cast<char*>(data) - kBand;
  std::vector<uint8_t> bands(2 * kBand);
  copy(device_, bands.data(), base, kBand);
  copy(device_, bands.data() + kBand, base + kBand + bytes, kBand);
  for (size_t i = 0; i < bands.size(); ++i) {
    if (bands[i] == kBandByte || !damage_.empty()) continue;
    damage_ = concat("a buffer of ", bytes, " bytes on ", device_, " was written ",
                     i < kBand ? concat(kBand - i, " bytes before its start")
                               : concat(i - kBand, " bytes after its end"));
  }
  inner_->deallocate(base, bytes + 2 * kBand);
}

GuardAllocatorScope::GuardAllocatorScope(Device device) : device_(device) {
  with_backend(device_, [&](auto& backend) {
    before_ = allocator_of(backend);
    guard_ = std::make_shared<GuardAllocator>(device_, before_);
    set_allocator(backend, guard_);
  });
}

GuardAllocatorScope::~GuardAllocatorScope() {
  with_backend(device_, [&](auto& backend) { set_allocator(backend, before_); });
}

}  // namespace gradus
