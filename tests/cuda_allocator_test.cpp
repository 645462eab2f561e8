// The caching allocator: reuse, statistics, running out, frees by other threads, a guard in front.
#include "cuda/allocator.h"

#include <cuda_runtime_api.h>

#include <future>
#include <thread>
#include <vector>

#include "core/launch.h"
#include "core/ops/copy.h"
#include "core/tensor.h"
#include "cuda/context.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

using CudaAllocatorTest = test::GpuTest;

constexpr TensorOptions kOnGpu{.device = kCuda};

TEST(SizeClass, WastesAtMostAnEighth) {
  EXPECT_EQ(size_class_bytes(size_class_of(0)), 512u);
  EXPECT_EQ(size_class_bytes(size_class_of(1)), 512u);
  EXPECT_EQ(size_class_bytes(size_class_of(512)), 512u);
  EXPECT_EQ(size_class_bytes(size_class_of(513)), 1024u);
  EXPECT_EQ(size_class_bytes(size_class_of(8192)), 8192u);
  EXPECT_EQ(size_class_bytes(size_class_of(8193)), 9216u);
  for (size_t bytes = 8193; bytes < kLargestAllocation; bytes += bytes / 7) {
    const size_t block = size_class_bytes(size_class_of(bytes));
    EXPECT_GE(block, bytes);
    EXPECT_LE(8 * (block - bytes), bytes) << bytes;
    EXPECT_EQ(block % 512, 0u);
    EXPECT_EQ(size_class_of(block), size_class_of(bytes));
    EXPECT_EQ(size_class_of(block + 1), size_class_of(bytes) + 1);
  }
  EXPECT_EQ(size_class_of(kLargestAllocation), kSizeClasses - 1);
}

TEST_F(CudaAllocatorTest, ReusesABlockOfTheClassAndCounts) {
  CudaAllocator& allocator = cuda().caching_allocator();
  const AllocatorStats before = allocator.stats();
  void* first = allocator.allocate(1000);
  AllocatorStats now = allocator.stats();
  EXPECT_EQ(now.bytes_in_use, before.bytes_in_use + 1000);
  EXPECT_EQ(now.blocks_in_use, before.blocks_in_use + 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
  void* other = allocator.allocate(1000);
  EXPECT_NE(first, other);
  allocator.deallocate(first, 1000);
  const int64_t calls = allocator.stats().system_allocations;
  void* second = allocator.allocate(520);
  EXPECT_EQ(second, first);
  EXPECT_EQ(allocator.stats().system_allocations, calls);
  EXPECT_EQ(allocator.stats().bytes_in_use, before.bytes_in_use + 1520);
  EXPECT_GE(allocator.stats().peak_bytes_in_use, before.bytes_in_use + 2000);
  void* small = allocator.allocate(512);
  EXPECT_NE(small, first);
  allocator.deallocate(small, 512);
  allocator.deallocate(second, 520);
  allocator.deallocate(other, 1000);
  EXPECT_EQ(allocator.stats().bytes_in_use, before.bytes_in_use);
  EXPECT_EQ(allocator.stats().blocks_in_use, before.blocks_in_use);
  EXPECT_GE(allocator.stats().bytes_held, 2560);
}

TEST_F(CudaAllocatorTest, EmptyCacheGivesBackWhatIsFree) {
  CudaAllocator& allocator = cuda().caching_allocator();
  allocator.empty_cache();
  const AllocatorStats before = allocator.stats();
  const Tensor kept = Tensor::full({256}, 3.0, kOnGpu);
  {
    const Tensor freed = Tensor::empty({1 << 20}, kOnGpu);
    EXPECT_EQ(allocator.stats().bytes_held, before.bytes_held + 1024 + (4 << 20));
  }
  EXPECT_EQ(allocator.stats().bytes_held, before.bytes_held + 1024 + (4 << 20));
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().bytes_held, before.bytes_held + 1024);
  EXPECT_EQ(kept.to_vector<float>(), std::vector<float>(256, 3.0f));
}

TEST_F(CudaAllocatorTest, OutOfMemoryNamesBytesAskedHeldAndFree) {
  CudaAllocator& allocator = cuda().caching_allocator();
  const Tensor x = Tensor::full({1024}, 5.0, kOnGpu);
  EXPECT_ERROR(allocator.allocate(size_t(1) << 45), ErrorCode::out_of_memory,
               "out of memory: asked for 35184372088832 bytes on cuda:0, holding ",
               " in use), and ", " of ", " are free");
  EXPECT_ERROR(Tensor::empty({int64_t(1) << 60}, kOnGpu), ErrorCode::out_of_memory,
               "asked for 4611686018427387904 bytes");
  // The next launch is not blamed, and nothing was lost.
  EXPECT_EQ(x.clone().to_vector<float>(), std::vector<float>(1024, 5.0f));
}

