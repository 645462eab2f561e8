// `gradus train`: trains a network on an image set.

#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "core/error.h"
#include "examples/cli/autotune_run.h"
#include "examples/cli/commands.h"
#include "examples/cli/interrupt.h"
#include "examples/cli/metrics_file.h"
#include "examples/cli/option_checks.h"
#include "examples/cli/progress.h"
#include "examples/cli/run_setup.h"
#include "nn/checkpoint.h"
#include "nn/data/loader.h"
#include "nn/io/file_descriptor.h"
#include "nn/trainer.h"

namespace gradus::cli {
namespace {

constexpr int64_t kMaxSteps = 10'000'000;  // each has its learning rate in a table

struct TrainOptions : RunOptions {
  std::string data_set = "fashion-mnist";
  std::string data;
  std::optional<int64_t> epochs;
  std::optional<double> lr;
  double clip_norm = 0, clip_value = 0;
  std::string schedule = "one-cycle";
  std::string save, resume, metrics;
  AutotuneOptions autotune;
  bool quiet = false;
};

void add_train_options(CLI::App& command, TrainOptions& o) {
  command.add_option("--data-set", o.data_set, "The images")
      ->type_name("NAME")
      ->check(CLI::IsMember({"fashion-mnist", "mnist", "cifar10"}))
      ->capture_default_str();
  command
      .add_option("--data", o.data,
                  "Folder of the set's files (default for fashion-mnist: where the Debian "
                  "package dataset-fashion-mnist puts them)")
      ->type_name("DIR")
      ->check(check_name);
  add_run_options(command, o);
  add_autotune_options(command, o.autotune);
  command
      .add_option("--epochs", o.epochs, "Passes over the images (default: 2 on a CPU, 8 on a GPU)")
      ->type_name("N")
      ->transform(integer(1, 1000000));
  command
      .add_option("--lr", o.lr,
                  "Largest learning rate (default: 0.1 for sgd, 0.002 for adam and adamw, 0.02 for "
                  "muon)")
      ->type_name("X")
      ->check(check_positive_real);
  command
      .add_option("--clip-norm", o.clip_norm,
                  "Scale the gradients of a step down where all of them together are longer than "
                  "this (default: never)")
      ->type_name("X")
      ->check(check_positive_real);
  command
      .add_option("--clip-value", o.clip_value,
                  "Limit every value of the gradients to this size (default: never)")
      ->type_name("X")
      ->check(check_positive_real);
  command
      .add_option("--schedule", o.schedule,
                  "Learning rate over the run: one-cycle (up over the first fifth, then down to "
                  "0), cosine (down to 0), step (a tenth after each third) or constant")
      ->type_name("NAME")
      ->check(CLI::IsMember({"one-cycle", "cosine", "step", "constant"}))
      ->capture_default_str();
  command
      .add_option("--save", o.save, "Write the weights to this safetensors file after each epoch")
      ->type_name("FILE")
      ->check(check_name);
  command
      .add_option("--resume", o.resume,
                  "Go on with the run in this file, if it exists, and keep the run there after "
                  "each epoch and on Ctrl-C")
      ->type_name("FILE")
      ->check(check_name);
  command.add_option("--metrics", o.metrics, "Write one JSON object per epoch to this file")
      ->type_name("FILE")
      ->check(check_name);
  command.add_flag("--quiet", o.quiet, "Print errors only");
}

nn::ImageSet load_set(const TrainOptions& o, bool train) {
  const std::string dir = o.data.empty() ? nn::default_data_dir(o.data_set) : o.data;
  check(!dir.empty(), "train", "no package installs ", o.data_set,
        "; name the folder of its files with --data");
  return nn::load_image_set(o.data_set, dir, train);
}

double lr_of(const TrainOptions& o) { return o.lr.value_or(default_lr(o.optimizer)); }

nn::Schedule make_schedule(const TrainOptions& o, int64_t steps) {
  const double lr = lr_of(o);
  if (o.schedule == "one-cycle") return nn::schedules::one_cycle(lr, steps);
  if (o.schedule == "cosine") return nn::schedules::cosine(lr, steps);
  if (o.schedule == "step") return nn::schedules::step(lr, (steps + 2) / 3);
  return nn::schedules::constant(lr);
}

nn::LoaderOptions loader_options(const TrainOptions& o, Device device) {
  const bool augment = o.data_set == "cifar10";
  return {.batch_size = o.batch_size,
          .seed = o.seed,
          .crop_padding = augment ? 4 : 0,
          .flip = augment,
          .device = device};
}

nn::LoaderOptions test_loader_options(int64_t samples, Device device) {
  return {.batch_size = std::min<int64_t>(samples, 1000),
          .shuffle = false,
          .drop_last = false,
          .device = device};
}

void check_images_match(const nn::DataLoader& train, const nn::DataLoader& test) {
  check(train.image_shape() == test.image_shape(), "train", "the images to train on are ",
        train.image_shape(), " and those to test on ", test.image_shape());
}

// Where an interrupted run is kept that named no file: the first free name, so that an earlier one
// stays.
std::string free_resume_name() {
  const auto is_taken = [](const std::string& name) {
    return std::filesystem::exists(std::filesystem::symlink_status(name));
  };
  std::string name = "gradus.resume";
  for (int i = 2; is_taken(name); ++i) name = fmt::format("gradus-{}.resume", i);
  return name;
}

// The file itself, empty: runs of one folder that are interrupted together get one each. Where it
// cannot be made, writing it says why.
std::string new_resume_file() {
  for (;;) {
    std::string name = free_resume_name();
    const nn::FileDescriptor file(
        ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file || errno != EEXIST) return name;
  }
}

// As a shell reads it.
std::string quoted(const std::string& name) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::strchr("_-./+,:@%=", c) != nullptr;
  };
  if (std::ranges::all_of(name, is_plain)) return name;
  std::string text = "'";
  for (const char c : name) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

// "1 step", "2 steps".
std::string counted(int64_t count, const char* what) {
  return fmt::format("{} {}{}", count_text(count), what, count == 1 ? "" : "s");
}

std::string headline(const TrainOptions& o, int64_t epochs, int64_t parameters,
                     const nn::DataLoader& train, const nn::DataLoader& test, Device device) {
  return fmt::format(
      "{} ({}, {}; {} parameters) on {} ({} + {} images)\n"
      "{}, {}; {} of {} of {}, {}, {} up to {}, seed {}",
      o.model, o.norm, o.activation, count_text(parameters), o.data_set,
      count_text(train.samples()), count_text(test.samples()), describe(device), o.precision,
      counted(epochs, "epoch"), counted(train.batches(), "step"), counted(o.batch_size, "image"),
      o.optimizer, o.schedule, lr_of(o), o.seed);
}

// One run of the command: everything it owns, in the order in which it depends on each other.
class TrainRun {
 public:
  explicit TrainRun(const TrainOptions& options)
      : options_(options),
        device_(open_device(options)),
        precision_(precision_of(options, device_)),
        epochs_(options.epochs.value_or(device_.type == DeviceType::cuda ? 8 : 2)),
        train_(load_set(options, true), loader_options(options, device_)),
        printer_(options.quiet) {
    nn::ImageSet test = load_set(options, false);
    const nn::LoaderOptions test_options = test_loader_options(test.n, device_);
    test_.emplace(std::move(test), test_options);
    check_images_match(train_, *test_);
    const Shape image = train_.image_shape();
    network_ = make_network(options, image[0], image[1], image[2], train_.classes(), device_);
    optimizer_ = make_optimizer(options.optimizer, network_, lr_of(options));
    const int64_t steps = epochs_ * train_.batches();
    check(steps <= kMaxSteps, "train", "at most ", kMaxSteps, " steps, got ", epochs_,
          " epochs of ", train_.batches());
    optimizer_->set_schedule(make_schedule(options, steps), steps);
    trainer_.emplace(network_, train_, *optimizer_, trainer_options());
  }

