// A defect of its data that a CUDA kernel found. A kernel cannot throw, and a check on the host
// would have to wait for the device in every step. So the kernel makes its result NaN, notes the
// defect in its context's Fault, unless one is there already, and goes on; the next call that waits
// for the device (synchronize(), item(), to_vector(), any copy to or from the host) throws what the
// CPU throws at once. The context stays usable.
#pragma once

#include <cstdint>

namespace gradus {

struct Fault {
  enum class Kind : int64_t { none, label, nll_label };  // of cross_entropy, of nll_loss
  Kind kind = Kind::none;
  int64_t value = 0;  // the label
  int64_t index = 0;  // its place among the labels
  int64_t limit = 0;  // the number of classes
};

// Throws the error for `fault`, if there is one.
void raise(const Fault& fault);

}  // namespace gradus
