// Ops that change something besides their result, with the memory running out at each of their
// allocations in turn: they throw out_of_memory and have changed nothing.
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/batch_norm.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/instance_norm.h"
#include "autograd/ops/sum.h"
#include "core/launch.h"
#include "nn/compare/layer.h"
#include "nn/data/loader.h"
#include "nn/optim/muon.h"
#include "nn/optim/sgd.h"
#include "tests/support/expect_error.h"
#include "tests/support/optim.h"
#include "tests/support/toy.h"

namespace gradus {
namespace {

// Passes on `left` allocations and refuses all further ones.
class ShortAllocator final : public Allocator {
 public:
  ShortAllocator(std::shared_ptr<Allocator> inner, int left)
      : inner_(std::move(inner)), left_(left) {}
  void* allocate(size_t bytes) override {
    if (left_-- <= 0) fail(ErrorCode::out_of_memory, "test", "none left");
    return inner_->allocate(bytes);
  }
  void deallocate(void* data, size_t bytes) noexcept override { inner_->deallocate(data, bytes); }
  AllocatorStats stats() const override { return inner_->stats(); }

 private:
  std::shared_ptr<Allocator> inner_;
  int left_;
};

// Whether f() runs through with `count` allocations.
bool succeeds_with(int count, const std::function<void()>& f) {
  const std::shared_ptr<Allocator> before = allocator_of(cpu());
  set_allocator(cpu(), std::make_shared<ShortAllocator>(before, count));
  bool done = false;
  try {
    f();
    done = true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
  }
  set_allocator(cpu(), before);
  return done;
}

// `state` gives what f() changes when it has all the memory that it asks for.
void expect_no_trace(const std::function<std::vector<Tensor>()>& state,
                     const std::function<void()>& f) {
  const auto values = [&] {
    std::vector<std::vector<double>> all;
    for (const Tensor& tensor : state()) all.push_back(tensor.to_vector<double>());
    return all;
  };
  const auto before = values();
  int allocations = 0;
  while (!succeeds_with(allocations, f)) {
    EXPECT_EQ(values(), before) << "after " << allocations << " allocations";
    ASSERT_LT(++allocations, 100);
  }
  EXPECT_GT(allocations, 0);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NE(values()[i], before[i]) << i;
}

void expect_no_trace(const std::vector<Tensor>& state, const std::function<void()>& f) {
  expect_no_trace([&] { return state; }, f);
}

TEST(OutOfMemory, BatchNormLeavesItsRunningStatistics) {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = randn({3, 4, 5, 5}, {.format = format});
    const BatchNormState state{.running_mean = Tensor::zeros({4}),
                               .running_var = Tensor::ones({4}),
                               .batches = Tensor::zeros({1}, {.dtype = DType::i64})};
    expect_no_trace({state.running_mean, state.running_var, state.batches},
                    [&] { batch_norm(x, {}, {}, state); });
  }
}

TEST(OutOfMemory, InstanceNormLeavesItsRunningStatistics) {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = randn({3, 4, 5, 5}, {.format = format});
    const InstanceNormState state{.running_mean = Tensor::zeros({4}),
                                  .running_var = Tensor::ones({4})};
    expect_no_trace({state.running_mean, state.running_var},
                    [&] { instance_norm(x, {}, {}, state); });
  }
}

TEST(OutOfMemory, GeneratorsCountNoFailedDraw) {
  Generator generator;
  const Tensor x = Tensor::ones({100});
  expect_no_trace({generator.tensor()}, [&] { randn({100}, {}, &generator); });
  expect_no_trace({generator.tensor()}, [&] { dropout(x, 0.5, true, &generator); });
}

// A source that shares memory with its target is copied first.
TEST(OutOfMemory, AWriteInPlaceIsWholeOrNone) {
  Tensor x = randn({4, 4}), y = x.clone();
  expect_no_trace({x}, [&] { x.copy_(x.transpose(0, 1)); });
  expect_no_trace({y}, [&] { y.add_(y.transpose(0, 1)); });
  EXPECT_EQ(x.storage()->version() + y.storage()->version(), 2u);
}

// Neither a destructor that throws nor another place in the generator's draws.
TEST(OutOfMemory, AComparedLayerPutsTheDrawsBack) {
  const Tensor x = randn({4, 4});
  const ComparedLayer layer{
      .inputs = {{.name = "x", .value = x}},
      .outputs = {{.name = "y", .dy = x}},
      .forward = [](std::span<const Tensor> in) { return std::vector{dropout(in[0], 0.5, true)}; }};
  const Generator::State before = default_generator(kCpu).state();
  int allocations = 0;
  while (!succeeds_with(allocations, [&] { run_layer(layer, kCpu, true); })) {
    EXPECT_EQ(default_generator(kCpu).state(), before) << "after " << allocations << " allocations";
    ASSERT_LT(++allocations, 100);
  }
  EXPECT_EQ(default_generator(kCpu).state(), before);
}

