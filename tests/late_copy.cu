#include "tests/late_copy.h"

#include "cuda/launch_kernel.cuh"

namespace gradus::test {
namespace {

// Few enough blocks to be at work all at once and to leave room for the next launch.
constexpr unsigned kBlocks = 64;
constexpr int kThreads = 256;
constexpr int64_t kLate = 4'000'000;           // cycles: more than the host takes for some launches
constexpr size_t kScratch = size_t{64} << 20;  // bytes: more than any launch of the tests asks for

__device__ void copy(uint4* to, const uint4* from, int64_t packs) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < packs; i += step) {
    to[i] = from[i];
  }
}

__global__ void copy_late(uint4* to, const uint4* from, int64_t packs, int64_t cycles,
                          volatile int* stores) {
  start_next_kernel();
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
  if (threadIdx.x == 0) {
    *stores = 1;
    __threadfence_system();
  }
  __syncthreads();
  copy(to, from, packs);
}

__global__ void copy_overlapping(uint4* to, const uint4* from, int64_t packs, bool waits) {
  if (waits) wait_for_previous_kernel();
  copy(to, from, packs);
}

}  // namespace

LateCopy::LateCopy(Cuda& cuda, void* to, const void* from, int64_t bytes, bool late) {
  cuda_check(cudaMallocHost(&stores_, sizeof(int)), "cudaMallocHost");
  *stores_ = 0;
  launch_kernel(cuda, {.grid = kBlocks, .threads = kThreads}, copy_late, static_cast<uint4*>(to),
                static_cast<const uint4*>(from), bytes / 16, late ? kLate : 0, stores_);
}

LateCopy::~LateCopy() {
  cudaDeviceSynchronize();
  cudaFreeHost(stores_);
}

bool LateCopy::has_stored() const { return *static_cast<volatile int*>(stores_) != 0; }

void overlapping_copy(Cuda& cuda, void* to, const void* from, int64_t bytes, bool waits) {
  launch_overlapping(cuda, {.grid = kBlocks, .threads = kThreads}, copy_overlapping,
                     static_cast<uint4*>(to), static_cast<const uint4*>(from), bytes / 16, waits);
}

void spoil_scratch(Cuda& cuda) {
  cuda_check(cudaMemsetAsync(cuda.workspace(kScratch), 0xff, kScratch, cuda.stream()),
             "cudaMemsetAsync");
}

}  // namespace gradus::test