  int run() {
    check_outputs();
    const bool resuming = !options_.resume.empty() && std::filesystem::exists(options_.resume);
    if (resuming) trainer_->restore(nn::load_resume(options_.resume));
    metrics_.emplace(options_.metrics,
                     resuming ? std::optional(train_.position().epoch) : std::nullopt);
    printer_.line(headline(options_, epochs_, network_.parameter_count(), train_, *test_, device_));
    if (resuming) printer_.line(resumed_at());
    if (is_finished()) save();  // the run may have ended between its files
    if (trainer_->run(&*test_) == nn::TrainResult::finished) return 0;
    printer_.last_line(
        fmt::format("interrupted; the same command with --resume {} goes on", quoted(keep())));
    return interrupted_status();
  }

 private:
  nn::TrainerOptions trainer_options() {
    return {.epochs = epochs_,
            .precision = precision_,
            .clip_value = options_.clip_value,
            .clip_norm = options_.clip_norm,
            .progress_every = device_.type == DeviceType::cuda ? 50 : 1,
            .on_progress = [this](const nn::Progress& progress) { printer_.show(progress); },
            .on_epoch = [this](const nn::EpochReport& report) { end_epoch(report); },
            .stop = &catch_interrupts()};
  }

  void check_outputs() const {
    check_can_be_created("--save", options_.save);
    if (!options_.resume.empty()) {
      check_can_be_created("--resume", options_.resume);
    } else {
      check_can_be_created("the file of an interrupted run, which --resume names",
                           free_resume_name());
    }
  }

