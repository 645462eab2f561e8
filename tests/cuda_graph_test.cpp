// Capture and replay: memory of the graph's own, throws inside, and the step that captures itself.
#include "cuda/graph.h"

#include <memory>
#include <vector>

#include "autograd/grad_mode.h"
#include "core/launch.h"
#include "core/ops/copy.h"
#include "core/tensor.h"
#include "cuda/allocator.h"
#include "nn/capture.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

using CudaGraphTest = test::GpuTest;

constexpr TensorOptions kOnGpu{.device = kCuda};
constexpr int64_t kCount = 5000;

std::vector<float> filled(float value) { return std::vector<float>(kCount, value); }

TEST_F(CudaGraphTest, CaptureRunsNothingAndReplayReadsPresentValues) {
  Tensor x = Tensor::full({kCount}, 1.0, kOnGpu);
  Tensor y = Tensor::full({kCount}, -1.0, kOnGpu);
  CudaGraph graph(cuda());
  EXPECT_FALSE(graph.captured());
  EXPECT_ERROR(graph.replay(), ErrorCode::invalid_argument, "replay() needs a captured step");
  graph.capture([&] { launch(Copy{.x = x.raw(), .y = y.raw()}); });
  EXPECT_TRUE(graph.captured());
  EXPECT_EQ(y.to_vector<float>(), filled(-1.0f));
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), filled(1.0f));
  x.fill_(2.0);
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), filled(2.0f));
}

TEST_F(CudaGraphTest, TensorsOfTheStepAreNotSharedWithEagerWork) {
  Tensor x = Tensor::full({kCount}, 1.0, kOnGpu);
  Tensor y = Tensor::empty({kCount}, kOnGpu);
  CudaGraph graph(cuda());
  const auto step = [&] {
    const Tensor wide = x.to(DType::f64);
    const Tensor narrow = wide.to(DType::bf16);
    launch(Copy{.x = narrow.raw(), .y = y.raw()});
  };
  step();
  graph.capture(step);
  std::vector<Tensor> eager;
  for (int i = 0; i < 20; ++i) {
    x.fill_(i);
    for (const DType dtype : {DType::f64, DType::bf16}) {
      eager.push_back(Tensor::full({kCount}, 99.0, {.dtype = dtype, .device = kCuda}));
    }
    graph.replay();
    EXPECT_EQ(y.to_vector<float>(), filled(static_cast<float>(i)));
    if (i % 3 == 0) eager.clear();
  }
  for (const Tensor& tensor : eager) EXPECT_EQ(tensor.to_vector<float>(), filled(99.0f));
}

TEST_F(CudaGraphTest, ATensorThatOutlivesItsGraphIsOrdinaryMemory) {
  Tensor held, y = Tensor::empty({kCount}, kOnGpu);
  {
    CudaGraph first(cuda());
    first.capture([&] { held = Tensor::full({kCount}, 5.0, kOnGpu); });
    first.replay();
  }
  // The second step reads the tensor and drops it: its memory is now the second graph's alone.
  CudaGraph second(cuda());
  second.capture([&] {
    const Tensor wide = held.to(DType::f64);
    held = Tensor();
    launch(Copy{.x = Tensor::full({kCount}, 7.0, kOnGpu).raw(), .y = y.raw()});
  });
  std::vector<Tensor> eager;
  for (int i = 0; i < 10; ++i) eager.push_back(Tensor::full({kCount}, 99.0, kOnGpu));
  second.replay();
  EXPECT_EQ(y.to_vector<float>(), filled(7.0f));
  for (const Tensor& tensor : eager) EXPECT_EQ(tensor.to_vector<float>(), filled(99.0f));
}

TEST_F(CudaGraphTest, ATensorOfOneGraphThatAnotherDropsIsNobodys) {
  const Tensor x = Tensor::full({kCount}, 5.0, kOnGpu);
  Tensor held = Tensor::empty({kCount}, kOnGpu);
  auto first = std::make_unique<CudaGraph>(cuda());
  CudaGraph second(cuda());
  first->capture([&] {
    held = Tensor::empty({kCount}, kOnGpu);
    launch(Copy{.x = x.raw(), .y = held.raw()});
  });
  second.capture([&] {
    launch(Copy{.x = x.raw(), .y = held.raw()});
    held = Tensor();
  });
  first.reset();
  std::vector<Tensor> eager;
  for (int i = 0; i < 10; ++i) eager.push_back(Tensor::full({kCount}, 99.0, kOnGpu));
  second.replay();
  for (const Tensor& tensor : eager) EXPECT_EQ(tensor.to_vector<float>(), filled(99.0f));
}

