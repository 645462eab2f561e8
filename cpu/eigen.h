// The only include of Eigen. Each instruction set gets its own copy of the library, under its own
// namespace name, so that the linker cannot mix their inline functions.
#pragma once

#define GRADUS_EIGEN_JOIN(a, b) a##b
#define GRADUS_EIGEN_NAME(isa) GRADUS_EIGEN_JOIN(Eigen_, isa)
#define Eigen GRADUS_EIGEN_NAME(GRADUS_ISA)

#include <Eigen/Core>
