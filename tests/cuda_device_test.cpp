// Reductions of cuda/device/reduce.cuh.
#include <cmath>
#include <limits>
#include <vector>

#include "core/tensor.h"
#include "tests/cuda_device_kernels.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

using CudaDeviceTest = test::GpuTest;

constexpr TensorOptions kOnGpu{.device = kCuda};

std::vector<test::BlockShape> block_shapes() {
  std::vector<test::BlockShape> shapes;
  for (unsigned threads = 32; threads <= 1024; threads += 32) shapes.push_back({threads, 1, 1});
  shapes.push_back({8, 8, 1});
  shapes.push_back({4, 8, 3});
  shapes.push_back({32, 8, 4});
  return shapes;
}

// Rows of wavy values around `centre`.
std::vector<float> rows(int64_t count, float centre) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        centre + std::sin(0.7f * static_cast<float>(i)) + 0.01f * static_cast<float>(i % 13);
  }
  return values;
}

TEST_F(CudaDeviceTest, BlockSumOfAnyBlock) {
  constexpr int64_t blocks = 3, n = 2999;
  const std::vector<float> values = rows(blocks * n, 0.25f);
  const Tensor x = Tensor::from_vector(values, {blocks, n}, kOnGpu);
  for (const test::BlockShape shape : block_shapes()) {
    std::vector<float> results[2];
    for (std::vector<float>& result : results) {
      const Tensor y = Tensor::full({blocks}, NAN, kOnGpu);
      test::block_sums(cuda(), y.raw().as<float>(), x.raw().as<float>(), n, blocks, shape);
      result = y.to_vector<float>();
    }
    EXPECT_EQ(results[0], results[1]);  // to the bit
    for (int64_t b = 0; b < blocks; ++b) {
      double sum = 0.0;
      for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(values[size_t(b * n + i)]);
      EXPECT_NEAR(results[0][size_t(b)], sum, 1e-2) << shape.x << 'x' << shape.y << 'x' << shape.z;
    }
  }
}

TEST_F(CudaDeviceTest, BlockMaxOfAnyBlockAndNan) {
  constexpr int64_t blocks = 4, n = 1500;
  std::vector<float> values = rows(blocks * n, -5.0f);
  values[777] = 9.0f;
  values[size_t(n) + 1499] = INFINITY;
  values[size_t(2 * n) + 3] = NAN;
  values[size_t(2 * n) + 4] = INFINITY;
  for (int64_t i = 0; i < n; ++i) values[size_t(3 * n + i)] = -INFINITY;
  const Tensor x = Tensor::from_vector(values, {blocks, n}, kOnGpu);
  for (const test::BlockShape shape : block_shapes()) {
    const Tensor y = Tensor::zeros({blocks}, kOnGpu);
    test::block_maxima(cuda(), y.raw().as<float>(), x.raw().as<float>(), n, blocks, shape);
    const std::vector<float> result = y.to_vector<float>();
    EXPECT_EQ(result[0], 9.0f);
    EXPECT_EQ(result[1], INFINITY);
    EXPECT_TRUE(std::isnan(result[2]));
    EXPECT_EQ(result[3], -INFINITY);
  }
}

// A large offset, where E[x^2] - E[x]^2 would keep no digit; and fewer elements than threads.
TEST_F(CudaDeviceTest, BlockMomentsOfAnyBlock) {
  for (const int64_t n : {1, 7, 100, 4099}) {
    const std::vector<float> values = rows(2 * n, 1e4f);
    const Tensor x = Tensor::from_vector(values, {2, n}, kOnGpu);
    for (const test::BlockShape shape : block_shapes()) {
      const Tensor y = Tensor::full({2, 3}, NAN, kOnGpu);
      test::block_moments(cuda(), static_cast<test::HostMoments*>(y.raw().data),
                          x.raw().as<float>(), n, 2, shape);
      const std::vector<float> got = y.to_vector<float>();
      for (int64_t b = 0; b < 2; ++b) {
        double mean = 0.0, m2 = 0.0;
        for (int64_t i = 0; i < n; ++i) mean += static_cast<double>(values[size_t(b * n + i)]);
        mean /= static_cast<double>(n);
        for (int64_t i = 0; i < n; ++i) {
          m2 += std::pow(static_cast<double>(values[size_t(b * n + i)]) - mean, 2.0);
        }
        EXPECT_EQ(got[size_t(3 * b)], static_cast<float>(n));
        EXPECT_NEAR(got[size_t(3 * b + 1)], mean, 4e-3);
        EXPECT_NEAR(got[size_t(3 * b + 2)], m2, 2e-3 * m2 + 1e-5) << n << " elements";
      }
    }
  }
}

TEST_F(CudaDeviceTest, WarpSumOfGroupsOfLanes) {
  constexpr int64_t n = 96;
  std::vector<double> values(n);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * i);
  const Tensor x = Tensor::from_vector(values, {n}, {.dtype = DType::f64, .device = kCuda});
  for (const int width : {1, 4, 16, 32}) {
    const Tensor y = Tensor::full({n}, NAN, {.dtype = DType::f64, .device = kCuda});
    test::warp_sums(cuda(), y.raw().as<double>(), x.raw().as<double>(), n, width);
    const std::vector<double> got = y.to_vector<double>();
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0.0;
      for (int64_t j = i / width * width; j < (i / width + 1) * width; ++j)
        sum += values[size_t(j)];
      EXPECT_EQ(got[size_t(i)], sum) << width << " lanes, element " << i;
    }
  }
}

}  // namespace
}  // namespace gradus
