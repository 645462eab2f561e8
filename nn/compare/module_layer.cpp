#include "nn/compare/module_layer.h"

#include "core/error.h"
#include "core/trace.h"
#include "nn/forward_observer.h"
#include "nn/rms_norm.h"

namespace gradus::nn {
namespace {

using Input = ComparedLayer::Input;

// RMSNorm without an eps takes that of x's dtype: while this lives, that of the dtype compared, so
// that the reference in f64 computes the same function.
class SameEps {
 public:
  SameEps(Module& module, DType dtype) : norm_(dynamic_cast<RMSNorm*>(&module)) {
    if (norm_ == nullptr) return;
    before_ = norm_->eps;
    if (!before_ && is_floating(dtype)) norm_->eps = 2 * unit_roundoff(dtype);
  }
  ~SameEps() {
    if (norm_ != nullptr) norm_->eps = before_;
  }
  SameEps(const SameEps&) = delete;
  SameEps& operator=(const SameEps&) = delete;

 private:
  RMSNorm* norm_;
  std::optional<double> before_;
};

// Runs the module's forward with these of its own tensors and these results of its children.
struct Replay {
  const Recording* recording;
  const ModuleCall* call;
  size_t own = 0;  // how many tensors are the module's

  // y, then what each child was given.
  std::vector<Tensor> operator()(std::span<const Tensor> in) const {
    Contents contents;
    call->module->list(contents);
    std::vector<Tensor*> slots;
    for (const Contents::Item& item : contents.tensors) slots.push_back(item.tensor);
    const auto first = in.begin() + 1;
    const auto last = first + static_cast<std::ptrdiff_t>(own);
    const ReplacedTensors replaced(std::move(slots), {first, last});
    std::vector<Tensor> outputs(1);
    const ForwardReplacement children([&](Module& child, const Tensor& x) {
      const size_t next = outputs.size() - 1;
      check(next < call->children.size() && recording->calls[call->children[next]].module == &child,
            "compare", "module '", call->path, "' (", call->module->kind(),
            ") did not call its children in the same order again");
      outputs.push_back(x);
      return in[1 + own + next];
    });
    const SameEps eps(*call->module, call->x.dtype());
    try {
      outputs[0] = call->module->forward(in[0]);
    } catch (const Error& error) {
      throw Error(error.code(), concat("compare: module '", call->path, "' (", call->module->kind(),
                                       "): ", error.what()));
    }
    return outputs;
  }
};

bool is_one_of(const Tensor& y, std::span<const Tensor> operands) {
  for (const Tensor& x : operands) {
    if (y.grad_state() != nullptr && y.grad_state() == x.grad_state()) return true;
    if (y.grad_state() == nullptr && y.storage() == x.storage()) return true;
  }
  return false;
}

// The gradient for what child `index` was given, as the child itself gives it.
Tensor gradient_of_input(const Recording& recording, size_t index, const OwnTensors& tensors) {
  const ModuleCall& call = recording.calls[index];
  const std::optional<ComparedLayer> layer = layer_of(recording, index, tensors);
  if (layer && call.children.empty()) return run_layer(*layer, kCpu, false).grads.at(0);
  return {};  // of a module without arithmetic, or whose input goes to others first
}

}  // namespace

std::optional<ComparedLayer> layer_of(const Recording& recording, size_t index,
                                      const OwnTensors& tensors) {
  const ModuleCall& call = recording.calls[index];
  ComparedLayer layer{.layer = std::string(call.module->kind()),
                      .path = call.path,
                      .case_name = call.children.empty() ? "" : "own",
                      .dtype = call.x.dtype()};
  layer.inputs.push_back({"x", call.x, Input::Kind::x});
  const std::vector<OwnTensor>& own = tensors.at(call.module);
  for (const OwnTensor& tensor : own) {
    const bool trained = tensor.role == Role::parameter;
    layer.inputs.push_back(
        {tensor.name, tensor.value, trained ? Input::Kind::parameter : Input::Kind::buffer});
  }
  for (const size_t child : call.children) {
    const ModuleCall& given = recording.calls[child];
    layer.inputs.push_back({"y of " + given.path, given.y, Input::Kind::x});
  }
  const Replay replay{&recording, &call, own.size()};

  // Once, to see what it computes itself.
  const std::vector<Tensor> operands = operands_of(layer, kCpu, false);
  std::vector<size_t> computed;
  {
    const Trace trace;
    const std::vector<Tensor> outputs = replay(operands);
    if (trace.records().empty()) return std::nullopt;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!is_one_of(outputs[i], operands)) computed.push_back(i);
    }
  }
  if (computed.empty()) return std::nullopt;
  for (const size_t i : computed) {
    if (i == 0) {
      layer.outputs.push_back({"y", call.dy});
    } else {
      const size_t child = call.children[i - 1];
      layer.outputs.push_back(
          {"x of " + recording.calls[child].path, gradient_of_input(recording, child, tensors)});
    }
  }
  layer.forward = [replay, computed](std::span<const Tensor> in) {
    const std::vector<Tensor> all = replay(in);
    std::vector<Tensor> outputs;
    for (const size_t i : computed) outputs.push_back(all[i]);
    return outputs;
  };
  layer.lengths = call.module->sum_lengths(call.x.shape(), call.y.shape());
  layer.for_itself = layer.inputs.size() == 1 && layer.lengths.y == 1;
  return layer;
}

}  // namespace gradus::nn
