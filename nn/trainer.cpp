#include "nn/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "autograd/grad_mode.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/track_metrics.h"
#include "nn/evaluation.h"
#include "nn/finite_check.h"
#include "nn/io/tensor_bytes.h"
#include "nn/match.h"
#include "nn/optim/clip_grad.h"

namespace gradus::nn {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Tensor new_totals(Device device) {
  return Tensor::zeros({3}, {.dtype = DType::f64, .device = device});
}

Metrics read_metrics(const Tensor& totals) {
  const std::vector<double> t = totals.to_vector<double>();
  if (t[2] == 0) return {};
  return {t[0] / t[2], t[1] / t[2], static_cast<int64_t>(t[2])};
}

void check_devices(Module& model, const DataLoader& train, const Optimizer& optimizer) {
  const Device device = train.options().device;
  check(optimizer.device() == device, "trainer", "the optimizer is on ", optimizer.device(),
        " and the loader on ", device);
  for (const NamedTensor& p : model.named_parameters()) {
    check(p.tensor.device() == device, "trainer", "parameter ", p.name, " is ", p.tensor,
          " and the loader is on ", device);
  }
}

// An optimizer of tensors that model.to() has replaced would step nothing that the model uses.
void check_parameters(Module& model, const Optimizer& optimizer) {
  const std::vector<Tensor> own = model.parameters();
  for (const NamedTensor& p : optimizer.parameters()) {
    const auto is_p = [&](const Tensor& tensor) { return is_same(tensor, p.tensor); };
    check(std::ranges::any_of(own, is_p), "trainer", "the optimizer's parameter ", p.name, ", ",
          p.tensor, ", is none of the model's; make the optimizer after model.to()");
  }
}

void check_limit(std::string_view name, double value) {
  check(std::isfinite(value) && value >= 0, "trainer", name, " must be 0 or more, got ", value);
}

}  // namespace

Trainer::Trainer(Module& model, DataLoader& train, Optimizer& optimizer, TrainerOptions options)
    : model_(model),
      train_(train),
      optimizer_(optimizer),
      options_(std::move(options)),
      captured_step_(train.options().device,
                     [this] { enqueue_step(train_.options().batch_size); }) {
  check(options_.epochs >= 0, "trainer", "epochs must not be negative, got ", options_.epochs);
  check(options_.progress_every > 0, "trainer", "progress_every must be positive, got ",
        options_.progress_every);
  check(train_.batches() > 0, "trainer", "an epoch must have at least one batch");
  check_devices(model_, train_, optimizer_);
  check_parameters(model_, optimizer_);
  check_limit("clip_value", options_.clip_value);
  check_limit("clip_norm", options_.clip_norm);
  for (const NamedTensor& p : optimizer_.parameters()) parameters_.push_back(p.tensor);
  const Device device = train_.options().device;
  totals_ = new_totals(device);
  failed_step_ = Tensor::full({1}, -1, {.dtype = DType::i64, .device = device});
}

Trainer::~Trainer() { optimizer_.set_failed_step({}); }

void Trainer::enqueue_step(int64_t batch_size) {
  const PrecisionGuard precision(options_.precision);
  const Batch batch = train_.gather(batch_size);
  const Tensor logits = model_(batch.x);
  const Tensor loss = cross_entropy(logits, batch.labels);
  optimizer_.zero_grad();
  loss.backward();
  if (options_.clip_value > 0) clip_grad_value_(parameters_, options_.clip_value);
  if (options_.clip_norm > 0) clip_grad_norm_(parameters_, options_.clip_norm);
  // After the backward, which may throw: a batch that is taken again for that counts once. Before
  // the step, which reads failed_step.
  launch(TrackMetrics{.loss = loss.raw(),
                      .logits = dense(logits).raw(),
                      .labels = batch.labels.raw(),
                      .totals = totals_.raw(),
                      .step = optimizer_.step_counter().raw(),
                      .failed_step = failed_step_.raw()});
  optimizer_.set_failed_step(failed_step_);  // another trainer may have set its own, or none
  optimizer_.step();
}

void Trainer::begin_epoch(int64_t epoch) {
  train_.start_epoch(epoch);
  totals_.zero_();
}

void Trainer::forget_step_of_other_modes() {
  std::vector<bool> modes;
  for (const Module::Entry& entry : model_.modules()) modes.push_back(entry.module->training());
  for (const Tensor& p : parameters_) modes.push_back(p.requires_grad());
  if (modes == modes_) return;
  modes_ = std::move(modes);
  captured_step_.forget();
}

