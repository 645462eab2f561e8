// `gradus bench step`: the time of one training step.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/random.h"
#include "examples/cli/autotune_run.h"
#include "examples/cli/commands.h"
#include "examples/cli/option_checks.h"
#include "examples/cli/progress.h"
#include "examples/cli/run_setup.h"
#include "nn/compare/timer.h"
#include "nn/data/loader.h"
#include "nn/trainer.h"

namespace gradus::cli {
namespace {

struct BenchOptions : RunOptions {
  AutotuneOptions autotune;
  int repeats = 30;
  bool json = false;
};

// Grey images of 28x28 of random pixels and labels: up to 100 batches and about 60,000 images, so
// that a new order of the images is as rare as in training.
nn::ImageSet random_images(int64_t batch_size, uint64_t seed) {
  const int64_t batches = std::clamp<int64_t>(60000 / batch_size, 1, 100);
  nn::ImageSet set{.n = batches * batch_size, .c = 1, .h = 28, .w = 28, .classes = 10};
  set.mean = {0.5f};
  set.std = {0.29f};
  PhiloxSequence random(seed, random_stream::kTensor);
  set.images.resize(static_cast<size_t>(set.n * set.h * set.w));
  set.labels.resize(static_cast<size_t>(set.n));
  for (uint8_t& pixel : set.images) pixel = static_cast<uint8_t>(random.below(256));
  for (uint8_t& label : set.labels) label = static_cast<uint8_t>(random.below(10));
  return set;
}

// Milliseconds per step of each repeat. A repeat on a GPU is 20 steps, so that waiting for the
// device at its end weighs nothing.
std::vector<double> time_steps(nn::Trainer& trainer, int repeats, int steps) {
  using Clock = std::chrono::steady_clock;
  const auto repeat = [&] {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < steps; ++i) trainer.step();
    trainer.synchronize();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count() / steps;
  };
  for (int i = 0; i < 3; ++i) repeat();  // warm-up: allocation, capture
  std::vector<double> times(static_cast<size_t>(repeats));
  for (double& time : times) time = repeat();
  return times;
}

int bench_step(const BenchOptions& o) {
  const Device device = open_device(o);
  const nn::Precision precision = precision_of(o, device);
  nn::DataLoader loader(random_images(o.batch_size, o.seed),
                        {.batch_size = o.batch_size, .seed = o.seed, .device = device});
  nn::Sequential network = make_network(o, 1, 28, 28, loader.classes(), device);
  const auto optimizer = make_optimizer(o.optimizer, network, default_lr(o.optimizer) / 10);
  nn::Trainer trainer(network, loader, *optimizer, {.precision = precision});
  const int steps = device.type == DeviceType::cuda ? 20 : 1;
  const double ms = median(time_steps(trainer, o.repeats, steps));
  const double images_per_second = 1e3 * static_cast<double>(o.batch_size) / ms;
  if (o.json) {
    const nlohmann::ordered_json result{{"schema", 1},
                                        {"device", describe(device)},
                                        {"model", o.model},
                                        {"norm", o.norm},
                                        {"activation", o.activation},
                                        {"optimizer", o.optimizer},
                                        {"batch_size", o.batch_size},
                                        {"precision", o.precision},
                                        {"repeats", o.repeats},
                                        {"ms_per_step", ms},
                                        {"images_per_second", images_per_second}};
    fmt::print("{}\n", result.dump(2));
    finish_output();
    return 0;
  }
  fmt::print("{}, {} ({}, {}), {}, batch {}, {}: {:.3f} ms per step, {} images per second\n",
             describe(device), o.model, o.norm, o.activation, o.optimizer, o.batch_size,
             o.precision, ms, count_text(std::lround(images_per_second)));
  finish_output();
  return 0;
}

}  // namespace

void add_bench_step(CLI::App& bench, Action& action) {
  CLI::App* command =
      bench.add_subcommand("step", "Time one training step (median), data already on the device");
  const auto options = std::make_shared<BenchOptions>();
  add_run_options(*command, *options);
  add_autotune_options(*command, options->autotune);
  command->get_option("--batch-size")->transform(integer(1, 60000));
  command->add_option("--repeats", options->repeats, "Measurements")
      ->type_name("N")
      ->transform(integer(1, 100000))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options, &action] {
    action = [options] {
      return with_autotune(options->autotune, [&] { return bench_step(*options); });
    };
  });
}

}  // namespace gradus::cli
