// The one switch over CPU instruction sets. Each file of cpu/ that holds kernels is compiled once
// per set that is built (the CMake variable GRADUS_ISAS), with GRADUS_ISA naming it, and ends with
// one line per argument struct:
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

// What is written once per set that is built, the strongest first.
#ifdef GRADUS_HAS_ISA_avx512
#define GRADUS_IF_AVX512(text) text
#else
#define GRADUS_IF_AVX512(text)
#endif
#ifdef GRADUS_HAS_ISA_avx2
#define GRADUS_IF_AVX2(text) text
#else
#define GRADUS_IF_AVX2(text)
#endif
#ifdef GRADUS_HAS_ISA_baseline
#define GRADUS_IF_BASELINE(text) text
#else
#define GRADUS_IF_BASELINE(text)
#endif

#define GRADUS_DECLARE_RUN(set, Args)   \
  namespace set {                       \
  void run(Cpu& cpu, const Args& args); \
  }
#define GRADUS_CHOOSE(set) \
  if (cpu.isa() == Isa::set) return set::run(cpu, args);

#ifdef GRADUS_DISPATCHES  // in the objects of one set
#define GRADUS_DISPATCH(Args)                        \
  namespace gradus {                                 \
  GRADUS_IF_AVX512(GRADUS_DECLARE_RUN(avx512, Args)) \
  GRADUS_IF_AVX2(GRADUS_DECLARE_RUN(avx2, Args))     \
  void run(Cpu& cpu, const Args& args) {             \
    GRADUS_IF_AVX512(GRADUS_CHOOSE(avx512))          \
    GRADUS_IF_AVX2(GRADUS_CHOOSE(avx2))              \
    GRADUS_IF_BASELINE(GRADUS_CHOOSE(baseline))      \
  }                                                  \
  }
#else
#define GRADUS_DISPATCH(Args)
#endif