void Trainer::step() {
  if (train_.next_batch_size() == 0) begin_epoch(train_.position().epoch + 1);
  if (!model_.training()) model_.train();
  const int64_t size = train_.next_batch_size();
  try {
    if (options_.capture && size == train_.options().batch_size) {
      forget_step_of_other_modes();
      captured_step_.run();
    } else {
      enqueue_step(size);
    }
  } catch (...) {
    train_.restore(train_.position());  // the device may have counted the batch already
    throw;
  }
  train_.advance(size);
}

void Trainer::synchronize() {
  with_backend(train_.options().device, [](auto& backend) { gradus::synchronize(backend); });
  throw_if_failed();
}

Metrics Trainer::train_metrics() const { return read_metrics(totals_); }

Metrics Trainer::evaluate(DataLoader& test) {
  return *evaluate(test, [] { return false; });
}

std::optional<Metrics> Trainer::evaluate(DataLoader& test, const std::function<bool()>& stop) {
  const PrecisionGuard precision(options_.precision);
  const NoGradGuard no_grad;
  const EvaluationGuard evaluation(model_);
  return keep_position(test, [&]() -> std::optional<Metrics> {
    test.start_epoch(0);
    const Tensor totals = new_totals(test.options().device);
    while (!stop()) {
      const std::optional<Batch> batch = test.next();
      if (!batch) return read_metrics(totals);
      const Tensor logits = model_(batch->x);
      const Tensor loss = cross_entropy(logits, batch->labels);
      launch(TrackMetrics{.loss = loss.raw(),
                          .logits = dense(logits).raw(),
                          .labels = batch->labels.raw(),
                          .totals = totals.raw()});
    }
    return std::nullopt;
  });
}

bool Trainer::run_epoch() {
  const int64_t steps = train_.batches();
  const auto start = Clock::now();
  const int64_t first_sample = train_.position().samples;
  int64_t done = first_sample / train_.options().batch_size;
  while (train_.next_batch_size() > 0) {
    step();
    ++done;
    const bool stopping = stop_requested();
    if (done % options_.progress_every != 0 && done != steps && !stopping) continue;
    synchronize();
    if (options_.on_progress) {
      const double seconds = seconds_since(start);
      const auto images = static_cast<double>(train_.position().samples - first_sample);
      options_.on_progress({.epoch = train_.position().epoch,
                            .epochs = options_.epochs,
                            .step = done,
                            .steps = steps,
                            .train = train_metrics(),
                            .seconds = seconds,
                            .images_per_second = images / seconds});
    }
    if (stopping) {
      check_state_is_finite();
      return false;
    }
  }
  return true;
}

TrainResult Trainer::run(DataLoader* test) {
  while (train_.position().epoch < options_.epochs) {
    const int64_t first_sample = train_.position().samples;
    const auto start = Clock::now();
    if (!run_epoch()) return TrainResult::interrupted;
    const double seconds = seconds_since(start);
    check_state_is_finite();
    std::optional<Metrics> metrics;
    if (test != nullptr) {
      metrics = evaluate(*test, [this] { return stop_requested(); });
      if (!metrics) return TrainResult::interrupted;
      check_is_finite(*metrics, *test);
    }
    const EpochReport report = make_report(metrics, seconds, first_sample);
    begin_epoch(train_.position().epoch + 1);
    if (options_.on_epoch) options_.on_epoch(report);
    const bool is_last = train_.position().epoch >= options_.epochs;
    if (!is_last && stop_requested()) return TrainResult::interrupted;
  }
  return TrainResult::finished;
}

EpochReport Trainer::make_report(const std::optional<Metrics>& test, double seconds,
                                 int64_t first_sample) {
  const LoaderPosition& at = train_.position();
  const double images = static_cast<double>(at.samples - first_sample);
  const int64_t size = train_.options().batch_size;
  const int64_t steps = (at.samples - first_sample + size - 1) / size;
  EpochReport report{.epoch = at.epoch, .train = train_metrics(), .test = test, .seconds = seconds};
  report.images_per_second = seconds > 0 ? images / seconds : 0;
  report.ms_per_step = steps == 0 ? 0 : 1e3 * seconds / static_cast<double>(steps);
  report.lr = optimizer_.lr();
  report.parameter_hash = parameter_hash(model_);
  return report;
}

}  // namespace gradus::nn
