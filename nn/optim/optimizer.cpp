#include "nn/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/grad_mode.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/arithmetic.h"
#include "core/ops/copy.h"
#include "core/ops/schedule_step.h"
#include "core/share_memory.h"
#include "nn/host_copy.h"
#include "nn/match.h"

namespace gradus::nn {
namespace {

Tensor born_tensor(const std::vector<int64_t>& born) {
  return Tensor::from_vector(born, {static_cast<int64_t>(born.size())});
}

// Of tensors that are dense.
bool share_elements(const Tensor& a, const Tensor& b) {
  const AnyView x = a.raw(), y = b.raw();
  return share_memory(x.data, x.nbytes(), y.data, y.nbytes());
}

void check_parameters(const std::vector<NamedTensor>& parameters) {
  check(!parameters.empty(), "optimizer", "expected at least one parameter");
  const Device device = parameters.front().tensor.device();
  for (const NamedTensor& p : parameters) {
    check(is_floating(p.tensor.dtype()) && p.tensor.is_leaf(), "optimizer", "parameter ", p.name,
          " must be a floating leaf, got ", p.tensor);
    check(p.tensor.device() == device, "optimizer", "all parameters must be on one device, but ",
          p.name, " is ", p.tensor, " and ", parameters.front().name, " is ",
          parameters.front().tensor);
    format_of(p.tensor.raw(), "optimizer");  // throws where it is not dense
    for (const NamedTensor& other : parameters) {
      if (&other == &p) break;
      check(!is_same(other.tensor, p.tensor), "optimizer", other.name, " and ", p.name,
            " are one parameter, which would be stepped twice");
      check(!share_elements(other.tensor, p.tensor), "optimizer", other.name, " and ", p.name,
            " share memory, which would be stepped twice");
      check(other.name != p.name, "optimizer", "two parameters are named ", p.name);
    }
  }
}

void check_rate(double lr, std::string_view op) {
  check(std::isfinite(lr) && lr >= 0, op, "expected a learning rate of 0 or more, got ", lr);
}

void check_same_rates(const Tensor& own, const Tensor& saved, std::string_view name) {
  const auto a = own.to_vector<double>(), b = saved.to_vector<double>();
  for (size_t t = 0; t < a.size(); ++t) {
    check(a[t] == b[t], name, "the learning rate of step ", t, " is ", a[t], " in this run and ",
          b[t], " in the saved state");
  }
}

// Kernels index the schedule by the step.
void check_counters(int64_t step, const std::vector<int64_t>& born, std::string_view name) {
  check(step >= 0 && step <= int64_t{1} << 62, name, "step must be 0 to 2^62, got ", step,
        " in the saved state");
  for (const int64_t b : born) {
    check(b >= -1 && b <= step, name, "born must be -1 to ", step, ", the steps done, got ", b,
          " in the saved state");
  }
}

}  // namespace

std::vector<NamedTensor> number(std::vector<Tensor> parameters) {
  std::vector<NamedTensor> named;
  for (Tensor& p : parameters) named.push_back({std::to_string(named.size()), std::move(p)});
  return named;
}

Optimizer::Optimizer(std::vector<NamedTensor> parameters, double lr)
    : parameters_(std::move(parameters)),
      born_(parameters_.size(), -1),
      idle_since_(parameters_.size(), -1) {
  check_parameters(parameters_);
  const Device device = parameters_.front().tensor.device();
  step_ = Tensor::zeros({1}, {.dtype = DType::i64, .device = device});
  lr_ = Tensor::zeros({1}, {.dtype = DType::f64, .device = device});
  step_copy_ = zeros_like(lr_);
  set_lr(lr);
}

void Optimizer::set_lr(double lr) {
  check_rate(lr, "optimizer");
  replace_schedule(Tensor());
  lr_.fill_(lr);
  for (Tensor& table : replaced_schedules_) table.fill_(lr);  // of captured steps
}

void Optimizer::set_schedule(const Schedule& schedule, int64_t total_steps) {
  check(schedule != nullptr, "optimizer", "expected a schedule, got an empty function");
  check(total_steps > 0, "optimizer", "total_steps must be positive, got ", total_steps);
  std::vector<double> rates;
  for (int64_t t = 0; t < total_steps; ++t) {
    rates.push_back(schedule(t));
    check(std::isfinite(rates.back()) && rates.back() >= 0, "optimizer",
          "the schedule gave the learning rate ", rates.back(), " for step ", t);
  }
  replace_schedule(Tensor::from_vector(rates, {total_steps}).to(device()));
}

void Optimizer::replace_schedule(Tensor table) {
  if (schedule_.defined()) replaced_schedules_.push_back(schedule_);
  schedule_ = std::move(table);
}

double Optimizer::lr() const { return lr_.item<double>(); }
int64_t Optimizer::steps() const { return step_.item<int64_t>(); }

void Optimizer::set_failed_step(Tensor failed_step) {
  check(!failed_step.defined() || (failed_step.numel() == 1 && failed_step.dtype() == DType::i64 &&
                                   failed_step.device() == device()),
        "optimizer", "failed_step must be one i64 on ", device(), ", got ", failed_step);
  failed_step_ = std::move(failed_step);
}

// Steps in which a parameter has no part are none of its own: they are added to born_ when it has
// one again.
void Optimizer::note_active(const std::vector<size_t>& active) {
  std::vector<bool> is_active(born_.size());
  for (const size_t i : active) is_active[i] = true;
  const auto changes = [&](size_t i) {
    return is_active[i] ? born_[i] < 0 || idle_since_[i] >= 0 : born_[i] >= 0 && idle_since_[i] < 0;
  };
  std::vector<size_t> changed;
  for (size_t i = 0; i < born_.size(); ++i) {
    if (changes(i)) changed.push_back(i);
  }
  if (changed.empty()) return;
  const int64_t now = fresh_ ? 0 : steps();  // reading waits for the device
  for (const size_t i : changed) {
    if (!is_active[i]) {
      idle_since_[i] = now;
    } else if (born_[i] < 0) {
      born_[i] = now;
    } else {
      born_[i] += now - std::exchange(idle_since_[i], -1);
    }
  }
}

std::vector<int64_t> Optimizer::born_now() const {
  std::vector<int64_t> born = born_;
  const auto is_idle = [](int64_t since) { return since >= 0; };
  if (std::ranges::none_of(idle_since_, is_idle)) return born;
  const int64_t now = steps();  // reading waits for the device
  for (size_t i = 0; i < born.size(); ++i) {
    if (is_idle(idle_since_[i])) born[i] += now - idle_since_[i];
  }
  return born;
}

// Without memory and without waiting; in f64, since arithmetic is for floating dtypes: exact up to
// 2^53 steps.
void Optimizer::uncount_step() {
  launch(Copy{.x = step_.raw(), .y = step_copy_.raw()});
  launch(Affine{.x = step_copy_.raw(), .y = step_copy_.raw(), .shift = -1.0});
  launch(Copy{.x = step_copy_.raw(), .y = step_.raw()});
}

void Optimizer::step() {
  const NoGradGuard no_grad;
  std::vector<size_t> active;
  std::vector<Tensor> grads(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i].tensor;
    const Tensor grad = p.grad();
    if (!p.requires_grad() || !grad.defined()) continue;
    grads[i] = dense(grad, format_of(p.raw(), "optimizer"));
    active.push_back(i);
  }
  const std::vector<int64_t> born = born_, idle_since = idle_since_;
  note_active(active);
  fresh_ = false;
  launch(ScheduleStep{.table = schedule_.raw(), .step = step_.raw(), .lr = lr_.raw()});
  if (active.empty()) return;
  // Before the update: one that throws half-way has changed some of them.
  for (const size_t i : active) parameters_[i].tensor.storage()->bump_version();
  try {
    update(active, grads);
  } catch (...) {
    born_ = born, idle_since_ = idle_since;
    try {
      uncount_step();
    } catch (const Error&) {  // the device is lost: the first error says why
    }
    throw;
  }
}

