#include "nn/trainer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/grad_mode.h"
#include "core/launch.h"
#include "cpu/context.h"
#include "nn/forward_observer.h"
#include "tests/support/expect_error.h"
#include "tests/support/trainer_session.h"

namespace gradus::nn {
namespace {

using test::Session;
using test::toy_net;
using test::toy_set;
using TrainerTest = test::EachDevice;

constexpr auto kInvalid = ErrorCode::invalid_argument;

TEST_P(TrainerTest, Learns) {
  Session run(GetParam(), 1, 512);
  DataLoader held_out(toy_set(100, 2),
                      {.batch_size = 32, .drop_last = false, .device = GetParam()});
  std::vector<EpochReport> reports;
  run.options.epochs = 3;
  run.options.on_epoch = [&](const EpochReport& report) { reports.push_back(report); };
  EXPECT_EQ(run.start().run(&held_out), TrainResult::finished);
  ASSERT_EQ(reports.size(), 3u);
  for (size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(reports[i].epoch, static_cast<int64_t>(i));
    EXPECT_EQ(reports[i].train.samples, 512);
    EXPECT_EQ(reports[i].test->samples, 100);
    EXPECT_GT(reports[i].images_per_second, 0);
    EXPECT_GT(reports[i].ms_per_step, 0);
    EXPECT_EQ(reports[i].lr, 0.05);
    EXPECT_EQ(reports[i].parameter_hash.size(), 16u);
  }
  EXPECT_LT(reports[2].train.loss, reports[0].train.loss);
  EXPECT_GT(reports[2].test->accuracy, 0.95);
  EXPECT_EQ(reports[2].parameter_hash, run.hash());
}

TEST_P(TrainerTest, LearnsInHalf) {
  Session run(GetParam(), 1, 512);
  DataLoader held_out(toy_set(100, 2), {.batch_size = 100, .device = GetParam()});
  run.options.epochs = 3;
  run.options.precision.autocast = DType::bf16;
  run.start().run();
  EXPECT_GT(run.trainer->evaluate(held_out).accuracy, 0.95);
  for (const Tensor& p : run.net.parameters()) EXPECT_EQ(p.dtype(), DType::f32);
}

TEST_P(TrainerTest, LastBatchMayBeSmaller) {
  Session run(GetParam());
  run.loader = std::make_unique<DataLoader>(
      toy_set(20), LoaderOptions{.batch_size = 8, .drop_last = false, .device = GetParam()});
  std::vector<int64_t> samples;
  run.options.on_epoch = [&](const EpochReport& r) { samples.push_back(r.train.samples); };
  run.options.epochs = 3;
  EXPECT_EQ(run.start().run(), TrainResult::finished);
  EXPECT_EQ(samples, std::vector<int64_t>(3, 20));
  EXPECT_EQ(run.optimizer->steps(), 9);
}

// The totals on the device against loss and answers worked out here, batch by batch.
TEST_P(TrainerTest, MetricsAreThoseOfTheBatches) {
  Session run(GetParam());
  run.net.eval();
  double loss = 0;
  int64_t right = 0, samples = 0;
  DataLoader again(toy_set(20), {.batch_size = 8, .drop_last = false, .device = GetParam()});
  again.start_epoch(0);
  {
    const NoGradGuard no_grad;
    while (const auto batch = again.next()) {
      const auto logits = run.net(batch->x).to_vector<double>();
      const auto labels = batch->labels.to_vector<int64_t>();
      for (size_t i = 0; i < labels.size(); ++i, ++samples) {
        const double* row = logits.data() + 4 * i;
        double sum = 0;
        for (int c = 0; c < 4; ++c) sum += std::exp(row[c]);
        loss += std::log(sum) - row[labels[i]];
        right += std::max_element(row, row + 4) - row == labels[i];
      }
    }
  }
  const Metrics metrics = run.start().evaluate(again);
  EXPECT_EQ(samples, 20);
  EXPECT_EQ(metrics.samples, 20);
  EXPECT_NEAR(metrics.loss, loss / 20, 1e-6);
  EXPECT_DOUBLE_EQ(metrics.accuracy, static_cast<double>(right) / 20);
}

TEST_P(TrainerTest, EvaluationChangesNothing) {
  Session run(GetParam());
  Trainer& trainer = run.start();
  trainer.step();
  const std::string before = run.hash();
  const LoaderPosition at = run.loader->position();
  trainer.evaluate(*run.loader);
  EXPECT_EQ(run.hash(), before);
  EXPECT_EQ(run.loader->position(), at);
  EXPECT_TRUE(run.net.training());
}

TEST_P(TrainerTest, StepsAreTakenInTrainingMode) {
  Session run(GetParam());
  run.start();
  run.net.eval();
  run.trainer->step();
  EXPECT_TRUE(run.net.training());
  EXPECT_EQ(run.net.state_dict()[5].name, "1.num_batches_tracked");
  EXPECT_EQ(run.net.state_dict()[5].tensor.item<int64_t>(), 1);
}

// A rate of 1 without momentum shows the gradients.
TEST_P(TrainerTest, GradientsAreClipped) {
  const auto moved = [&](const TrainerOptions& options) {
    Session run(GetParam());
    run.optimizer = std::make_unique<SGD>(run.net.named_parameters(), SGDOptions{.lr = 1});
    run.options = options;
    std::vector<std::vector<double>> before;
    for (const Tensor& p : run.net.parameters()) before.push_back(p.to_vector<double>());
    run.start().step();
    double largest = 0, squares = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      const std::vector<double> after = run.net.parameters()[i].to_vector<double>();
      for (size_t k = 0; k < after.size(); ++k) {
        const double step = std::abs(after[k] - before[i][k]);
        largest = std::max(largest, step);
        squares += step * step;
      }
    }
    return std::pair(largest, std::sqrt(squares));
  };
  const auto [free_value, free_norm] = moved({});
  EXPECT_GT(free_value, 0.02);
  EXPECT_NEAR(moved({.clip_value = 0.01}).first, 0.01, 1e-6);
  EXPECT_NEAR(moved({.clip_norm = free_norm / 2}).second, free_norm / 2, 1e-3 * free_norm);
}

TEST_P(TrainerTest, SameSeedSameBits) {
  const auto hash_of = [&](uint64_t seed) {
    Session run(GetParam(), seed);
    run.start().run();
    return run.hash();
  };
  const std::string first = hash_of(1);
  EXPECT_EQ(hash_of(1), first);
  EXPECT_NE(hash_of(2), first);
}

TEST_P(TrainerTest, ProgressAndStop) {
  Session run(GetParam());
  std::atomic<bool> stop{false};
  std::vector<int64_t> steps;
  run.options.stop = &stop;
  run.options.on_progress = [&](const Progress& progress) {
    steps.push_back(progress.step);
    EXPECT_EQ(progress.steps, 8);
    EXPECT_EQ(progress.epochs, 2);
    EXPECT_EQ(progress.train.samples, 8 * progress.step);
    if (progress.epoch == 1 && progress.step == 3) stop = true;
  };
  EXPECT_EQ(run.start().run(), TrainResult::interrupted);
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 6, 8, 3, 4}));
  EXPECT_EQ(run.loader->position(), (LoaderPosition{.epoch = 1, .samples = 32, .drawn = 96}));
  EXPECT_EQ(run.optimizer->steps(), 12);
}

