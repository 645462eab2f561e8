#include "cuda/launch_kernel.cuh"

#include <map>
#include <mutex>

namespace gradus::detail {
namespace {

__global__ void kernel_of_all() {}

}  // namespace

// All kernels are compiled for the same architectures, so one tells of all.
int compiled_architecture() {
  const RelaxedCapture relaxed;  // it loads the kernel
  cudaFuncAttributes attributes{};
  const cudaError_t status =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel_of_all));
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    (void)cudaGetLastError();
    return 0;
  }
  cuda_check(status, "cudaFuncGetAttributes");
  return attributes.ptxVersion;
}

void prepare_kernel(const Cuda& cuda, const void* kernel, int carveout) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> carveouts;  // of a kernel on a device
  const std::lock_guard lock(mutex);
  const auto known = carveouts.find({kernel, cuda.index()});
  if (known != carveouts.end() && known->second == carveout) return;
  const RelaxedCapture relaxed;  // it may load the kernel
  if (known == carveouts.end()) {
    cudaFuncAttributes attributes{};
    cuda_check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    const int most = shared_limit(cuda) - static_cast<int>(attributes.sharedSizeBytes);
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
               "cudaFuncSetAttribute");
  }
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, carveout),
             "cudaFuncSetAttribute");
  carveouts[{kernel, cuda.index()}] = carveout;
}

}  // namespace gradus::detail

namespace gradus {

int shared_limit(const Cuda& cuda) {
  int bytes = 0;
  cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, cuda.index()),
             "cudaDeviceGetAttribute");
  return bytes;
}

}  // namespace gradus
