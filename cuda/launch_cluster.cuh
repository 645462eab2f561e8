// Launches a kernel in clusters where wanted, and so that it overlaps the one before it, whatever
// that is.
#pragma once

#include "cuda/launch_kernel.cuh"

namespace gradus {

struct ClusterShape {
  dim3 grid;
  int threads = 0;
  size_t shared_bytes = 0;
  int cluster = 1;       // blocks; more than one only on devices that have clusters (from 9.0)
  bool overlaps = true;  // pays where the kernel is short
  // How the kernel wants a multiprocessor's memory split between shared memory and first-level
  // cache. Kernels that overlap want the same: another split needs an idle multiprocessor.
  int carveout = cudaSharedmemCarveoutDefault;
};

// Bytes of shared memory that one block may have.
int shared_limit(const Cuda& cuda);

namespace detail {
// Sets a kernel's attributes on the context's device, where they are not set yet: as much dynamic
// shared memory as a block may have, and the split. Several threads may call it.
void prepare_kernel(const Cuda& cuda, const void* kernel, int carveout);
}  // namespace detail

// On devices that can (from 9.0), blocks may start while the kernel before ends: all of them call
// wait_for_previous_kernel() before they touch memory that another kernel writes or reads.
template <class... Params, class... Args>
void launch_overlapping(Cuda& cuda, const ClusterShape& shape, void (*kernel)(Params...),
                        const Args&... args) {
  if (shape.shared_bytes > kUnaskedSharedBytes || shape.carveout != cudaSharedmemCarveoutDefault)
    detail::prepare_kernel(cuda, reinterpret_cast<const void*>(kernel), shape.carveout);
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.overlaps && cuda.info().compute_major >= 9) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = cuda.stream();
  config.attrs = attributes;
  config.numAttrs = count;
  cuda_check(cuda, cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...),
             "cudaLaunchKernelEx");
}

}  // namespace gradus
