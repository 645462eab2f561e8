// Launches a kernel on a context's stream, asking for more than 48 KB of shared memory where
// needed.
#pragma once

#include "cuda/check.h"
#include "cuda/context.h"

namespace gradus {

struct LaunchShape {
  dim3 grid;
  int threads = 0;
  size_t shared_bytes = 0;
};

template <class... Params, class... Args>
void launch_kernel(Cuda& cuda, const LaunchShape& shape, void (*kernel)(Params...),
                   const Args&... args) {
  if (shape.shared_bytes > 48 * 1024) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.shared_bytes)),
               "cudaFuncSetAttribute");
  }
  kernel<<<shape.grid, shape.threads, shape.shared_bytes, cuda.stream()>>>(args...);
}

}  // namespace gradus
