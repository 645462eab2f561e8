// Uninitialised scratch memory of one kernel, aligned to 64 bytes.
#pragma once

#include <cstddef>
#include <new>

#include "cpu/context.h"

namespace gradus::GRADUS_ISA {

template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : data_(static_cast<T*>(::operator new(static_cast<size_t>(count) * sizeof(T), kAlign))) {}
  ~Scratch() { ::operator delete(data_, kAlign); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T* data() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  static constexpr std::align_val_t kAlign{64};
  T* data_;
};

}  // namespace gradus::GRADUS_ISA