// Interrupted after each possible step, restored into fresh objects: bit for bit as unbroken,
// metrics included.
TEST_P(TrainerTest, InterruptedAndRestoredIsUnbroken) {
  const auto schedule = schedules::one_cycle(0.1, 16);
  std::vector<double> losses;
  Session unbroken(GetParam());
  unbroken.optimizer->set_schedule(schedule, 16);
  unbroken.options.on_epoch = [&](const EpochReport& r) { losses.push_back(r.train.loss); };
  unbroken.start().run();
  for (const int64_t stop_after : {1, 5, 8, 11}) {
    Session first(GetParam());
    first.optimizer->set_schedule(schedule, 16);
    first.start();
    for (int64_t i = 0; i < stop_after; ++i) first.trainer->step();
    const TrainerState state = first.trainer->state();
    first.trainer->step();  // must not change what was kept

    Session second(GetParam(), 1);
    second.net.load_state_dict(toy_net(7).state_dict());
    second.optimizer->set_schedule(schedule, 16);
    std::vector<double> resumed;
    second.options.on_epoch = [&](const EpochReport& r) { resumed.push_back(r.train.loss); };
    second.options.on_progress = [](const Progress& p) { EXPECT_EQ(p.train.samples, 8 * p.step); };
    second.start().restore(state);
    EXPECT_EQ(second.trainer->run(), TrainResult::finished);
    EXPECT_EQ(second.hash(), unbroken.hash()) << "after " << stop_after;
    EXPECT_EQ(resumed.back(), losses.back());
    EXPECT_EQ(resumed.front(), stop_after <= 8 ? losses.front() : losses.back());
  }
}

