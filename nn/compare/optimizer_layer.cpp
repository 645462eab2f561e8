#include "nn/compare/optimizer_layer.h"

#include <algorithm>

#include "autograd/grad_mode.h"
#include "nn/compare/recording.h"
#include "nn/match.h"

namespace gradus::nn {
namespace {

using Kind = ComparedLayer::Input::Kind;

// Where the model keeps a parameter: a shared one has several places.
struct Slot {
  Tensor* place;
  size_t parameter;  // its index
};

std::vector<Slot> parameter_slots(Module& model, const std::vector<NamedTensor>& parameters) {
  std::vector<Slot> slots;
  for (const Module::Entry& entry : model.modules()) {
    Contents own;
    entry.module->list(own);
    for (const Contents::Item& item : own.tensors) {
      if (item.role != Role::parameter) continue;
      const auto is_it = [&](const NamedTensor& p) { return is_same(p.tensor, *item.tensor); };
      const auto found = std::ranges::find_if(parameters, is_it) - parameters.begin();
      slots.push_back({item.tensor, static_cast<size_t>(found)});
    }
  }
  return slots;
}

// Counters and rates are inputs only; moments are compared.
bool is_moment(const std::string& name) { return name.find('.') != std::string::npos; }

}  // namespace

ComparedLayer layer_of(Module& model, const Optimizer& optimizer, const MakeOptimizer& make) {
  ComparedLayer layer{.layer = std::string(optimizer.name()), .path = "optimizer"};
  const std::vector<NamedTensor> parameters = model.named_parameters();
  const std::vector<Slot> slots = parameter_slots(model, parameters);
  std::vector<bool> has_grad;
  int64_t largest = 1;
  for (const NamedTensor& p : parameters) {
    layer.inputs.push_back({p.name, p.tensor.detach().clone(), Kind::buffer});
    largest = std::max(largest, p.tensor.numel());
  }
  for (const NamedTensor& p : parameters) {
    const Tensor grad = p.tensor.grad();
    has_grad.push_back(grad.defined());
    if (grad.defined()) layer.inputs.push_back({"d" + p.name, grad.clone(), Kind::value});
  }
  std::vector<std::string> names;
  for (const NamedTensor& state : optimizer.state()) {
    names.push_back(state.name);
    const Kind kind = is_moment(state.name) ? Kind::buffer : Kind::constant;
    layer.inputs.push_back({state.name, state.tensor, kind});
  }
  // Muon multiplies matrices; the others take each value by itself.
  layer.lengths = {.y = optimizer.name() == "muon" ? largest : 1};
  layer.forward = [&model, slots, has_grad, names, make](std::span<const Tensor> in) {
    std::vector<Tensor> values, placed;
    size_t next = has_grad.size();
    for (size_t i = 0; i < has_grad.size(); ++i) {
      values.push_back(in[i].detach());  // the same memory
      values.back().set_requires_grad(true);
      if (has_grad[i]) values.back().set_grad(in[next++]);
    }
    std::vector<Tensor*> places;
    for (const Slot& slot : slots) {
      places.push_back(slot.place);
      placed.push_back(values[slot.parameter]);
    }
    const ReplacedTensors replaced(std::move(places), std::move(placed));
    const std::unique_ptr<Optimizer> optimizer = make(model);
    std::vector<NamedTensor> state;
    for (size_t i = 0; i < names.size(); ++i) state.push_back({names[i], in[next + i]});
    optimizer->load_state(state);
    optimizer->step();
    const NoGradGuard no_grad;
    for (const NamedTensor& after : optimizer->state()) {
      const auto at = std::ranges::find(names, after.name) - names.begin();
      if (is_moment(after.name)) Tensor(in[next + static_cast<size_t>(at)]).copy_(after.tensor);
    }
    return std::vector<Tensor>();
  };
  return layer;
}

}  // namespace gradus::nn
