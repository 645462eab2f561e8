// What optimizers share: the parameters, a step counter and a learning rate that live on the
// device, and the state that a resume file keeps.
//
//   nn::SGD optimizer(model.named_parameters(), {.lr = 0.1, .momentum = 0.9});
//   loss.backward();
//   optimizer.step();
//   optimizer.zero_grad();
#pragma once

#include <string>
#include <vector>

#include "nn/module.h"
#include "nn/optim/schedule.h"

namespace gradus::nn {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that asks for a gradient and has one, and counts the step for each of
  // them. Enqueues only, unless other parameters have gradients than in the step before: it may be
  // captured after an eager step of the same ones. One that throws, as for want of memory, is not
  // counted and may be tried again. What it had changed by then stays: parameters of the dtypes
  // that came first, Muon's momentum; graphs of before count all of them as changed.
  void step();
  void zero_grad();  // forgets the gradients, so that the next backward writes and does not add

  // The rate of all further steps, captured ones too; drops a schedule.
  void set_lr(double lr);
  // Rates of steps 0 to total_steps - 1; later steps keep the last one. Counts all steps so far.
  // A step that is captured keeps the table that it was captured with.
  void set_schedule(const Schedule& schedule, int64_t total_steps);
  // Both wait for the device: the rate of the last step begun, and the number of steps done.
  double lr() const;
  int64_t steps() const;

  // Steps change nothing while this i64 [1] tensor on the parameters' device is 0 or more.
  void set_failed_step(Tensor failed_step);
  const Tensor& step_counter() const { return step_; }

  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  Device device() const { return step_.device(); }

  virtual std::string_view name() const = 0;  // "sgd"
  // Waits for the device. Copies, on the host, of everything that later steps depend on beside the
  // parameters: "step", "lr", "schedule", "momentum_buffer.0.weight", ...
  std::vector<NamedTensor> state() const;
  // Takes back what state() gave, on any device and in any order. Throws invalid_argument naming
  // the first difference and changes nothing then.
  void load_state(const std::vector<NamedTensor>& state);
  void check_state(const std::vector<NamedTensor>& state) const;  // throws where load_state would
  // The settings in one line, to tell whether two runs are the same.
  virtual std::string settings() const = 0;

 protected:
  Optimizer(std::vector<NamedTensor> parameters, double lr);  // checks both; names differ

  // Updates the parameters `active`, by index; grads[i] is dense in the format of parameter i.
  virtual void update(const std::vector<size_t>& active, const std::vector<Tensor>& grads) = 0;
  // One more tensor like each parameter, part of the state.
  virtual std::vector<NamedTensor> buffers() const { return {}; }

  const Tensor& lr_tensor() const { return lr_; }
  const Tensor& failed_step() const { return failed_step_; }
  int64_t born(size_t i) const { return born_[i]; }

 private:
  std::vector<NamedTensor> live_state() const;  // the tensors themselves, but for "born"
  void replace_schedule(Tensor table);
  void note_active(const std::vector<size_t>& active);
  std::vector<int64_t> born_now() const;  // with the steps that idle parameters have missed
  void uncount_step();

  std::vector<NamedTensor> parameters_;
  std::vector<int64_t> born_;        // steps begun without a parameter; -1 before its first
  std::vector<int64_t> idle_since_;  // steps begun when it last had no part; -1: it had one
  bool fresh_ = true;                // no step has begun
  Tensor step_;                      // [1], i64
  Tensor step_copy_;                 // [1], f64: there so that uncount_step() needs no memory
  Tensor lr_;                        // [1], f64
  Tensor schedule_;                  // [total_steps], f64; undefined for a fixed rate
  std::vector<Tensor> replaced_schedules_;  // a captured step may read them still
  Tensor failed_step_;                      // [1], i64; may be undefined
};

// Parameters named "0", "1", ... for callers that have no names.
std::vector<NamedTensor> number(std::vector<Tensor> parameters);

}  // namespace gradus::nn
