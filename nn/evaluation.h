// Looking at a model with other data, and leaving model and data as they were.
#pragma once

#include <utility>
#include <vector>

#include "nn/data/loader.h"
#include "nn/module.h"

namespace gradus::nn {

// While alive, the module and everything in it are in evaluation mode; then each part is in the
// mode that it was in before, so that a norm that was frozen stays so.
class EvaluationGuard {
 public:
  explicit EvaluationGuard(Module& module) {
    for (const Module::Entry& entry : module.modules()) {
      before_.emplace_back(entry.module, entry.module->training());
    }
    module.eval();
  }
  ~EvaluationGuard() {
    for (const auto& [module, training] : before_) module->train(training);  // outermost first
  }
  EvaluationGuard(const EvaluationGuard&) = delete;
  EvaluationGuard& operator=(const EvaluationGuard&) = delete;

 private:
  std::vector<std::pair<Module*, bool>> before_;
};

// What f(), which takes batches, returns. The loader then stands where it stood before, also where
// f throws.
template <class F>
auto keep_position(DataLoader& loader, F&& f) {
  const LoaderPosition before = loader.position();
  try {
    auto result = f();
    loader.restore(before);
    return result;
  } catch (...) {
    loader.restore(before);
    throw;
  }
}

}  // namespace gradus::nn
