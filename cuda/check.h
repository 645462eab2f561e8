// Turning CUDA and cuBLASLt status codes into gradus::Error.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "core/error.h"

namespace gradus {

class Cuda;

inline ErrorCode error_code_of(cudaError_t status) {
  return status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::cuda;
}

inline void cuda_check(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess) [[unlikely]] {
    (void)cudaGetLastError();  // reported here, so that the next launch is not blamed for it
    fail(error_code_of(status), what, cudaGetErrorName(status), ": ", cudaGetErrorString(status));
  }
}

// The same, and a sticky error is remembered in the context, which then refuses further launches.
void cuda_check(Cuda& cuda, cudaError_t status, std::string_view what);

// Whether the device is lost to this process after `status`: every later call fails as well.
bool is_sticky(cudaError_t status);

inline void cublas_check(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]] {
    const bool no_memory = status == CUBLAS_STATUS_ALLOC_FAILED;
    fail(no_memory ? ErrorCode::out_of_memory : ErrorCode::cuda, what,
         cublasLtGetStatusName(status), ": ", cublasLtGetStatusString(status));
  }
}

// Whether a graph is being captured from `stream`.
inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

// While alive, this thread may call what a capture otherwise forbids, such as cudaMalloc.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace gradus