// The parameters, the step counter and whatever else a step changes but the rate.
std::vector<Tensor> changed_by_step(const nn::Optimizer& optimizer) {
  std::vector<Tensor> changed;
  for (const nn::NamedTensor& p : optimizer.parameters()) changed.push_back(p.tensor);
  for (const nn::NamedTensor& own : optimizer.state()) {
    if (own.name != "lr" && own.name != "born") changed.push_back(own.tensor);
  }
  return changed;
}

TEST(OutOfMemory, AFailedOptimizerStepIsNotCounted) {
  Tensor w = test::parameter({1, -2, 3, 4}, {2, 2}, DType::f32, kCpu);
  test::set_gradient(w, {1, 2, -3, 1});
  const std::vector<Tensor> parameters{w};
  nn::SGD sgd(parameters, {.lr = 0.1, .momentum = 0.9});
  nn::Adam adam(parameters);
  nn::AdamW adamw(parameters);
  nn::Muon muon(parameters);
  for (nn::Optimizer* optimizer : std::initializer_list<nn::Optimizer*>{&sgd, &adam, &adamw}) {
    SCOPED_TRACE(optimizer->name());
    expect_no_trace([&] { return changed_by_step(*optimizer); }, [&] { optimizer->step(); });
    EXPECT_EQ(optimizer->steps(), 1);
  }
  expect_no_trace({w, muon.step_counter()}, [&] { muon.step(); });
}

// A step may have changed the parameters of one dtype when it fails at those of the next.
TEST(OutOfMemory, AStepThatFailsHalfWayIsNoticedByGraphsOfBefore) {
  Tensor p = randn({3, 4}).set_requires_grad(true);
  Tensor q = randn({3, 4}, {.dtype = DType::f64}).set_requires_grad(true);
  nn::Muon optimizer(std::vector{p, q}, {.lr = 0.5});
  const std::vector<float> before = p.to_vector<float>();
  const Tensor y = sum(p * p);
  p.set_grad(Tensor::ones({3, 4}));
  q.set_grad(Tensor::ones({3, 4}, {.dtype = DType::f64}));
  int allocations = 0;
  while (p.to_vector<float>() == before) {
    ASSERT_FALSE(succeeds_with(allocations++, [&] { optimizer.step(); }));
  }
  EXPECT_ERROR(y.backward(), ErrorCode::autograd, "was changed in place");
}

// As if it had never been begun: the first step of `late` is the second, undampened.
TEST(OutOfMemory, AFailedOptimizerStepIsNoParametersFirst) {
  const auto train = [](bool fails) {
    Tensor w = test::parameter({1, 2}, DType::f64, kCpu);
    Tensor late = test::parameter({3, 4}, DType::f64, kCpu);
    nn::SGD optimizer({w, late}, {.lr = 0.1, .momentum = 0.5, .dampening = 0.25});
    optimizer.set_schedule([](int64_t t) { return 0.5 / static_cast<double>(t + 1); }, 4);
    test::set_gradient(w, {1, 1});
    test::set_gradient(late, {1, 1});
    if (fails) {
      EXPECT_FALSE(succeeds_with(0, [&] { optimizer.step(); }));
    }
    late.zero_grad();
    optimizer.step();
    test::set_gradient(late, {1, 1});
    optimizer.step();
    std::vector<double> all{optimizer.lr(), static_cast<double>(optimizer.steps())};
    for (const Tensor& tensor : {w, late}) {
      for (const double value : tensor.to_vector<double>()) all.push_back(value);
    }
    return all;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(OutOfMemory, ALoaderStaysBeforeItsBatch) {
  nn::DataLoader loader(test::toy_set(32), {.batch_size = 8}),
      other(test::toy_set(32), {.batch_size = 8});
  int allocations = 0;
  std::optional<nn::Batch> batch;
  while (!succeeds_with(allocations, [&] { batch = loader.next(); })) {
    EXPECT_EQ(loader.position(), other.position());
    ++allocations;
  }
  EXPECT_GT(allocations, 0);
  EXPECT_EQ(batch->x.to_vector<float>(), other.next()->x.to_vector<float>());
}

}  // namespace
}  // namespace gradus
