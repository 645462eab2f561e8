// The training loop as a library: epochs, metrics, evaluation, interruption and resumption.
//
//   nn::DataLoader train(set, {.batch_size = 128}), test(test_set, {.batch_size = 1000, ...});
//   nn::SGD optimizer(net.named_parameters(), {.momentum = 0.9});
//   nn::Trainer trainer(net, train, optimizer, {.epochs = 2});
//   trainer.run(&test);
//
// The loss is the cross entropy of the model's output. On CUDA a step is captured once and
// replayed, and again after another part of the model is in training mode or another parameter asks
// for a gradient; whatever else the host changes between steps, a schedule or a layer's options,
// needs a new trainer. Loss and right answers are added up on the device and read at progress ticks
// and at the end of an epoch.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "nn/capture.h"
#include "nn/data/loader.h"
#include "nn/module.h"
#include "nn/optim/optimizer.h"
#include "nn/precision.h"

namespace gradus::nn {

// Means over samples.
struct Metrics {
  double loss = 0;
  double accuracy = 0;  // a fraction
  int64_t samples = 0;
};

struct Progress {
  int64_t epoch = 0;  // from 0; texts count from 1
  int64_t epochs = 0;
  int64_t step = 0;  // steps done in this epoch
  int64_t steps = 0;
  Metrics train;       // of this epoch so far
  double seconds = 0;  // of this epoch, since it began or was resumed
  double images_per_second = 0;
};

struct EpochReport {
  int64_t epoch = 0;  // from 0
  Metrics train;
  std::optional<Metrics> test;
  double seconds = 0;  // of training, evaluation not included
  double images_per_second = 0;
  double ms_per_step = 0;
  double lr = 0;               // of the last step
  std::string parameter_hash;  // of parameters and buffers
};

struct TrainerOptions {
  int64_t epochs = 1;
  Precision precision = {};
  double clip_value = 0;        // limit of each value of the gradients; 0: none
  double clip_norm = 0;         // limit of the norm of all gradients, after that; 0: none
  bool capture = true;          // CUDA: replay a graph
  int64_t progress_every = 50;  // steps between looks at the device
  std::function<void(const Progress&)> on_progress = {};
  // After each epoch, when the next has begun: state() then holds the run from there on.
  std::function<void(const EpochReport&)> on_epoch = {};
  // Polled after every step, every batch of an evaluation and every on_epoch. A signal handler may
  // set it; so may on_epoch once the model is good enough, which then stays as it was reported.
  const std::atomic<bool>* stop = nullptr;
};

enum class TrainResult : uint8_t { finished, interrupted };

// Everything that the rest of a run depends on, beside the options of the layers.
struct TrainerState {
  std::vector<NamedTensor> tensors;           // "model.0.weight", "optimizer.step", ...
  std::map<std::string, std::string> values;  // counters, and the settings that must be the same
};

class Trainer {
 public:
  // All but the options must outlive the trainer; model, optimizer and loader must share a device,
  // and the optimizer's parameters must be the model's, all or some of them.
  Trainer(Module& model, DataLoader& train, Optimizer& optimizer, TrainerOptions options);
  ~Trainer();  // takes failed_step back from the optimizer
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains from where the loader stands to the end of the last epoch, or until options.stop: then
  // the step is finished and state() holds the rest. Evaluates on `test`, if given, after every
  // epoch; an evaluation that is interrupted is done again by the run that goes on. Throws
  // `invalid_argument` naming step and layer when the loss is not finite (the parameters are those
  // before that step), and when a parameter, a buffer or the test loss is not at the end of an
  // epoch or where the run is interrupted.
  TrainResult run(DataLoader* test = nullptr);

  // One step on the next batch, of the next epoch where this one is over. Enqueues only.
  void step();         // one that throws leaves its batch to the next
  void synchronize();  // waits for the device, and throws if a step's loss was not finite

  Metrics evaluate(DataLoader& test);  // in evaluation mode, without changing anything
  Metrics train_metrics() const;       // of this epoch so far; waits for the device

  // What a resume file holds. restore() throws invalid_argument naming the first difference in the
  // tensors, the kinds of the layers and the settings of trainer, optimizer and loader, and changes
  // nothing then. Options of layers, as the eps of a norm or the p of a dropout, are not held: with
  // the same ones, a restored run goes on bit for bit as the unbroken one.
  TrainerState state();
  void restore(const TrainerState& state);

 private:
  bool run_epoch();
  void enqueue_step(int64_t batch_size);
  void begin_epoch(int64_t epoch);
  void forget_step_of_other_modes();
  void throw_if_failed();
  bool stop_requested() const { return options_.stop != nullptr && options_.stop->load(); }
  std::optional<Metrics> evaluate(DataLoader& test, const std::function<bool()>& stop);
  void check_state_is_finite();
  void check_is_finite(const Metrics& metrics, DataLoader& test);
  EpochReport make_report(const std::optional<Metrics>& test, double seconds, int64_t first_sample);
  std::map<std::string, std::string> settings() const;
  Tensor generator_state() const;

  Module& model_;
  DataLoader& train_;
  Optimizer& optimizer_;
  TrainerOptions options_;
  std::vector<Tensor> parameters_;  // the optimizer's, for clipping
  Tensor totals_;                   // [3], f64: core/ops/track_metrics.h
  Tensor failed_step_;              // [1], i64: -1, or the first step whose loss was not finite
  std::vector<bool> modes_;         // which modules train, which parameters ask for a gradient
  CapturedStep captured_step_;      // in these modes
};

// "layer 0 Conv2d, layer 1 BatchNorm2d, layer 2 relu": what the shapes of parameters do not tell.
std::string layers_text(Module& model);

// 64-bit FNV-1a over name, dtype, shape and row-major bytes of each tensor, as 16 hex digits: equal
// for equal parameters and buffers, on whatever device.
std::string parameter_hash(Module& model);

}  // namespace gradus::nn