// A stop in the evaluation leaves the epoch unreported; the run that goes on reports it as the
// unbroken one does.
TEST_P(TrainerTest, InterruptedEvaluationIsDoneAgain) {
  DataLoader held_out(toy_set(40, 2), {.batch_size = 8, .drop_last = false, .device = GetParam()});
  std::vector<EpochReport> want, got;
  Session unbroken(GetParam());
  unbroken.options.on_epoch = [&](const EpochReport& r) { want.push_back(r); };
  unbroken.start().run(&held_out);

  std::atomic<bool> stop{false};
  int64_t batches = 0;
  Session first(GetParam());
  first.options.stop = &stop;
  first.options.on_epoch = [&](const EpochReport&) { FAIL() << "must not be reported"; };
  first.start();
  {
    const ForwardObserver observer([&](const ForwardEvent& event) {
      if (!first.net.training() && event.path.empty() && ++batches == 2) stop = true;
    });
    EXPECT_EQ(first.trainer->run(&held_out), TrainResult::interrupted);
  }
  EXPECT_EQ(batches, 2);
  EXPECT_TRUE(first.net.training());
  EXPECT_EQ(first.loader->position(), (LoaderPosition{.epoch = 0, .samples = 64, .drawn = 64}));

  const TrainerState state = first.trainer->state();
  Session second(GetParam());
  second.options.on_epoch = [&](const EpochReport& r) { got.push_back(r); };
  second.start().restore(state);
  EXPECT_EQ(second.trainer->run(&held_out), TrainResult::finished);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].parameter_hash, want[i].parameter_hash);
    EXPECT_EQ(got[i].train.loss, want[i].train.loss);
    EXPECT_EQ(got[i].test->loss, want[i].test->loss);
    EXPECT_TRUE(std::isfinite(got[i].images_per_second));
  }
}

TEST_P(TrainerTest, MemoryStaysFlatSlow) {
  Session run(GetParam());
  Trainer& trainer = run.start();
  const auto stats = [&] {
    trainer.synchronize();
    return with_backend(GetParam(), [](auto& b) { return allocator_of(b)->stats(); });
  };
  for (int i = 0; i < 50; ++i) trainer.step();
  const AllocatorStats before = stats();
  for (int i = 0; i < 10000; ++i) trainer.step();
  const AllocatorStats after = stats();
  EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
  EXPECT_EQ(after.blocks_in_use, before.blocks_in_use);
  // Not the same: how much scratch memory threads hold at once depends on their timing.
  EXPECT_LE(after.peak_bytes_in_use, 2 * before.peak_bytes_in_use);
  // The CPU allocates from the system each time.
  const int64_t calls = after.system_allocations - before.system_allocations;
  EXPECT_TRUE(calls == 0 || GetParam() == kCpu) << calls;
}

GRADUS_ON_EACH_DEVICE(TrainerTest);

TEST(Trainer, ThreadsDoNotChangeABit) {
  const int before = cpu().threads();
  std::vector<std::string> hashes;
  for (const int threads : {1, 2, 3}) {
    cpu().set_threads(threads);
    Session run(kCpu, 1, 96);
    run.start().run();
    hashes.push_back(run.hash());
  }
  cpu().set_threads(before);
  EXPECT_EQ(hashes[1], hashes[0]);
  EXPECT_EQ(hashes[2], hashes[0]);
}