TEST_F(CudaGraphTest, TheCaptureReusesMemoryOfTheWarmUpAndGivesItBack) {
  CudaAllocator& allocator = cuda().caching_allocator();
  allocator.empty_cache();
  const Tensor x = Tensor::full({kCount}, 1.0, kOnGpu);
  const auto step = [&] { x.to(DType::f64).to(DType::f32); };
  step();
  const AllocatorStats before = allocator.stats();
  Tensor held;
  {
    CudaGraph graph(cuda());
    graph.capture([&] {
      step();
      held = x.to(DType::f16);
    });
    const int64_t calls = allocator.stats().system_allocations;
    graph.replay();
    EXPECT_EQ(held.to_vector<float>(), filled(1.0f));
    EXPECT_LE(calls, before.system_allocations + 1);  // for `held` only
    // The f64 block is the graph's now, so eager work needs one of its own.
    step();
    EXPECT_GT(allocator.stats().system_allocations, calls);
  }
  EXPECT_EQ(held.to_vector<float>(), filled(1.0f));
  held = Tensor();
  EXPECT_EQ(allocator.stats().bytes_in_use, before.bytes_in_use);
  const int64_t calls = allocator.stats().system_allocations;
  step();
  x.to(DType::f16);
  EXPECT_EQ(allocator.stats().system_allocations, calls);
}

TEST_F(CudaGraphTest, AThrowInsideEndsTheCaptureAndFreesTheArena) {
  CudaAllocator& allocator = cuda().caching_allocator();
  const Tensor x = Tensor::full({kCount}, 1.0, kOnGpu);
  Tensor y = Tensor::empty({kCount}, kOnGpu);
  const AllocatorStats before = allocator.stats();
  CudaGraph graph(cuda());
  const auto failing = [&] {
    const Tensor wide = x.to(DType::f64);
    fail(ErrorCode::invalid_argument, "step", "no good");
  };
  EXPECT_ERROR(graph.capture(failing), ErrorCode::invalid_argument, "step: no good");
  EXPECT_FALSE(graph.captured());
  EXPECT_EQ(allocator.stats().bytes_in_use, before.bytes_in_use);
  const int64_t calls = allocator.stats().system_allocations;
  EXPECT_EQ(x.to(DType::f64).to_vector<float>(), filled(1.0f));  // in the arena's block
  EXPECT_EQ(allocator.stats().system_allocations, calls);
  graph.capture([&] { launch(Copy{.x = x.raw(), .y = y.raw()}); });
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), filled(1.0f));
}

TEST_F(CudaGraphTest, WaitingInsideIsRefused) {
  const Tensor x = Tensor::full({kCount}, 1.0, kOnGpu);
  CudaGraph graph(cuda());
  EXPECT_ERROR(graph.capture([&] { x.to_vector<float>(); }), ErrorCode::unsupported,
               "copy: a step that is being captured must not wait for the device");
  EXPECT_ERROR(graph.capture([&] { synchronize(cuda()); }), ErrorCode::unsupported,
               "synchronize: a step that is being captured");
  EXPECT_ERROR(graph.capture([&] { CudaGraph(cuda()).capture([] {}); }),
               ErrorCode::invalid_argument, "graph: a capture on this thread has not ended yet");
  EXPECT_EQ(x.to_vector<float>(), filled(1.0f));
}

TEST_F(CudaGraphTest, AGraphHasAWorkspaceOfItsOwn) {
  Cuda& context = cuda();
  void* eager = context.workspace(4096);
  void* captured = nullptr;
  CudaGraph graph(context);
  graph.capture([&] {
    context.workspace(64);
    captured = context.workspace(4096);
  });
  EXPECT_NE(captured, eager);
  EXPECT_EQ(context.workspace(4096), eager);
  EXPECT_ERROR(graph.capture([&] {
    context.workspace(1 << 20);
    fail(ErrorCode::invalid_argument, "step", "no good");
  }),
               ErrorCode::invalid_argument, "no good");
  EXPECT_EQ(context.workspace(4096), eager);
}

TEST_F(CudaGraphTest, ACapturedStepRunsEachTime) {
  Tensor count = Tensor::zeros({1}, kOnGpu);
  const Tensor one = Tensor::ones({1}, kOnGpu);
  int calls = 0;
  nn::CapturedStep step(kCuda, [&] {
    ++calls;
    const NoGradGuard no_grad;
    count.add_(one);
  });
  for (int i = 1; i <= 10; ++i) {
    step.run();
    EXPECT_EQ(step.captured(), i > nn::CapturedStep::kWarmUp);
    EXPECT_EQ(count.item<float>(), static_cast<float>(i));
  }
  EXPECT_EQ(calls, nn::CapturedStep::kWarmUp + 1);
}

TEST_F(CudaGraphTest, ACapturedStepTriesAgainAfterAThrow) {
  Tensor x = Tensor::full({kCount}, 1.0, kOnGpu);
  bool fails = true;
  int calls = 0;
  nn::CapturedStep step(kCuda, [&] {
    if (++calls > nn::CapturedStep::kWarmUp && fails) {
      fail(ErrorCode::invalid_argument, "step", "no");
    }
    x.fill_(2.0);
  });
  step.run();
  step.run();
  EXPECT_ERROR(step.run(), ErrorCode::invalid_argument, "step: no");
  EXPECT_FALSE(step.captured());
  fails = false;
  x.fill_(1.0);
  step.run();
  EXPECT_TRUE(step.captured());
  EXPECT_EQ(x.to_vector<float>(), filled(2.0f));
}

}  // namespace
}  // namespace gradus
