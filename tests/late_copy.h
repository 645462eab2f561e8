// A copy that lets the next launch start long before it stores, for tests of launches that overlap.
#pragma once

#include "cuda/context.h"

namespace gradus::test {

// Copies `bytes`, a multiple of 16: late, about 2 ms after the next launch was let start, where
// kernels can do that; or at once.
class LateCopy {
 public:
  LateCopy(Cuda&, void* to, const void* from, int64_t bytes, bool late = true);
  ~LateCopy();  // waits for it
  LateCopy(const LateCopy&) = delete;
  LateCopy& operator=(const LateCopy&) = delete;

  // Whether it has begun to store. The kernel says so itself: an event recorded behind it could
  // keep the next launch from overlapping it.
  bool has_stored() const;

 private:
  int* stores_ = nullptr;  // host memory that the device writes
};

// A copy that may start before the launch before it has ended; it waits for that, or reads what is
// there.
void overlapping_copy(Cuda&, void* to, const void* from, int64_t bytes, bool waits);

// Fills the scratch memory of the launches that follow with NaN.
void spoil_scratch(Cuda&);

}  // namespace gradus::test