void Optimizer::zero_grad() {
  for (NamedTensor& p : parameters_) p.tensor.zero_grad();
}

std::vector<NamedTensor> Optimizer::state() const { return host_copies(live_state()); }

std::vector<NamedTensor> Optimizer::live_state() const {
  std::vector<NamedTensor> all{{"step", step_}, {"lr", lr_}, {"born", born_tensor(born_now())}};
  if (schedule_.defined()) all.push_back({"schedule", schedule_});
  for (NamedTensor& buffer : buffers()) all.push_back(std::move(buffer));
  return all;
}

void Optimizer::check_state(const std::vector<NamedTensor>& source) const {
  const std::vector<NamedTensor> own = live_state();
  const std::vector<Tensor> values = match_by_name(own, source, name());
  int64_t step = 0;
  std::vector<int64_t> born;
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].name == "step") step = values[i].item<int64_t>();
    if (own[i].name == "lr") check_rate(values[i].item<double>(), name());
    if (own[i].name == "born") born = values[i].to_vector<int64_t>();
    if (own[i].name == "schedule") check_same_rates(schedule_, values[i], name());
  }
  check_counters(step, born, name());
}

void Optimizer::load_state(const std::vector<NamedTensor>& source) {
  check_state(source);
  const std::vector<NamedTensor> own = live_state();
  const std::vector<Tensor> values = match_by_name(own, source, name());
  const NoGradGuard no_grad;
  fresh_ = false;
  std::ranges::fill(idle_since_, -1);
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].name == "born") {
      born_ = values[i].to_vector<int64_t>();
    } else {
      Tensor(own[i].tensor).copy_(values[i]);
    }
  }
}

}  // namespace gradus::nn
