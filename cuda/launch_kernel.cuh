// Launches a kernel on a context's stream, asking for much shared memory where needed.
#pragma once

#include "cuda/check.h"
#include "cuda/context.h"

namespace gradus {

struct LaunchShape {
  dim3 grid;
  int threads = 0;
  size_t shared_bytes = 0;
};

// Dynamic shared memory that a kernel gets without asking: 48 KB, less what it declares itself.
inline constexpr size_t kUnaskedSharedBytes = 32 * 1024;

template <class... Params, class... Args>
void launch_kernel(Cuda& cuda, const LaunchShape& shape, void (*kernel)(Params...),
                   const Args&... args) {
  if (shape.shared_bytes > kUnaskedSharedBytes) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.shared_bytes)),
               "cudaFuncSetAttribute");
  }
  kernel<<<shape.grid, shape.threads, shape.shared_bytes, cuda.stream()>>>(args...);
}

// The same as launch_kernel for a kernel that follows another one of the same op: on devices that
// can (from 9.0), its blocks may start while that one ends. It must call wait_for_previous_kernel()
// before it reads what the other one writes and before it writes anything.
template <class... Params, class... Args>
void launch_next_kernel(Cuda& cuda, const LaunchShape& shape, void (*kernel)(Params...),
                        const Args&... args) {
  if (cuda.info().compute_major < 9) return launch_kernel(cuda, shape, kernel, args...);
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = cuda.stream();
  config.attrs = &overlap;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...),
             "cudaLaunchKernelEx");
}

// Lets the blocks of the next kernel start, once all blocks of this one have come here or ended.
__device__ __forceinline__ void start_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Returns when the previous kernel has ended and its writes can be seen.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace gradus
