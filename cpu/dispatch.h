// The one switch over CPU instruction sets. Each file of cpu/ that holds kernels is compiled once
// per set, with GRADUS_ISA naming it, and ends with one line per argument struct:
//
//   namespace gradus::GRADUS_ISA {
//   void run(Cpu& cpu, const SoftmaxForward& args) { ... }
//   }  // namespace gradus::GRADUS_ISA
//   GRADUS_DISPATCH(SoftmaxForward)
//
// Everything such a file defines stays inside its namespace (or an anonymous one within it), so
// that no code compiled for a stronger set can be linked in for a weaker one; a test checks the
// symbols.
#pragma once

#include "cpu/context.h"

#if defined(GRADUS_ISA_baseline) && defined(__x86_64__)
#define GRADUS_DISPATCH(Args)            \
  namespace gradus {                     \
  namespace avx2 {                       \
  void run(Cpu& cpu, const Args& args);  \
  }                                      \
  namespace avx512 {                     \
  void run(Cpu& cpu, const Args& args);  \
  }                                      \
  void run(Cpu& cpu, const Args& args) { \
    switch (cpu.isa()) {                 \
      case Isa::avx512:                  \
        return avx512::run(cpu, args);   \
      case Isa::avx2:                    \
        return avx2::run(cpu, args);     \
      case Isa::baseline:                \
        return baseline::run(cpu, args); \
    }                                    \
  }                                      \
  }
#elif defined(GRADUS_ISA_baseline)
#define GRADUS_DISPATCH(Args)                                               \
  namespace gradus {                                                        \
  void run(Cpu& cpu, const Args& args) { return baseline::run(cpu, args); } \
  }
#else
#define GRADUS_DISPATCH(Args)
#endif
