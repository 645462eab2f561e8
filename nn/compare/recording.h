// What flows through the modules of a network in one forward and backward pass.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/module.h"

namespace gradus::nn {

// One call of a module, without history.
struct ModuleCall {
  std::string path;  // "" for the outermost module
  Module* module = nullptr;
  Tensor x, y;
  Tensor dy;                     // undefined where no gradient arrived
  std::vector<size_t> children;  // calls that it made itself, in order
};

struct Recording {
  std::vector<ModuleCall> calls;  // each after those that it made
  Tensor logits;                  // what the model gave, without history
  double loss = 0;
};

// Runs model(x), and backward from what `finish` makes of its result: a loss of one element, or
// anything else with its upstream gradient.
struct Ending {
  Tensor y;
  Tensor dy;  // undefined: 1
};
Recording record(Module& model, const Tensor& x,
                 const std::function<Ending(const Tensor& y)>& finish);

// The tensors of one module itself, its children's not included: what they were when this was made.
struct OwnTensor {
  std::string name;
  Role role;
  Tensor value;  // a copy, on the CPU
};
using OwnTensors = std::map<const Module*, std::vector<OwnTensor>>;
OwnTensors own_tensors(Module& model);

// Other tensors in the place of a module's own while this lives.
class ReplacedTensors {
 public:
  ReplacedTensors(std::vector<Tensor*> slots, std::vector<Tensor> values);
  ~ReplacedTensors();
  ReplacedTensors(const ReplacedTensors&) = delete;
  ReplacedTensors& operator=(const ReplacedTensors&) = delete;

 private:
  std::vector<Tensor*> slots_;
  std::vector<Tensor> values_;
};

// The whole model on the CPU in `dtype`, with copies of its tensors, while this lives.
class CpuCopy {
 public:
  CpuCopy(Module& model, DType dtype);

 private:
  std::unique_ptr<ReplacedTensors> replaced_;
};

}  // namespace gradus::nn
