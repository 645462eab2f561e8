#include "cuda/context.h"

#include <nvtx3/nvToolsExt.h>
#include <cstring>
#include <utility>

#include "core/build_config.h"
#include "core/fault.h"
#include "cuda/allocator.h"
#include "cuda/check.h"

namespace gradus {
namespace {

CudaDeviceInfo query_device(int index) {
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, index), "cuda");
  return {.name = properties.name,
          .total_bytes = static_cast<int64_t>(properties.totalGlobalMem),
          .compute_major = properties.major,
          .compute_minor = properties.minor,
          .multiprocessors = properties.multiProcessorCount,
          .l2_bytes = properties.l2CacheSize};
}

std::vector<CudaDeviceInfo> query_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return {};
  }
  std::vector<CudaDeviceInfo> devices;
  for (int i = 0; i < count; ++i) devices.push_back(query_device(i));
  return devices;
}

const std::vector<CudaDeviceInfo>& devices() {
  static const std::vector<CudaDeviceInfo> list = query_devices();
  return list;
}

const CudaDeviceInfo& device_info(int index) {
  const int count = static_cast<int>(devices().size());
  if (count == 0) fail(ErrorCode::cuda, "cuda", "no CUDA device was found");
  if (index < 0 || index >= count) {
    fail(ErrorCode::cuda, "cuda", "expected a device below ", count, ", got cuda:", index);
  }
  return devices()[static_cast<size_t>(index)];
}

// The contexts of a thread. The plain pointer to them can still be read while the thread ends.
struct ThreadContexts {
  std::vector<std::unique_ptr<Cuda>> list;
  ThreadContexts();
  ~ThreadContexts();
};
thread_local ThreadContexts* t_contexts = nullptr;
thread_local bool t_ended = false;
thread_local bool t_range_open = false;

ThreadContexts::ThreadContexts() : list(devices().size()) { t_contexts = this; }
ThreadContexts::~ThreadContexts() {
  // Out of the list first: what a dying context frees must not find it there.
  for (std::unique_ptr<Cuda>& context : list) std::exchange(context, nullptr).reset();
  t_contexts = nullptr;
  t_ended = true;
}

void close_range() {
  if (std::exchange(t_range_open, false)) nvtxRangePop();
}

void require_working(const Cuda& cuda, std::string_view what) {
  if (!cuda.failure().empty()) [[unlikely]] {
    fail(ErrorCode::cuda, what, "refused after an earlier failure: ", cuda.failure());
  }
}

// After a wait for the device: throws what a kernel noted, once.
void raise_fault(const Cuda& cuda) {
  if (cuda.fault()->kind != Fault::Kind::none) [[unlikely]] {
    raise(std::exchange(*cuda.fault(), Fault{}));
  }
}

std::shared_ptr<Fault> make_fault() {
  const RelaxedCapture relaxed;
  void* memory = nullptr;
  cuda_check(cudaHostAlloc(&memory, sizeof(Fault), cudaHostAllocMapped), "cuda");
  return {new (memory) Fault, [](Fault* fault) { cudaFreeHost(fault); }};
}

void require_no_capture(const Cuda& cuda, std::string_view what) {
  if (is_capturing(cuda.stream())) {
    fail(ErrorCode::unsupported, what,
         "a step that is being captured must not wait for the device or copy to or from the host");
  }
}

// Lets `cuda` wait for this thread's launches on the device that owns `data`, if it is another.
void wait_for_owner(Cuda& cuda, const void* data) {
  cudaPointerAttributes attributes;
  cuda_check(cudaPointerGetAttributes(&attributes, data), "copy");
  if (attributes.type != cudaMemoryTypeDevice || attributes.device == cuda.index()) return;
  CUstream_st* stream = detail::thread_stream(attributes.device);
  if (stream != nullptr) cuda_check(cuda, cudaStreamSynchronize(stream), "copy");
}

}  // namespace

std::vector<CudaDeviceInfo> cuda_devices() { return devices(); }

CudaVersions cuda_versions() {
  CudaVersions versions;
  cuda_check(cudaRuntimeGetVersion(&versions.runtime), "cuda");
  cuda_check(cudaDriverGetVersion(&versions.driver), "cuda");
  versions.cublas_lt = static_cast<int64_t>(cublasLtGetVersion());
  return versions;
}

CUstream_st* detail::thread_stream(int device) {
  if (t_contexts == nullptr) return nullptr;
  const auto& context = t_contexts->list[static_cast<size_t>(device)];
  return context == nullptr ? nullptr : context->stream();
}

