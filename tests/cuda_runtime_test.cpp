// Contexts and errors: wrong devices, launches that fail, copies between devices, no blame for
// others' errors, refusal after a sticky one.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <thread>
#include <vector>

#include "autograd/gradcheck.h"
#include "autograd/ops/arithmetic.h"
#include "core/build_config.h"
#include "core/launch.h"
#include "core/ops/copy.h"
#include "core/tensor.h"
#include "cuda/check.h"
#include "nn/compare/compare.h"
#include "nn/sequential.h"
#include "tests/cuda_device_kernels.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

using CudaRuntimeTest = test::GpuTest;

constexpr TensorOptions kOnGpu{.device = kCuda};

TEST_F(CudaRuntimeTest, TheDeviceIsDescribed) {
  const CudaDeviceInfo& info = cuda().info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.compute_major, 8);
  if (std::string_view(GRADUS_CUDA_ARCHITECTURES).find("90") != std::string_view::npos) {
    EXPECT_EQ(cuda().has_hopper_features(), info.compute_major >= 9);
  }
  if (std::string_view(GRADUS_CUDA_ARCHITECTURES).find("90a") != std::string_view::npos) {
    EXPECT_EQ(cuda().has_warpgroup_products(), info.compute_major == 9);
  }
  EXPECT_GT(info.multiprocessors, 0);
  EXPECT_GT(info.total_bytes, int64_t(1) << 30);
  EXPECT_GT(info.l2_bytes, 0);
  EXPECT_EQ(device_of(cuda()), kCuda);
  std::cout << info.name << '\n';
}

TEST_F(CudaRuntimeTest, EachThreadHasItsOwnContext) {
  Cuda& mine = cuda();
  EXPECT_EQ(&cuda(), &mine);
  std::thread([&] {
    EXPECT_NE(&cuda(), &mine);
    EXPECT_NE(cuda().stream(), mine.stream());
    EXPECT_EQ(Tensor::full({3}, 2.0, kOnGpu).to_vector<float>(), std::vector<float>(3, 2.0f));
  }).join();
}

TEST_F(CudaRuntimeTest, TheLibraryHandleIsMadeOnce) {
  ASSERT_NE(cuda().blas(), nullptr);
  EXPECT_EQ(cuda().blas(), cuda().blas());
}

TEST_F(CudaRuntimeTest, AFailedLaunchIsNamedAndDoesNotLast) {
  Cuda& context = cuda();
  begin_launch(context, "some_op");
  test::launch_too_many_threads(context);
  EXPECT_ERROR(end_launch(context, "some_op"), ErrorCode::cuda, "some_op: cudaErrorInvalid");
  EXPECT_EQ(context.failure(), "");
  EXPECT_EQ(Tensor::full({3}, 2.0, kOnGpu).to_vector<float>(), std::vector<float>(3, 2.0f));
}

TEST_F(CudaRuntimeTest, AnErrorLeftByOthersIsNotBlamedOnTheNextLaunch) {
  test::launch_too_many_threads(cuda());
  Tensor x;
  EXPECT_NO_THROW(x = Tensor::full({3}, 2.0, kOnGpu));
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(3, 2.0f));
}

TEST_F(CudaRuntimeTest, TensorsOfTwoDevicesAreRefusedBeforeTheLaunch) {
  const Tensor x = Tensor::zeros({2, 3}), y = Tensor::full({2, 3}, 1.0, kOnGpu);
  EXPECT_ERROR(launch(Copy{.x = x.raw(), .y = y.raw()}), ErrorCode::invalid_argument,
               "copy: all tensors must be on one device, got f32[2,3]@cpu and f32[2,3]@cuda:0");
}

TEST_F(CudaRuntimeTest, CopiesToAndFromTheDevice) {
  std::vector<float> values(100003);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5f;
  const Tensor host = Tensor::from_vector(values, {100003});
  const Tensor device = host.to(kCuda);
  EXPECT_EQ(device.device(), kCuda);
  EXPECT_EQ(device.to_vector<float>(), values);
  EXPECT_EQ(host.slice(0, 1, 100003, 2).to(kCuda).to_vector<float>(),
            host.slice(0, 1, 100003, 2).to_vector<float>());
  EXPECT_EQ(Tensor::empty({0}, kOnGpu).to(kCpu).numel(), 0);
}

