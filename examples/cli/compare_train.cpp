// `gradus compare --train`: lock-step training.

#include <fmt/core.h>

#include <algorithm>

#include "examples/cli/compare_network.h"
#include "examples/cli/compare_table.h"
#include "examples/cli/progress.h"
#include "nn/compare/lock_step.h"

namespace gradus::cli {
namespace {

std::string layer_text(const std::string& path, const std::string& layer) {
  return path.empty() ? layer : fmt::format("{} {}", path, layer);
}

// One line per layer: the worst share of its tolerance, and the step of it.
std::string layers_text(const CompareTraining& train) {
  std::string text =
      fmt::format("{:<24} {:<20} {:<20}\n", "worst of all steps", "forward", "backward");
  std::vector<const CompareTraining::Layer*> done;
  for (const CompareTraining::Layer& first : train.layers) {
    const auto is_same = [&](const CompareTraining::Layer& other) {
      return other.path == first.path && other.layer == first.layer;
    };
    if (std::ranges::any_of(done, [&](const auto* one) { return is_same(*one); })) continue;
    done.push_back(&first);
    std::string columns[2];
    for (const CompareTraining::Layer& layer : train.layers) {
      if (!is_same(layer)) continue;
      columns[static_cast<int>(layer.direction)] =
          fmt::format("{:.0f}% at step {}", 100 * layer.of_allowed, layer.step);
    }
    text += fmt::format("{:<24} {:<20} {:<20}\n", layer_text(first.path, first.layer), columns[0],
                        columns[1]);
  }
  return text;
}

std::string drift_text(const CompareTraining& train) {
  if (train.drift.empty()) return "";
  const CompareTraining::Drift& last = train.drift.back();
  return fmt::format(
      "free run on {} in {}, without verdict: after step {} the losses are {:.7g} and {:.7g}, and "
      "the parameters\ndiffer by {:.2g} of their length (after step 1: {:.2g})\n\n",
      to_string(train.drift_device), to_string(train.drift_dtype), last.step, last.loss,
      last.other_loss, last.parameters, train.drift.front().parameters);
}

}  // namespace

CompareReport compare_training(const CompareCommand& o) {
  ComparedNetwork network(o);
  const double lr = o.lr.value_or(default_lr(o.optimizer) / 10);
  StatusLine status;
  CompareReport report = gradus::compare_training(
      [&] { return network.make(); },
      [&](nn::Module& model) { return make_optimizer(o.optimizer, model, lr); },
      [&] { return network.next_batch(); },
      {.steps = o.steps, .tolerance = o.tolerance, .on_step = [&](int64_t step, double loss) {
         status.show(fmt::format("step {} of {}, loss {:.4f}", step, o.steps, loss));
       }});
  report.model = network.name();
  report.seed = o.seed;
  if (!network.has_data()) report.missing.push_back("The batches are of images drawn at random.");
  for (CompareDevice& device : report.devices) device.text = describe(device.device);
  return report;
}

std::string training_text(const CompareReport& report) {
  const CompareTraining& train = *report.train;
  std::string text = fmt::format(
      "lock-step training of {} in f32: {}, batches of {}\n"
      "each layer starts from the CPU's bits; in % of what rounding may do to it\n",
      report.model, train.optimizer, train.batch_size);
  text += fmt::format("{}\n{}\n{}", devices_text(report), layers_text(train), drift_text(train));
  if (train.diverged) {
    return text + fmt::format("diverged at step {} of {}: {} in step before it\n",
                              train.diverged->step, train.steps_asked, train.steps_done);
  }
  if (!train.parted) return text + fmt::format("all {} steps are in step\n", train.steps_done);
  const CompareParting& parted = *train.parted;
  return text + fmt::format("parted at step {}, layer {}, {}: {} on {}\n  {}\n", parted.step,
                            layer_text(parted.path, parted.layer), to_string(parted.direction),
                            parted.value, to_string(parted.error.device),
                            place_text(parted.error, parted.shape, report));
}

}  // namespace gradus::cli
