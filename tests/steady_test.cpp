// What a long run must not do: grow, ask the system for memory in a steady step, or give other bits
// when its steps are replayed from a graph.
#include <gtest/gtest.h>

#include <fstream>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/batch_norm.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/sum.h"
#include "core/launch.h"
#include "nn/capture.h"
#include "nn/optim/sgd.h"
#include "nn/trainer.h"
#include "tests/support/gpu.h"
#include "tests/support/toy.h"
#include "tests/support/trainer_session.h"

namespace gradus {
namespace {

AllocatorStats stats_of(Device device) {
  return with_backend(device, [](auto& backend) { return allocator_of(backend)->stats(); });
}

// Memory of the process that is in RAM, in bytes.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

// 10,000 steps of a tiny net, 8x8 images in batches of 4.
void train_and_watch(Device device, bool capture) {
  nn::Sequential net = test::toy_net();
  net.to(device);
  nn::DataLoader loader(test::toy_set(400), {.batch_size = 4, .device = device});
  nn::SGD optimizer(net.named_parameters(), {.lr = 1e-3, .momentum = 0.9});
  nn::Trainer trainer(net, loader, optimizer, {.capture = capture});
  for (int step = 0; step < 500; ++step) trainer.step();
  trainer.synchronize();
  const AllocatorStats before = stats_of(device);
  [[maybe_unused]] const int64_t resident = resident_bytes();
  for (int step = 500; step < 10000; ++step) trainer.step();
  trainer.synchronize();
  const AllocatorStats after = stats_of(device);
  EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
  EXPECT_EQ(after.blocks_in_use, before.blocks_in_use);
  EXPECT_EQ(after.bytes_held, before.bytes_held);
  if (device == kCuda) {  // on the CPU the peak depends on the threads' timing
    EXPECT_EQ(after.peak_bytes_in_use, before.peak_bytes_in_use);
    EXPECT_EQ(after.system_allocations, before.system_allocations);
  }
#ifndef __SANITIZE_ADDRESS__  // the sanitizer holds freed memory back
  EXPECT_LE(resident_bytes() - resident, int64_t{4} << 20);
#endif
}

TEST(SteadySlow, TenThousandStepsLeaveMemoryFlat) { train_and_watch(kCpu, false); }

TEST(SteadyCudaSlow, TenThousandEagerStepsLeaveMemoryFlat) {
  GRADUS_SKIP_WITHOUT(kCuda);
  train_and_watch(kCuda, false);
}

TEST(SteadyCudaSlow, TenThousandReplayedStepsLeaveMemoryFlat) {
  GRADUS_SKIP_WITHOUT(kCuda);
  train_and_watch(kCuda, true);
}

// batch_norm in bf16 and channels-last, with dropout around it and a learning rate that changes
// with every step: everything that a step leaves behind after `steps` of them.
std::vector<std::vector<double>> run_template_op(bool capture, int steps) {
  manual_seed(3);
  const TensorOptions image{
      .dtype = DType::bf16, .device = kCuda, .format = MemoryFormat::channels_last};
  const TensorOptions statistic{.dtype = DType::f32, .device = kCuda};
  std::vector<float> values(8 * 16 * 6 * 6);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 37) % 101) / 25;
  const Tensor x = Tensor::from_vector(values, {8, 16, 6, 6}, image);
  const Tensor weight = Tensor::from_vector(values, {8, 16, 6, 6}, image);
  Tensor gamma = Tensor::ones({16}, statistic).set_requires_grad(true);
  Tensor beta = Tensor::zeros({16}, statistic).set_requires_grad(true);
  const BatchNormState state{Tensor::zeros({16}, statistic), Tensor::ones({16}, statistic),
                             Tensor::zeros({1}, {.dtype = DType::i64, .device = kCuda})};
  nn::SGD optimizer(std::vector<Tensor>{gamma, beta}, {.momentum = 0.9, .nesterov = true});
  optimizer.set_schedule(nn::schedules::one_cycle(0.05, steps), steps);
  Tensor seen = Tensor::zeros(x.shape(), image);
  const auto step = [&] {
    const Tensor y = batch_norm(dropout(x, 0.25), gamma, beta, state, {.cumulative = true});
    seen.copy_(y.detach());
    sum(mul(y, weight)).backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  nn::CapturedStep captured(kCuda, step);
  for (int i = 0; i < steps; ++i) capture ? captured.run() : step();
  EXPECT_EQ(captured.captured(), capture);
  EXPECT_EQ(state.batches.item<int64_t>(), steps);
  std::vector<std::vector<double>> left;
  for (const Tensor& tensor : {seen, gamma, beta, state.running_mean, state.running_var}) {
    left.push_back(tensor.to_vector<double>());
  }
  return left;
}

TEST(SteadyCuda, ReplayedTemplateOpIsEagerBitForBit) {
  GRADUS_SKIP_WITHOUT(kCuda);
  constexpr int kSteps = 100 + nn::CapturedStep::kWarmUp;
  EXPECT_EQ(run_template_op(true, kSteps), run_template_op(false, kSteps));
}

// Each after the step has been captured: a rate in the place of a schedule, a norm and a parameter
// that are frozen and go on again.
TEST(SteadyCuda, ChangesBetweenStepsReachACapturedStep) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const auto trained = [](bool capture) {
    test::Session run(kCuda);
    run.options.capture = capture;
    run.optimizer->set_schedule(nn::schedules::one_cycle(0.1, 100), 100);
    nn::Trainer& trainer = run.start();
    std::vector<std::string> hashes;
    const auto steps = [&] {
      for (int i = 0; i < nn::CapturedStep::kWarmUp + 3; ++i) trainer.step();
      hashes.push_back(run.hash());
    };
    steps();
    run.optimizer->set_lr(0.05);
    steps();
    run.net[1].eval();
    steps();
    Tensor weight = run.net.parameters()[0];
    weight.set_requires_grad(false);
    steps();
    weight.set_requires_grad(true);
    run.net[1].train();
    steps();
    return hashes;
  };
  const std::vector<std::string> eager = trained(false), captured = trained(true);
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_EQ(captured[i], eager[i]) << "part " << i;
}

}  // namespace
}  // namespace gradus
