// Scratch memory of one kernel or of one of its tasks, from the context's allocator.
#pragma once

#include "cpu/context.h"

namespace gradus::GRADUS_ISA {

template <class A>
class Workspace {
 public:
  Workspace(Cpu& cpu, int64_t count) : cpu_(cpu), bytes_(static_cast<size_t>(count) * sizeof(A)) {
    if (bytes_ != 0) data_ = static_cast<A*>(cpu.allocator()->allocate(bytes_));
  }
  ~Workspace() {
    if (data_ != nullptr) cpu_.allocator()->deallocate(data_, bytes_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  A* data() const { return data_; }

 private:
  Cpu& cpu_;
  size_t bytes_;
  A* data_ = nullptr;
};

}  // namespace gradus::GRADUS_ISA
