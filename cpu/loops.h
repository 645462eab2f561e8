// Loading elements in the type that arithmetic is done in, and the mark that lets a loop over them
// be vectorised.
#pragma once

#include "core/dtype.h"

// Before a loop whose iterations are independent, though the compiler cannot see that its pointers
// do not overlap (or are equal, for a result written over an operand).
#ifdef __clang__
#define GRADUS_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define GRADUS_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace gradus::GRADUS_ISA {

// The value of a stored element, in acc_t.
template <class T>
inline acc_t<T> load(T value) {
  return static_cast<acc_t<T>>(value);
}

}  // namespace gradus::GRADUS_ISA
