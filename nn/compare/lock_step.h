// Training on the CPU and on CUDA in lock-step: where do the two part?
//
//   const CompareReport report = compare_training(
//       [] { return make_my_net(7); },
//       [](nn::Module& net) { return std::make_unique<nn::SGD>(net.named_parameters(), ...); },
//       [&] { return *loader.next(); }, {.steps = 200});
//   if (report.train->parted) print(report.train->parted->path, report.train->parted->step);
//
// Two free runs drift apart by rounding alone: it flips a ReLU or the winner of a pooling window,
// and the rest follows. Here the CPU trains, and at each step every layer starts on CUDA from the
// CPU's bits (activations, upstream gradients, parameters, the optimizer's state), so that what a
// layer may be off by is a rounding bound of its own: that of compare(). The run stops at the first
// value beyond it: forward in the order of the layers, backward in the opposite order, then the
// optimizer. It also stops, with a sentence in report.missing, where a value is no longer finite,
// or beyond 2^50, on all sides alike: such a training tells nothing. Without a GPU the CPU's f32 is
// held against its f64 in the same way.
//
// Beside it a free run from the same parameters on the same batches shows the drift: on CUDA, or
// without a GPU on the CPU in f64.
#pragma once

#include <memory>

#include "nn/compare/compare.h"
#include "nn/optim/optimizer.h"

namespace gradus {

struct LockStepOptions {
  int64_t steps = 10;
  double tolerance = 0;  // of a tensor's largest value or term, for all; 0: computed
  std::function<void(int64_t step, double loss)> on_step = {};  // after each, from 1
};

// make_model: an f32 model on the CPU, with the same values each time; it is trained in training
// mode on the cross entropy with the batch's labels. make_optimizer: over the model's parameters.
// next_batch: on the CPU, with labels. All within tolerance: report.train has no `parted`; the rows
// are those of the last step that was compared. Throws what these throw.
CompareReport compare_training(
    const std::function<std::unique_ptr<nn::Module>()>& make_model,
    const std::function<std::unique_ptr<nn::Optimizer>(nn::Module&)>& make_optimizer,
    const std::function<nn::Batch()>& next_batch, const LockStepOptions& options = {});

}  // namespace gradus
