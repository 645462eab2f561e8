#include "tests/cuda_device_kernels.h"

#include "cuda/check.h"
#include "cuda/device/reduce.cuh"

namespace gradus::test {
namespace {

__device__ int rank_in_block() { return detail::thread_in_block(); }
__device__ int threads_in_block() { return detail::warps_in_block() * kWarp; }

// NaN unless all threads of the block hold the same bits as the first.
__device__ float agreed(float value) {
  __shared__ float first;
  __syncthreads();
  if (rank_in_block() == 0) first = value;
  __syncthreads();
  const bool all = __syncthreads_and(__float_as_uint(first) == __float_as_uint(value)) != 0;
  return all ? value : nanf("");
}

__global__ void sums(float* y, const float* x, int64_t n) {
  float sum = 0.0f;
  for (int64_t i = rank_in_block(); i < n; i += threads_in_block()) sum += x[blockIdx.x * n + i];
  // Twice in a row: the second call must not disturb the first, nor need a barrier.
  const float total = block_sum(sum);
  const float twice = block_sum(2.0f * sum);
  const float result = agreed(twice == 2.0f * total ? total : nanf(""));
  if (rank_in_block() == 0) y[blockIdx.x] = result;
}

__global__ void maxima(float* y, const float* x, int64_t n) {
  float best = -INFINITY;
  for (int64_t i = rank_in_block(); i < n; i += threads_in_block()) {
    best = MaxOp{}(best, x[blockIdx.x * n + i]);
  }
  const float result = agreed(block_reduce(best, MaxOp{}, -INFINITY));
  if (rank_in_block() == 0) y[blockIdx.x] = result;
}

__global__ void moments(HostMoments* y, const float* x, int64_t n) {
  Moments<float> mine;
  for (int64_t i = rank_in_block(); i < n; i += threads_in_block())
    mine.push(x[blockIdx.x * n + i]);
  const Moments<float> all = gradus::block_moments(mine);
  const float mean = agreed(all.mean), m2 = agreed(all.m2);
  if (rank_in_block() == 0) y[blockIdx.x] = {all.count, mean, m2};
}

template <int Width>
__global__ void warps(double* y, const double* x) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const double sum = warp_sum<Width>(x[i]);
  const double ordered = warp_reduce<Width>(x[i], SumOp{});
  y[i] = sum == ordered ? sum : nan("");
}

__global__ void nothing() {}

dim3 dimensions(BlockShape shape) { return dim3(shape.x, shape.y, shape.z); }

}  // namespace

void block_sums(Cuda& cuda, float* y, const float* x, int64_t n, int blocks, BlockShape shape) {
  sums<<<static_cast<unsigned>(blocks), dimensions(shape), 0, cuda.stream()>>>(y, x, n);
  cuda_check(cuda, cudaGetLastError(), "block_sums");
}

void block_maxima(Cuda& cuda, float* y, const float* x, int64_t n, int blocks, BlockShape shape) {
  maxima<<<static_cast<unsigned>(blocks), dimensions(shape), 0, cuda.stream()>>>(y, x, n);
  cuda_check(cuda, cudaGetLastError(), "block_maxima");
}

void block_moments(Cuda& cuda, HostMoments* y, const float* x, int64_t n, int blocks,
                   BlockShape shape) {
  moments<<<static_cast<unsigned>(blocks), dimensions(shape), 0, cuda.stream()>>>(y, x, n);
  cuda_check(cuda, cudaGetLastError(), "block_moments");
}

void warp_sums(Cuda& cuda, double* y, const double* x, int64_t n, int width) {
  const auto blocks = static_cast<unsigned>(n / kWarp);
  switch (width) {
    case 1:
      warps<1><<<blocks, kWarp, 0, cuda.stream()>>>(y, x);
      break;
    case 4:
      warps<4><<<blocks, kWarp, 0, cuda.stream()>>>(y, x);
      break;
    case 16:
      warps<16><<<blocks, kWarp, 0, cuda.stream()>>>(y, x);
      break;
    case 32:
      warps<32><<<blocks, kWarp, 0, cuda.stream()>>>(y, x);
      break;
    default:
      fail(ErrorCode::internal, "warp_sums", "no kernel for width ", width);
  }
  cuda_check(cuda, cudaGetLastError(), "warp_sums");
}

void launch_too_many_threads(Cuda& cuda) { nothing<<<1, 2048, 0, cuda.stream()>>>(); }

}  // namespace gradus::test
