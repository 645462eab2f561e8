// Graphs of any depth: forward, backward and destruction without recursion, on a small stack.
#include <gtest/gtest.h>
#include <pthread.h>

#include <utility>

#include "autograd/node.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/sum.h"
#include "cpu/context.h"

namespace gradus {
namespace {

constexpr size_t kSmallStack = 512 * 1024;

// Runs `body` on a thread with a stack of 512 KiB.
void on_small_stack(std::function<void()> body) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kSmallStack), 0);
  pthread_t thread;
  const auto start = [](void* argument) -> void* {
    (*static_cast<std::function<void()>*>(argument))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, start, &body), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

Tensor scalar_leaf(double value) {
  return Tensor::full({1}, value, {.dtype = DType::f64}).set_requires_grad(true);
}

Tensor chain(const Tensor& x, int nodes) {
  Tensor y = x;
  for (int i = 0; i < nodes; ++i) y = y + 1.0;
  return y;
}

int64_t blocks_in_use() { return cpu().allocator()->stats().blocks_in_use; }

TEST(TapeDepth, AMillionNodesGoOutOfScope) {
  on_small_stack([] {
    const int64_t before = blocks_in_use();
    {
      const Tensor x = scalar_leaf(2);
      Tensor y = chain(x, 1'000'000);
      EXPECT_EQ(y.item<double>(), 1'000'002);
    }
    EXPECT_EQ(blocks_in_use(), before);
  });
}

TEST(TapeDepth, D075_AMillionNodesGoBackward) {
  on_small_stack([] {
    const int64_t before = blocks_in_use();
    {
      const Tensor x = scalar_leaf(2);
      const Tensor y = chain(x, 1'000'000);
      y.backward();
      EXPECT_EQ(x.grad().item<double>(), 1);
    }
    EXPECT_EQ(blocks_in_use(), before);
  });
}

// Each node is reached by two ways.
TEST(TapeDepth, D074_SharedNodes) {
  const auto run = [](bool backward) {
    Tensor x = Tensor::ones({4}, {.dtype = DType::f64}).set_requires_grad(true);
    Tensor y = x;
    for (int i = 0; i < 300'000; ++i) y = y + y * 1e-6;
    if (!backward) return;
    sum(y).backward();
    for (const double value : x.grad().to_vector<double>()) EXPECT_NEAR(value, 1.3498586, 1e-7);
  };
  on_small_stack([&] { run(false), run(true); });
}

// A graph that is kept and freed later.
TEST(TapeDepth, D075_RetainedGraphIsFreedWithItsResult) {
  on_small_stack([] {
    const Tensor x = scalar_leaf(2);
    {
      const Tensor y = chain(x, 100'000);
      y.backward({}, true);
      y.backward({}, true);
    }
    EXPECT_EQ(x.grad().item<double>(), 2);
    EXPECT_EQ(x.grad_state().use_count(), 1);
  });
}

// Hooks that hold what their tensor was made from, with the graph between them and without.
TEST(TapeDepth, AChainOfHooksGoesOutOfScope) {
  on_small_stack([] {
    for (const bool backward : {false, true}) {
      Tensor y = scalar_leaf(2);
      for (int i = 0; i < 100'000; ++i) {
        const Tensor from = std::exchange(y, y + 1.0);
        y.register_hook([from](const Tensor&) { return Tensor(); });
      }
      if (backward) y.backward();
    }
  });
}

// Dropping a loss without backward frees its graph, saved tensors included.
TEST(TapeDepth, DroppedLossesLeaveMemoryFlat) {
  const Tensor x = scalar_leaf(2);
  const int64_t before = blocks_in_use();
  for (int step = 0; step < 100; ++step) {
    Tensor loss = x;
    for (int i = 0; i < 50; ++i) loss = loss * x;
    EXPECT_GT(blocks_in_use(), before);
    loss = Tensor();
    ASSERT_EQ(blocks_in_use(), before);
  }
}

}  // namespace
}  // namespace gradus
