#include "nn/compare/recording.h"

#include <set>
#include <utility>

#include "core/error.h"
#include "nn/forward_observer.h"
#include "nn/host_copy.h"

namespace gradus::nn {
namespace {

bool is_inside(const std::string& path, const std::string& parent) {
  return parent.empty() || path.starts_with(parent + ".");
}

}  // namespace

Recording record(Module& model, const Tensor& x,
                 const std::function<Ending(const Tensor& y)>& finish) {
  Recording recording;
  auto dys = std::make_shared<std::vector<Tensor>>();
  std::vector<size_t> open;  // calls whose caller has not ended yet
  std::set<const Module*> listed;
  for (const Module::Entry& entry : model.modules()) listed.insert(entry.module);
  Ending ending;
  {
    const ForwardObserver observer([&](const ForwardEvent& event) {
      // It has no path, by which calls are told to belong to their caller, and its tensors are not
      // known.
      check(listed.contains(&event.module), "compare", "the ", event.module.kind(),
            " that is called here is in list() of no module");
      const size_t index = recording.calls.size();
      ModuleCall call{.path = event.path, .module = &event.module};
      call.x = event.x.detach(), call.y = event.y.detach();
      size_t first = open.size();
      while (first > 0 && is_inside(recording.calls[open[first - 1]].path, event.path)) --first;
      call.children.assign(open.begin() + static_cast<std::ptrdiff_t>(first), open.end());
      open.resize(first);
      open.push_back(index);
      recording.calls.push_back(std::move(call));
      dys->emplace_back();
      if (!event.y.requires_grad()) return;
      event.y.register_hook([dys, index](const Tensor& dy) {
        (*dys)[index] = dy;
        return Tensor();
      });
    });
    const Tensor y = model(x);
    recording.logits = y.detach();
    ending = finish(y);
  }
  ending.y.backward(ending.dy);
  if (ending.y.numel() == 1) recording.loss = ending.y.item<double>();
  for (size_t i = 0; i < dys->size(); ++i) recording.calls[i].dy = std::move((*dys)[i]);
  return recording;
}

OwnTensors own_tensors(Module& model) {
  OwnTensors all;
  for (const Module::Entry& entry : model.modules()) {
    Contents own;
    entry.module->list(own);
    std::vector<OwnTensor>& tensors = all[entry.module];
    tensors.clear();
    for (const Contents::Item& item : own.tensors) {
      tensors.push_back({item.name, item.role, host_copy(*item.tensor)});
    }
  }
  return all;
}

ReplacedTensors::ReplacedTensors(std::vector<Tensor*> slots, std::vector<Tensor> values)
    : slots_(std::move(slots)), values_(std::move(values)) {
  check(slots_.size() == values_.size(), "compare", "expected ", slots_.size(), " tensors, got ",
        values_.size());
  for (size_t i = 0; i < slots_.size(); ++i) std::swap(*slots_[i], values_[i]);
}

ReplacedTensors::~ReplacedTensors() {
  for (size_t i = slots_.size(); i-- > 0;) std::swap(*slots_[i], values_[i]);
}

CpuCopy::CpuCopy(Module& model, DType dtype) {
  std::vector<Tensor*> slots;
  std::vector<Tensor> values;
  for (const Module::Entry& entry : model.modules()) {
    Contents own;
    entry.module->list(own);
    for (const Contents::Item& item : own.tensors) {
      Tensor value = host_copy(*item.tensor);
      if (is_floating(value.dtype())) {
        value = value.to(item.stored == Stored::acc ? acc_dtype(dtype) : dtype);
      }
      if (item.tensor->requires_grad()) value.set_requires_grad(true);
      slots.push_back(item.tensor);
      values.push_back(std::move(value));
    }
  }
  replaced_ = std::make_unique<ReplacedTensors>(std::move(slots), std::move(values));
}

}  // namespace gradus::nn
