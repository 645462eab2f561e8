// The CUDA backend's context: one device, its streams, allocator and library handles. Host-only: no
// CUDA header is included, so that any file may include this one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"

struct CUstream_st;
struct cublasLtContext;

namespace gradus {

struct CudaDeviceInfo {
  std::string name;
  int64_t total_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int64_t l2_bytes = 0;
};

// The GPUs that the driver shows; empty without a GPU or a driver.
std::vector<CudaDeviceInfo> cuda_devices();

// Versions of the libraries in use, as they count themselves: 13000 is CUDA 13.0, 130002 cuBLASLt
// 13.0.2. The driver's is 0 without a driver.
struct CudaVersions {
  int runtime = 0;
  int driver = 0;
  int64_t cublas_lt = 0;
};
CudaVersions cuda_versions();

class CudaAllocator;  // cuda/allocator.h
struct Fault;         // core/fault.h

// Made by cuda(index) only, one per thread and device, and ended with the thread.
class Cuda {
 public:
  ~Cuda();  // waits for the streams
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  int index() const { return index_; }
  const CudaDeviceInfo& info() const { return info_; }
  // Whether kernels can use what came with compute capability 9.0: clusters, launches that overlap,
  // bulk copies. The device has it, and what runs there was compiled for it: what was compiled for
  // an older one and translated by the driver does without.
  bool has_hopper_features() const { return has_hopper_features_; }
  // Likewise what 9.0 alone has and code for 90a uses: warpgroup-wide products.
  bool has_warpgroup_products() const { return has_warpgroup_products_; }
  CUstream_st* stream() const { return stream_; }  // all kernels and copies
  cublasLtContext* blas();                         // created on first use

  // Scratch memory for the launch being made; valid until the next call, stream-ordered.
  void* workspace(size_t bytes);
  // Puts another workspace (or none) in place; a capture must not share one with eager launches.
  std::shared_ptr<Storage> exchange_workspace(std::shared_ptr<Storage> workspace);

  const std::shared_ptr<Allocator>& allocator() const { return allocator_; }
  void set_allocator(std::shared_ptr<Allocator> allocator) {
    workspace_.reset();  // the next one is the new allocator's
    allocator_ = std::move(allocator);
  }
  // The caching allocator beneath any that a test has put in front of it.
  CudaAllocator& caching_allocator() const { return *caching_allocator_; }

  // Where kernels note a defect of their data; the next wait for the device throws it.
  Fault* fault() const { return fault_.get(); }

  // The first sticky error; further launches are refused with its text. Empty while all is well.
  const std::string& failure() const { return failure_; }
  void set_failure(std::string text) { failure_ = std::move(text); }

 private:
  friend Cuda& cuda(int index);
  explicit Cuda(int index);  // throws `cuda` when the device does not exist

  int index_;
  CudaDeviceInfo info_;
  bool has_hopper_features_ = false, has_warpgroup_products_ = false;
  CUstream_st* stream_ = nullptr;
  cublasLtContext* blas_ = nullptr;
  std::shared_ptr<CudaAllocator> caching_allocator_;
  std::shared_ptr<Allocator> allocator_;
  std::shared_ptr<Storage> workspace_;
  std::shared_ptr<Fault> fault_;  // host memory that the device writes through
  std::string failure_;
};

namespace detail {

// What the kernels that run on the current device were compiled for: 90 is compute capability 9.0.
// 0: none run there.
int compiled_architecture();
bool is_compiled_for_90a();

}  // namespace detail

}  // namespace gradus
