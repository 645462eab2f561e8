// Scratch memory of one kernel or of one of its tasks, from the context's allocator.
#pragma once

#include "cpu/context.h"

namespace gradus::GRADUS_ISA {

template <class A>
class Workspace {
 public:
  // Room for as many elements as the product of the extents, none of which is negative.
  template <class... Extents>
  explicit Workspace(Cpu& cpu, Extents... extents) : cpu_(cpu), bytes_(bytes_of(extents...)) {
    if (bytes_ != 0) data_ = static_cast<A*>(cpu.allocator()->allocate(bytes_));
  }
  ~Workspace() {
    if (data_ != nullptr) cpu_.allocator()->deallocate(data_, bytes_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  A* data() const { return data_; }

 private:
  // Where they overflow, more than any allocator has.
  template <class... Extents>
  static size_t bytes_of(Extents... extents) {
    size_t bytes = sizeof(A);
    bool overflow = false;
    ((overflow |= __builtin_mul_overflow(bytes, static_cast<size_t>(extents), &bytes)), ...);
    return overflow ? size_t(-1) : bytes;
  }

  Cpu& cpu_;
  size_t bytes_;
  A* data_ = nullptr;
};

}  // namespace gradus::GRADUS_ISA
