// Turning CUDA and cuBLASLt status codes into gradus::Error.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "core/error.h"

namespace gradus {

inline void cuda_check(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess) [[unlikely]] {
    fail(ErrorCode::cuda, what, cudaGetErrorName(status), ": ", cudaGetErrorString(status));
  }
}

inline void cublas_check(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]] {
    fail(ErrorCode::cuda, what, cublasLtGetStatusName(status), ": ",
         cublasLtGetStatusString(status));
  }
}

}  // namespace gradus