TEST_F(CudaAllocatorTest, EmptiesTheCacheBeforeGivingUp) {
  CudaAllocator& allocator = cuda().caching_allocator();
  allocator.empty_cache();
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  const size_t first = free / 10 * 6, second = free / 10 * 7;
  ASSERT_NE(size_class_of(first), size_class_of(second));
  allocator.deallocate(allocator.allocate(first), first);
  EXPECT_GE(allocator.stats().bytes_held, static_cast<int64_t>(first));
  void* data = nullptr;
  ASSERT_NO_THROW(data = allocator.allocate(second));
  allocator.deallocate(data, second);
  allocator.empty_cache();
}

TEST_F(CudaAllocatorTest, ASteadyStepTakesNothingFromTheSystem) {
  CudaAllocator& allocator = cuda().caching_allocator();
  const auto step = [] {
    const Tensor x = Tensor::full({64, 3, 32, 32}, 1.5, kOnGpu);
    const Tensor half = x.to(DType::bf16);
    const Tensor last = x.contiguous(MemoryFormat::channels_last);
    return half.to(DType::f32).to_vector<float>()[0] + last.to_vector<float>()[7];
  };
  step();
  const AllocatorStats before = allocator.stats();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(step(), 3.0f);
  EXPECT_EQ(allocator.stats().system_allocations, before.system_allocations);
  EXPECT_EQ(allocator.stats().bytes_held, before.bytes_held);
}

// Without the wait, the fill on this thread's stream would overtake the other thread's copies.
TEST_F(CudaAllocatorTest, ABlockFreedByAnotherThreadWaitsForItsStream) {
  constexpr int64_t count = 16 << 20;
  Tensor x = Tensor::full({count}, 1.0, kOnGpu);
  synchronize(cuda());
  const void* data = x.raw().data;
  std::promise<void> freed;
  std::thread thread([&, x = std::move(x)]() mutable {
    Tensor y = Tensor::empty({count}, kOnGpu);
    for (int i = 0; i < 200; ++i) launch(Copy{.x = x.raw(), .y = y.raw()});
    x = Tensor();
    freed.set_value();
    const std::vector<float> values = y.to_vector<float>();
    EXPECT_EQ(std::count(values.begin(), values.end(), 1.0f), count);
  });
  freed.get_future().wait();
  const Tensor z = Tensor::full({count}, 2.0, kOnGpu);
  EXPECT_EQ(z.raw().data, data);
  thread.join();
  const std::vector<float> values = z.to_vector<float>();
  EXPECT_EQ(std::count(values.begin(), values.end(), 2.0f), count);
}

TEST_F(CudaAllocatorTest, ATensorOutlivesTheThreadThatMadeIt) {
  Tensor x;
  std::thread([&] { x = Tensor::full({1000}, 4.0, kOnGpu); }).join();
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(1000, 4.0f));
  x = Tensor();
}

// A stand-in for a test's guard: counts, and passes on.
class CountingAllocator final : public Allocator {
 public:
  explicit CountingAllocator(Allocator& below) : below_(below) {}
  void* allocate(size_t bytes) override {
    ++allocations;
    return below_.allocate(bytes);
  }
  void deallocate(void* data, size_t bytes) noexcept override {
    ++frees;
    below_.deallocate(data, bytes);
  }
  AllocatorStats stats() const override { return below_.stats(); }
  int allocations = 0;
  int frees = 0;

 private:
  Allocator& below_;
};

TEST_F(CudaAllocatorTest, AnotherAllocatorCanStandInFront) {
  Cuda& context = cuda();
  const auto before = context.allocator();
  const auto guard = std::make_shared<CountingAllocator>(context.caching_allocator());
  context.set_allocator(guard);
  {
    const Tensor x = Tensor::full({100}, 1.0, kOnGpu);
    void* first = context.workspace(1000);
    EXPECT_EQ(context.workspace(500), first);
    EXPECT_NE(context.workspace(5000), nullptr);
  }
  EXPECT_EQ(guard->allocations, 3);
  EXPECT_EQ(guard->frees, 2);
  context.set_allocator(before);
  EXPECT_EQ(guard->frees, 3);
}

}  // namespace
}  // namespace gradus