TEST_F(CudaRuntimeTest, CopiesBetweenTwoGpus) {
  if (cuda_devices().size() < 2) GTEST_SKIP() << "one GPU only";
  const Device second{DeviceType::cuda, 1};
  Tensor x = Tensor::full({16 << 20}, 1.0, kOnGpu);
  for (int i = 0; i < 10; ++i) {
    x.fill_(i);
    const Tensor y = x.to(second);
    EXPECT_EQ(y.device(), second);
    const Tensor last = y.slice(0, (16 << 20) - 2, 16 << 20);
    EXPECT_EQ(last.to_vector<float>(), std::vector<float>(2, static_cast<float>(i)));
    EXPECT_EQ(y.to(kCuda).slice(0, 0, 1).item<float>(), static_cast<float>(i));
  }
}

std::string text_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// The device is lost: for a process of its own.
void write_to_nowhere() {
  Tensor::wrap(reinterpret_cast<void*>(uintptr_t(1) << 20), {4}, kOnGpu).fill_(1.0);
}

void see_launches_refused() {
  const Tensor good = Tensor::zeros({4}, kOnGpu);
  write_to_nowhere();
  const std::string first = text_of([] { synchronize(cuda()); });
  const std::string refused = ": refused after an earlier failure: " + first;
  const std::string fill = text_of([&] { launch(Fill{.y = good.raw()}); });
  const std::string clone = text_of([&] { good.clone(); });
  const std::string copy = text_of([&] { good.to_vector<float>(); });
  std::cerr << first << '\n' << fill << '\n' << clone << '\n' << copy << '\n';
  const bool right = first.starts_with("synchronize: cudaErrorIllegalAddress") &&
                     cuda().failure() == first && fill == "fill" + refused &&
                     clone == "allocate" + refused && copy == "copy" + refused;
  std::_Exit(right ? 42 : 1);
}

TEST_F(CudaRuntimeTest, AfterAStickyErrorLaunchesAreRefusedWithItsText) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(see_launches_refused(), testing::ExitedWithCode(42),
              "refused after an earlier failure: synchronize: cudaErrorIllegalAddress");
}

// A forward whose kernel dies on the device.
struct Wild final : nn::Module {
  std::string_view kind() const override { return "Wild"; }
  Tensor forward(const Tensor& x) override {
    const Tensor y = x * 2.0;
    if (x.device() == kCuda) write_to_nowhere();
    return y;
  }
};

void compare_wild_layer() {
  nn::Sequential net(Wild{});
  const std::string text = text_of([&] {
    compare(net, {Tensor::ones({2, 3}), {}}, {.repeats = 0});
  });
  std::cerr << text << '\n';
  std::_Exit(text == cuda().failure() ? 42 : 1);
}

void take_differences_of_wild_layer() {
  const Tensor x = Tensor::ones({3}, {.dtype = DType::f64, .device = kCuda});
  const std::vector<double> steps(3, 1e-6);
  const std::string text =
      text_of([&] { finite_differences([&] { return Wild().forward(x); }, x, x, steps); });
  std::cerr << text << '\n';
  std::_Exit(text == cuda().failure() ? 42 : 1);
}

// Not by a destructor that throws in its turn.
TEST_F(CudaRuntimeTest, AKernelThatDiesEndsAComparisonWithItsError) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(compare_wild_layer(), testing::ExitedWithCode(42),
              "synchronize: cudaErrorIllegalAddress");
  EXPECT_EXIT(take_differences_of_wild_layer(), testing::ExitedWithCode(42),
              "cudaErrorIllegalAddress");
}

TEST(CudaErrors, ThoseOfMemoryAreOutOfMemory) {
  EXPECT_ERROR(cuda_check(cudaErrorMemoryAllocation, "graph"), ErrorCode::out_of_memory,
               "graph: cudaErrorMemoryAllocation");
  EXPECT_ERROR(cuda_check(cudaErrorInvalidValue, "graph"), ErrorCode::cuda,
               "graph: cudaErrorInvalidValue");
}

TEST(StickyErrors, AreKnown) {
  EXPECT_TRUE(is_sticky(cudaErrorIllegalAddress));
  EXPECT_TRUE(is_sticky(cudaErrorLaunchFailure));
  EXPECT_TRUE(is_sticky(cudaErrorAssert));
  EXPECT_FALSE(is_sticky(cudaSuccess));
  EXPECT_FALSE(is_sticky(cudaErrorInvalidConfiguration));
  EXPECT_FALSE(is_sticky(cudaErrorMemoryAllocation));
}

}  // namespace
}  // namespace gradus