TEST(Trainer, RestoreRefusesAnotherRunAndChangesNothing) {
  Session run(kCpu);
  const TrainerState state = run.start().state();
  const auto expect_refused = [&](Session& other, std::string_view text) {
    const std::string before = other.hash();
    EXPECT_ERROR(other.start().restore(state), kInvalid, "resume: ", text);
    EXPECT_EQ(other.hash(), before);
  };
  Session wider(kCpu);
  wider.net = Sequential(Conv2d(1, 5, 3));
  wider.optimizer =
      std::make_unique<SGD>(wider.net.named_parameters(),
                            SGDOptions{.momentum = 0.9, .weight_decay = 1e-4, .nesterov = true});
  expect_refused(wider, "model.0.weight is f32[5,1,3,3] in this run and f32[4,1,3,3]");
  Session other_momentum(kCpu);
  other_momentum.optimizer =
      std::make_unique<SGD>(other_momentum.net.named_parameters(), SGDOptions{.momentum = 0.5});
  expect_refused(other_momentum, "sgd: momentum is 0.5 in this run and 0.9 in the file");
  Session other_seed(kCpu, 2);
  expect_refused(other_seed, "seed is 2 in this run and 1 in the file");
  Session longer(kCpu);
  longer.options.epochs = 3;
  expect_refused(longer, "epochs is 3 in this run and 2 in the file");
  Session other_precision(kCpu);
  other_precision.options.precision.autocast = DType::bf16;
  expect_refused(other_precision, "precision is bf16 in this run and f32 in the file");
  Session other_batch(kCpu);
  other_batch.loader = std::make_unique<DataLoader>(
      toy_set(64), LoaderOptions{.batch_size = 16, .seed = 1, .crop_padding = 1});
  expect_refused(other_batch, "batch_size is 16 in this run and 8 in the file");
  Session other_labels(kCpu);
  other_labels.loader = std::make_unique<DataLoader>(
      toy_set(64, 2), LoaderOptions{.batch_size = 8, .seed = 1, .crop_padding = 1});
  expect_refused(other_labels, "labels is ");
  ImageSet named = toy_set(64);
  named.name = "toys";
  Session other_set(kCpu);
  other_set.loader = std::make_unique<DataLoader>(
      named, LoaderOptions{.batch_size = 8, .seed = 1, .crop_padding = 1});
  expect_refused(other_set, "data_set is toys in this run and unnamed in the file");
  Session without_momentum(kCpu);
  without_momentum.optimizer =
      std::make_unique<SGD>(without_momentum.net.named_parameters(), SGDOptions{});
  expect_refused(without_momentum, "sgd: momentum is 0 in this run and 0.9 in the file");
}

TEST(Trainer, RestoreRefusesAnotherSchedule) {
  Session run(kCpu), other(kCpu);
  run.optimizer->set_schedule(schedules::constant(0.1), 16);
  other.optimizer->set_schedule(schedules::one_cycle(0.1, 16), 16);
  const TrainerState state = run.start().state();
  EXPECT_ERROR(other.start().restore(state), kInvalid, "sgd: the learning rate of step 0 is",
               "and 0.1 in the saved state");
}

TEST(Trainer, Errors) {
  Session run(kCpu);
  run.options.epochs = -1;
  EXPECT_ERROR(run.start(), kInvalid, "epochs must not be negative");
  run.options = {.progress_every = 0};
  EXPECT_ERROR(run.start(), kInvalid, "progress_every must be positive");
}

TEST(ParameterHash, TellsValuesNamesAndShapesApart) {
  Sequential a = toy_net(), b = toy_net();
  EXPECT_EQ(parameter_hash(a), parameter_hash(b));
  const NoGradGuard no_grad;
  b.state_dict().back().tensor.slice(0, 3, 4).fill_(0.25);
  EXPECT_NE(parameter_hash(a), parameter_hash(b));
  Sequential wide(Linear(2, 3, false)), tall(Linear(3, 2, false));
  for (Sequential* net : {&wide, &tall}) net->parameters()[0].fill_(1.0);
  EXPECT_NE(parameter_hash(wide), parameter_hash(tall));
  // Fixed: run logs are compared by it.
  Sequential known(Linear(1, 1, false));
  known.parameters()[0].fill_(1.0);
  EXPECT_EQ(parameter_hash(known), "27fbdcc193555e13");
}

TEST(TrainerCuda, LossesAreThoseOfTheCpu) {
  GRADUS_SKIP_WITHOUT(kCuda);
  std::vector<double> losses[2];
  for (const Device device : {kCpu, kCuda}) {
    Session run(device, 1, 256);
    Trainer& trainer = run.start();
    double before = 0;
    for (int i = 1; i <= 20; ++i) {
      trainer.step();
      const double sum = trainer.train_metrics().loss * i;
      losses[device == kCuda].push_back(sum - before);
      before = sum;
    }
  }
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(losses[1][i], losses[0][i], 1e-4 * losses[0][i]) << "step " << i;
  }
}

TEST(TrainerCuda, CapturedIsEagerBitForBit) {
  GRADUS_SKIP_WITHOUT(kCuda);
  std::vector<std::string> hashes;
  for (const bool capture : {false, true}) {
    Session run(kCuda);
    run.options.capture = capture;
    run.options.epochs = 4;
    run.start().run();
    hashes.push_back(run.hash());
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace gradus::nn
