// Launches a kernel on a context's stream: with much shared memory, in clusters and overlapping the
// kernel before it where wanted.
#pragma once

#include "cuda/check.h"
#include "cuda/context.h"

namespace gradus {

struct LaunchShape {
  dim3 grid;
  int threads = 0;
  size_t shared_bytes = 0;
  int cluster = 1;  // blocks; more than one only with cuda.has_hopper_features()
  // How the kernel wants a multiprocessor's memory split between shared memory and first-level
  // cache. Kernels that overlap want the same: another split needs an idle multiprocessor.
  int carveout = cudaSharedmemCarveoutDefault;
  int rows = 1;  // of `threads` threads each: blockDim.y
};

// Bytes of shared memory that one block may have.
int shared_limit(const Cuda& cuda);

namespace detail {

// Dynamic shared memory that every kernel gets without asking: a block has 48 KB, of which no
// kernel that takes some dynamically and does not ask may declare more than 16 KB itself.
inline constexpr size_t kUnaskedSharedBytes = 32 * 1024;

// Sets a kernel's attributes on the context's device, where they are not set yet: as much dynamic
// shared memory as a block may have, and the split. Several threads may call it.
void prepare_kernel(const Cuda& cuda, const void* kernel, int carveout);

template <class... Params, class... Args>
void launch(Cuda& cuda, const LaunchShape& shape, bool overlaps, void (*kernel)(Params...),
            const Args&... args) {
  if (shape.shared_bytes > kUnaskedSharedBytes || shape.carveout != cudaSharedmemCarveoutDefault)
    prepare_kernel(cuda, reinterpret_cast<const void*>(kernel), shape.carveout);
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (overlaps && cuda.has_hopper_features()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads), static_cast<unsigned>(shape.rows));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = cuda.stream();
  config.attrs = attributes;
  config.numAttrs = count;
  cuda_check(cuda, cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...),
             "cudaLaunchKernelEx");
}

}  // namespace detail

// A kernel that starts when the one before it has ended.
template <class... Params, class... Args>
void launch_kernel(Cuda& cuda, const LaunchShape& shape, void (*kernel)(Params...),
                   const Args&... args) {
  detail::launch(cuda, shape, false, kernel, args...);
}

// A kernel whose blocks may start, with cuda.has_hopper_features(), while the one before it ends,
// which pays where it is short: all of them call wait_for_previous_kernel() before they touch
// memory that a kernel which still runs may write or read.
template <class... Params, class... Args>
void launch_overlapping(Cuda& cuda, const LaunchShape& shape, void (*kernel)(Params...),
                        const Args&... args) {
  detail::launch(cuda, shape, true, kernel, args...);
}

// Lets the blocks of the next kernel start, once all blocks of this one have come here or ended.
__device__ __forceinline__ void start_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Returns when the previous kernel has ended and its writes can be seen. What is loaded after it
// must not come through a pointer that is both const and __restrict__: the compiler takes that for
// memory which nobody writes, and may load it before.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace gradus