Cuda& cuda(int index) {
  if (t_ended) fail(ErrorCode::cuda, "cuda", "this thread has already ended its contexts");
  (void)device_info(index);  // throws unless there is such a device
  thread_local ThreadContexts contexts;
  std::unique_ptr<Cuda>& context = contexts.list[static_cast<size_t>(index)];
  if (context == nullptr) context.reset(new Cuda(index));
  return *context;
}

Cuda::Cuda(int index) : index_(index), info_(device_info(index)) {
  cuda_check(cudaSetDevice(index), "cuda");
  const int architecture = detail::compiled_architecture();
  if (architecture == 0) {
    fail(ErrorCode::cuda, "cuda", info_.name, " has compute capability ", info_.compute_major, ".",
         info_.compute_minor, ", and gradus was built for ", GRADUS_CUDA_ARCHITECTURES);
  }
  has_hopper_features_ = architecture >= 90;
  has_warpgroup_products_ = info_.compute_major == 9 && detail::is_compiled_for_90a();
  fault_ = make_fault();
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cuda");
  caching_allocator_ = std::make_shared<CudaAllocator>(index, stream_);
  allocator_ = caching_allocator_;
}

Cuda::~Cuda() {
  cudaStreamSynchronize(stream_);
  workspace_.reset();
  allocator_.reset();
  caching_allocator_->close();
  if (blas_ != nullptr) cublasLtDestroy(blas_);
  cudaStreamDestroy(stream_);
}

cublasLtContext* Cuda::blas() {
  if (blas_ == nullptr) {
    cuda_check(cudaSetDevice(index_), "cublas");
    const RelaxedCapture relaxed;
    cublas_check(cublasLtCreate(&blas_), "cublas");
  }
  return blas_;
}

void* Cuda::workspace(size_t bytes) {
  if (workspace_ == nullptr || workspace_->bytes() < bytes) {
    workspace_.reset();  // first, so that its block can serve again; stream order makes that safe
    workspace_ = Storage::make({DeviceType::cuda, index_}, bytes, allocator_);
  }
  return workspace_->data();
}

std::shared_ptr<Storage> Cuda::exchange_workspace(std::shared_ptr<Storage> workspace) {
  return std::exchange(workspace_, std::move(workspace));
}

bool is_sticky(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

void cuda_check(Cuda& cuda, cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) [[likely]]
    return;
  (void)cudaGetLastError();
  const std::string_view when = is_sticky(status) ? " (in this launch or an earlier one)" : "";
  const std::string text =
      concat(what, ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status), when);
  if (is_sticky(status) && cuda.failure().empty()) cuda.set_failure(text);
  throw Error(error_code_of(status), text);
}

Device device_of(const Cuda& cuda) { return {DeviceType::cuda, cuda.index()}; }

std::shared_ptr<Allocator> allocator_of(Cuda& cuda) {
  require_working(cuda, "allocate");
  return cuda.allocator();
}

void set_allocator(Cuda& cuda, std::shared_ptr<Allocator> allocator) {
  cuda.set_allocator(std::move(allocator));
}

void synchronize(Cuda& cuda) {
  require_working(cuda, "synchronize");
  require_no_capture(cuda, "synchronize");
  cuda_check(cuda, cudaStreamSynchronize(cuda.stream()), "synchronize");
  raise_fault(cuda);
}

void begin_launch(Cuda& cuda, std::string_view op) {
  require_working(cuda, op);
  cuda_check(cuda, cudaSetDevice(cuda.index()), op);
  (void)cudaGetLastError();  // left by somebody else: this launch is not to be blamed
  char name[64];             // the profiler's C interface wants a terminated string
  name[op.copy(name, sizeof name - 1)] = '\0';
  close_range();  // of a launch that threw
  nvtxRangePushA(name);
  t_range_open = true;
}

void end_launch(Cuda& cuda, std::string_view op) {
  close_range();
  cuda_check(cuda, cudaPeekAtLastError(), op);
}

void copy_bytes(Cuda& cuda, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  require_working(cuda, "copy");
  require_no_capture(cuda, "copy");
  cuda_check(cuda, cudaSetDevice(cuda.index()), "copy");
  if (devices().size() > 1) {
    wait_for_owner(cuda, from);
    wait_for_owner(cuda, to);
  }
  cuda_check(cuda, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda.stream()), "copy");
  cuda_check(cuda, cudaStreamSynchronize(cuda.stream()), "copy");
  raise_fault(cuda);
}

}  // namespace gradus
