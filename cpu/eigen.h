// The only include of Eigen. Each instruction set gets its own copy of the library, under its own
// namespace name, so that the linker cannot mix their inline functions.
#pragma once

#define GRADUS_EIGEN_JOIN(a, b) a##b
#define GRADUS_EIGEN_NAME(isa) GRADUS_EIGEN_JOIN(Eigen_, isa)
#define Eigen GRADUS_EIGEN_NAME(GRADUS_ISA)

// g++ 12's header of AVX-512 makes undefined vectors from themselves, and warns of it without -O2.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <Eigen/Core>
#pragma GCC diagnostic pop
