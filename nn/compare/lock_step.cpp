#include "nn/compare/lock_step.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops/cross_entropy.h"
#include "nn/compare/loss_layer.h"
#include "nn/compare/module_layer.h"
#include "nn/compare/numbers.h"
#include "nn/compare/optimizer_layer.h"

namespace gradus {
namespace {

using nn::MakeOptimizer;

// A model that trains by itself.
struct Run {
  std::unique_ptr<nn::Module> model;
  std::unique_ptr<nn::Optimizer> optimizer;
};

// The same training without lock-step, on another device or in f64.
class FreeRun {
 public:
  FreeRun(std::unique_ptr<nn::Module> model, const MakeOptimizer& make, Device device)
      : device_(device), dtype_(device == kCpu ? DType::f64 : DType::f32) {
    run_.model = std::move(model);
    if (dtype_ != DType::f32) run_.model->to(dtype_);
    run_.model->to(device);
    run_.model->train();
    run_.optimizer = make(*run_.model);
  }

  DType dtype() const { return dtype_; }
  nn::Module& model() { return *run_.model; }

  double step(const nn::Batch& batch) {
    const Tensor x = batch.x.to(dtype_).to(device_);
    const Tensor loss = cross_entropy((*run_.model)(x), batch.labels.to(device_));
    run_.optimizer->zero_grad();
    loss.backward();
    run_.optimizer->step();
    return loss.item<double>();
  }

 private:
  Run run_;
  Device device_;
  DType dtype_;
};

double distance(nn::Module& a, nn::Module& b) {
  const std::vector<Tensor> of_a = a.parameters(), of_b = b.parameters();
  double squares = 0, difference = 0;
  for (size_t i = 0; i < of_a.size(); ++i) {
    const Numbers x(of_a[i]), y(of_b[i]);
    for (size_t k = 0; k < x.size(); ++k) {
      squares += x[k] * x[k];
      difference += (x[k] - y[k]) * (x[k] - y[k]);
    }
  }
  return squares > 0 ? std::sqrt(difference / squares) : 0;
}

// Keeps the worst of each layer and direction over the steps.
void note(CompareTraining& train, const CompareRow& row, CompareDirection direction, double share,
          int64_t step) {
  for (CompareTraining::Layer& layer : train.layers) {
    if (layer.path != row.path || layer.layer != row.layer || layer.direction != direction)
      continue;
    if (share > layer.of_allowed) layer.of_allowed = share, layer.step = step;
    return;
  }
  train.layers.push_back({row.layer, row.path, direction, share, step});
}

// Looks at one direction of a row. The first value beyond its tolerance is where the two part; one
// that is extreme on all sides is where the training ends.
void look(CompareTraining& train, const CompareRow& row, CompareDirection direction, int64_t step) {
  double share = -1;
  for (const CompareValue& value : row.values) {
    if (value.direction != direction || train.diverged) continue;
    const auto at = [&](const CompareError& error) {
      return CompareParting{step, row.layer, row.path, value.name, direction, value.shape, error};
    };
    for (const CompareError& error : value.errors) {
      share = std::max(share, error.of_allowed);
      if (!error.ok && !train.parted) train.parted = at(error);
    }
    const bool extreme = std::ranges::all_of(value.errors, &CompareError::extreme);
    if (extreme && !train.parted) train.diverged = at(value.errors.front());
  }
  if (share >= 0 && !train.diverged) note(train, row, direction, share, step);
}

// Forward through the layers, backward in the opposite order; the last row is the optimizer's.
void look_at_all(CompareTraining& train, const std::vector<CompareRow>& rows, int64_t step) {
  using enum CompareDirection;
  const size_t layers = rows.size() - 1;
  for (size_t i = 0; i < layers; ++i) look(train, rows[i], forward, step);
  for (size_t i = layers; i-- > 0;) look(train, rows[i], backward, step);
  look(train, rows.back(), forward, step);
}

std::string diverged_text(const CompareParting& at) {
  return concat("The training has diverged at step ", at.step, ": ", at.value, " of ", at.path,
                at.path.empty() ? "" : " ", at.layer, " (", to_string(at.direction), ") has ",
                at.error.extreme,
                " values that are not finite, or beyond 2^50, on all sides alike; what follows was "
                "not compared.");
}

// One step of the CPU's training, each layer of it and the optimizer judged.
double locked_step(Run& run, const nn::Batch& batch, const MakeOptimizer& make,
                   const JudgeOptions& judge, std::vector<CompareRow>& rows) {
  const nn::OwnTensors tensors = nn::own_tensors(*run.model);
  run.optimizer->zero_grad();
  Tensor x = operand(batch.x, kCpu, false).set_requires_grad(true);
  const nn::Recording recording = nn::record(*run.model, x, [&](const Tensor& y) {
    return nn::Ending{cross_entropy(y, batch.labels), {}};
  });
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    if (const auto layer = nn::layer_of(recording, i, tensors)) {
      rows.push_back(judge_layer(*layer, judge));
    }
  }
  rows.push_back(judge_layer(nn::loss_layer(recording.logits, batch.labels), judge));
  rows.push_back(judge_layer(nn::layer_of(*run.model, *run.optimizer, make), judge));
  run.optimizer->step();
  return recording.loss;
}

}  // namespace

CompareReport compare_training(const std::function<std::unique_ptr<nn::Module>()>& make_model,
                               const MakeOptimizer& make_optimizer,
                               const std::function<nn::Batch()>& next_batch,
                               const LockStepOptions& options) {
  check(options.steps > 0, "compare", "steps must be positive, got ", options.steps);
  CompareReport report{.what = "train", .tolerance = options.tolerance};
  JudgeOptions judge{.tolerance = options.tolerance, .differences = false};
  judge.devices = compared_devices(report.missing, "the CPU's f32 is held against its f64");
  for (const Device device : judge.devices) {
    report.devices.push_back({.device = device, .text = to_string(device)});
  }
  Run run{.model = make_model(), .optimizer = nullptr};
  run.model->train();
  run.optimizer = make_optimizer(*run.model);
  report.model = run.model->kind();
  const Device other = judge.devices.back();
  FreeRun free_run(make_model(), make_optimizer, other);
  CompareTraining train{.steps_asked = options.steps,
                        .optimizer = std::string(run.optimizer->name())};
  train.drift_device = other;
  train.drift_dtype = free_run.dtype();
  for (int64_t step = 1; step <= options.steps && !train.parted; ++step) {
    const nn::Batch batch = next_batch();
    check(batch.labels.defined(), "compare", "lock-step training needs labels");
    train.batch_size = batch.x.size(0);
    std::vector<CompareRow> rows;
    const double loss = locked_step(run, batch, make_optimizer, judge, rows);
    look_at_all(train, rows, step);
    if (!train.diverged || std::ranges::all_of(rows, &CompareRow::ok)) report.rows = rows;
    if (train.diverged) {
      report.missing.push_back(diverged_text(*train.diverged));
      break;
    }
    const double other_loss = free_run.step(batch);
    train.drift.push_back({step, loss, other_loss, distance(*run.model, free_run.model())});
    train.steps_done = train.parted ? step - 1 : step;
    if (options.on_step) options.on_step(step, loss);
  }
  report.train = std::move(train);
  return report;
}

}  // namespace gradus
