// GRADUS_HD marks a function that both the host and the CUDA compiler may compile.
#pragma once

#ifdef __CUDACC__
#define GRADUS_HD __host__ __device__ __forceinline__
#else
#define GRADUS_HD inline __attribute__((always_inline))
#endif
