#include "nn/module.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "autograd/grad_mode.h"
#include "core/error.h"
#include "nn/forward_observer.h"
#include "nn/match.h"

namespace gradus::nn {
namespace {

thread_local const ForwardObserver* g_observer = nullptr;
thread_local const ForwardReplacement* g_replacement = nullptr;

// A call of a module whose forward is running.
struct Call {
  Module* module;
  std::vector<const Module*> made;  // the modules that it has called itself so far
};

thread_local std::vector<Call> g_running;  // outermost first

class Running {
 public:
  explicit Running(Module& module) {
    if (!g_running.empty()) g_running.back().made.push_back(&module);
    g_running.push_back({&module, {}});
  }
  ~Running() { g_running.pop_back(); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
};

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : name.empty() ? path : path + "." + name;
}

// What `caller` names the module: as a child of its own, or else as one further in.
std::vector<std::string> names_in(Module& caller, const Module* module) {
  std::vector<std::string> names;
  Contents own;
  caller.list(own);
  for (const Contents::Child& child : own.children) {
    if (child.module == module) names.push_back(child.name);
  }
  if (!names.empty()) return names;
  for (const Module::Entry& entry : caller.modules()) {
    if (entry.module == module) names.push_back(entry.path);
  }
  return names;
}

// The name of the call that `caller` has made last. A module of several names has them in turn.
std::string name_of_last(const Call& caller) {
  const std::vector<std::string> names = names_in(*caller.module, caller.made.back());
  if (names.empty()) return "";
  const auto calls = static_cast<size_t>(std::ranges::count(caller.made, caller.made.back()));
  return names[(calls - 1) % names.size()];
}

// The name of the innermost call; "" for the outermost module.
std::string running_name() {
  return g_running.size() < 2 ? "" : name_of_last(g_running[g_running.size() - 2]);
}

std::string running_path() {
  std::string path;
  for (size_t i = 0; i + 1 < g_running.size(); ++i) path = join(path, name_of_last(g_running[i]));
  return path;
}

void append_names(std::string& text, std::string_view what, const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  if (names.empty()) return;
  text += concat(text.empty() ? "" : "; ", what, " ");
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += concat(" and ", names.size() - kShown, " more");
}

bool is_at(const Tensor& tensor, Device device) { return tensor.device() == device; }
bool is_at(const Tensor& tensor, DType dtype) { return tensor.dtype() == dtype; }

// Moves or converts the tensors of a module; those that were one tensor stay one.
class Replacing {
 public:
  // A replacement keeps asking for a gradient if the tensor did; history and gradient stay behind.
  template <class Target>  // Device or DType
  void to(Tensor& tensor, Target target) {
    if (is_at(tensor, target)) return;
    for (const auto& [old, fresh] : done_) {
      if (!is_same(old, tensor) || !is_at(fresh, target)) continue;
      tensor = fresh;
      return;
    }
    Tensor fresh = tensor.to(target).detach();
    if (tensor.requires_grad()) fresh.set_requires_grad(true);
    done_.emplace_back(std::exchange(tensor, fresh), fresh);
  }

