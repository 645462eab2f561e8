#include "core/storage.h"

#include "core/launch.h"

namespace gradus {

std::shared_ptr<Storage> Storage::make(Device device, size_t bytes) {
  return make(device, bytes,
              with_backend(device, [](auto& backend) { return allocator_of(backend); }));
}

std::shared_ptr<Storage> Storage::make(Device device, size_t bytes,
                                       std::shared_ptr<Allocator> allocator) {
  void* data = bytes == 0 ? nullptr : allocator->allocate(bytes);
  return std::shared_ptr<Storage>(new Storage(device, bytes, std::move(allocator), data));
}

std::shared_ptr<Storage> Storage::wrap(Device device, void* data, size_t bytes) {
  return std::shared_ptr<Storage>(new Storage(device, bytes, nullptr, data));
}

Storage::~Storage() {
  if (allocator_ != nullptr && data_ != nullptr) allocator_->deallocate(data_, bytes_);
}

}  // namespace gradus