  bool is_finished() const { return train_.position().epoch >= epochs_; }

  void save() {
    if (!options_.save.empty()) nn::save_weights(options_.save, network_);
  }

  // Writes what an interrupted run needs to go on; returns the file.
  std::string keep() {
    const bool is_new = options_.resume.empty();
    std::string path = is_new ? new_resume_file() : options_.resume;
    try {
      nn::save_resume(path, trainer_->state());
    } catch (...) {
      std::error_code ignored;
      if (is_new) std::filesystem::remove(path, ignored);
      throw;
    }
    return path;
  }

  std::string resumed_at() const {
    const nn::LoaderPosition& at = train_.position();
    if (is_finished()) return fmt::format("the run in {} is finished", options_.resume);
    return fmt::format("going on from {}: epoch {}, step {}", options_.resume, at.epoch + 1,
                       at.samples / options_.batch_size);
  }

  void end_epoch(const nn::EpochReport& report) {
    // Metrics that are ahead of the file that the run goes on from are written anew then, those
    // that are behind never; weights that are ahead would not be its own.
    metrics_->write(report);
    if (!options_.resume.empty()) nn::save_resume(options_.resume, trainer_->state());
    save();
    printer_.report(report, epochs_);
  }

  const TrainOptions& options_;
  Device device_;
  nn::Precision precision_;
  int64_t epochs_;
  nn::DataLoader train_;
  std::optional<nn::DataLoader> test_;
  nn::Sequential network_;
  std::unique_ptr<nn::Optimizer> optimizer_;
  ProgressPrinter printer_;
  std::optional<MetricsFile> metrics_;
  std::optional<nn::Trainer> trainer_;
};

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("train", "Train a small CNN on images");
  const auto options = std::make_shared<TrainOptions>();
  add_train_options(*command, *options);
  command->footer(
      "Example: gradus train --epochs 4 --save net.safetensors --metrics run.jsonl\n"
      "Ctrl-C, SIGTERM or a terminal that closes finishes the step and keeps the run in the "
      "file of --resume (or gradus.resume).\ncifar10 is augmented with random crops and flips.");
  command->callback([options, &action] {
    check_files_differ({{"--save", options->save},
                        {"--resume", options->resume},
                        {"--metrics", options->metrics},
                        {"--autotune", options->autotune.path}},
                       {});
    action = [options] {
      return with_autotune(
          options->autotune, [&] { return TrainRun(*options).run(); }, options->quiet);
    };
  });
}

}  // namespace gradus::cli