 private:
  std::vector<std::pair<Tensor, Tensor>> done_;  // before and after
};

}  // namespace

ForwardObserver::ForwardObserver(Callback callback)
    : callback_(std::move(callback)), outer_(std::exchange(g_observer, this)) {}
ForwardObserver::~ForwardObserver() { g_observer = outer_; }
const ForwardObserver* ForwardObserver::current() { return g_observer; }

ForwardReplacement::ForwardReplacement(Callback callback)
    : callback_(std::move(callback)), outer_(std::exchange(g_replacement, this)) {}
ForwardReplacement::~ForwardReplacement() { g_replacement = outer_; }
const ForwardReplacement* ForwardReplacement::current() { return g_replacement; }

std::string to_string(const LoadReport& report) {
  std::string text;
  append_names(text, "missing", report.missing);
  append_names(text, "unexpected", report.unexpected);
  append_names(text, "mismatched", report.mismatched);
  return text.empty() ? "all keys matched" : text;
}

Tensor Module::operator()(const Tensor& x) {
  if (const ForwardReplacement* other = ForwardReplacement::current()) return (*other)(*this, x);
  const Running running(*this);
  Tensor y;
  try {
    y = forward(x);
  } catch (const Error& error) {
    const std::string name = error.code() == ErrorCode::out_of_memory ? "" : running_name();
    if (name.empty()) throw;
    throw Error(error.code(), concat(name, ".", error.what()));
  }
  if (const ForwardObserver* observer = ForwardObserver::current()) {
    observer->notify({running_path(), *this, x, y});
  }
  return y;
}

std::vector<Module::Entry> Module::modules() {
  std::vector<Entry> entries{{"", this}};
  Contents own;
  list(own);
  for (const Contents::Child& child : own.children) {
    for (Entry& inner : child.module->modules()) {
      entries.push_back({join(child.name, inner.path), inner.module});
    }
  }
  return entries;
}

std::vector<Module::Slot> Module::slots() {
  std::vector<Slot> all;
  for (const Entry& entry : modules()) {
    Contents own;
    entry.module->list(own);
    for (Contents::Item& item : own.tensors) {
      std::string path = join(entry.path, item.name);
      all.push_back({std::move(path), std::move(item)});
    }
  }
  return all;
}

void Module::train(bool on) {
  for (const Entry& entry : modules()) entry.module->training_ = on;
}

void Module::to(Device device) {
  Replacing replacing;
  for (const Slot& slot : slots()) replacing.to(*slot.item.tensor, device);
}

void Module::to(DType dtype) {
  check(is_floating(dtype), "to", "expected a floating dtype, got ", dtype);
  Replacing replacing;
  for (const Slot& slot : slots()) {
    const DType wanted = slot.item.stored == Stored::acc ? acc_dtype(dtype) : dtype;
    if (is_floating(slot.item.tensor->dtype())) replacing.to(*slot.item.tensor, wanted);
  }
}

std::vector<NamedTensor> Module::state_dict() {
  std::vector<NamedTensor> result;
  for (Slot& slot : slots()) result.push_back({std::move(slot.path), *slot.item.tensor});
  return result;
}

std::vector<NamedTensor> Module::named_parameters() {
  std::vector<NamedTensor> result;
  for (Slot& slot : slots()) {
    const Tensor& tensor = *slot.item.tensor;
    const auto is_listed = [&](const NamedTensor& entry) { return is_same(entry.tensor, tensor); };
    if (slot.item.role != Role::parameter || std::ranges::any_of(result, is_listed)) continue;
    result.push_back({std::move(slot.path), tensor});
  }
  return result;
}

std::vector<Tensor> Module::parameters() {
  std::vector<Tensor> result;
  for (NamedTensor& entry : named_parameters()) result.push_back(std::move(entry.tensor));
  return result;
}

SumLengths Module::sum_lengths(const Shape& x, const Shape& y) {
  int64_t longest = std::max(x.numel(), y.numel());
  Contents own;
  list(own);
  for (const Contents::Item& item : own.tensors) {
    longest = std::max(longest, item.tensor->numel());
  }
  return {.y = longest, .dx = longest, .parameters = longest, .rounds_between = true};
}

int64_t Module::parameter_count() {
  int64_t count = 0;
  for (const Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

LoadReport Module::load_state_dict(const std::vector<NamedTensor>& source, bool strict) {
  std::unordered_map<std::string_view, const Tensor*> given;
  for (const NamedTensor& entry : source) given.emplace(entry.name, &entry.tensor);
  LoadReport report;
  std::vector<std::pair<Tensor, const Tensor*>> copies;
  for (const NamedTensor& own : state_dict()) {
    const auto found = given.find(own.name);
    if (found == given.end()) {
      report.missing.push_back(own.name);
      continue;
    }
    const Tensor& value = *found->second;
    given.erase(found);
    if (value.shape() == own.tensor.shape()) {
      copies.emplace_back(own.tensor, &value);
    } else {
      report.mismatched.push_back(
          concat(own.name, " expected ", own.tensor.shape(), ", got ", value.shape()));
    }
  }
  for (const NamedTensor& entry : source) {
    if (given.contains(entry.name)) report.unexpected.push_back(entry.name);
  }
  check(!strict || report.ok(), "load_state_dict", report);
  const NoGradGuard no_grad;
  for (auto& [target, value] : copies) target.copy_(*value);
  return report;
}

void Module::zero_grad() {
  for (Tensor& parameter : parameters()) parameter.zero_grad();
}

}  // namespace gradus::nn
