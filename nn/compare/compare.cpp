#include "nn/compare/compare.h"

#include <algorithm>
#include <memory>

#include "autograd/autocast.h"
#include "autograd/ops/cross_entropy.h"
#include "core/generator.h"
#include "core/launch.h"
#include "nn/compare/loss_layer.h"
#include "nn/compare/module_layer.h"
#include "nn/compare/roofs.h"

namespace gradus {
namespace {

using nn::Ending;

Ending finish(const Tensor& y, const nn::Batch& batch, const CompareOptions& options) {
  if (options.loss) return {options.loss(y), {}};
  if (batch.labels.defined()) return {cross_entropy(y, batch.labels.cpu()), {}};
  Generator generator(kCpu, options.seed);
  return {y, randn(y.shape(), {.dtype = y.dtype()}, &generator)};
}

void compare_in(DType dtype, nn::Module& model, const nn::Batch& batch,
                const CompareOptions& options, CompareReport& report) {
  const nn::CpuCopy copy(model, dtype);
  const nn::OwnTensors tensors = nn::own_tensors(model);
  Tensor x = operand(batch.x, kCpu, false);
  if (is_floating(x.dtype())) x = operand(x.to(dtype), kCpu, false).set_requires_grad(true);
  const nn::Recording recording =
      nn::record(model, x, [&](const Tensor& y) { return finish(y, batch, options); });
  JudgeOptions judge{.tolerance = options.tolerance,
                     .differences = options.differences && dtype == options.dtypes.front()};
  judge.devices.clear();
  for (const CompareDevice& device : report.devices) judge.devices.push_back(device.device);
  const auto add = [&](const ComparedLayer& layer) {
    CompareRow row = judge_layer(layer, judge);
    for (const CompareDevice& device : report.devices) {
      if (options.repeats == 0) break;
      for (CompareTime& time : times_of(layer, device, options.repeats)) {
        row.times.push_back(std::move(time));
      }
    }
    report.rows.push_back(std::move(row));
  };
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    if (const auto layer = nn::layer_of(recording, i, tensors)) add(*layer);
  }
  if (!options.loss && batch.labels.defined()) add(nn::loss_layer(recording.logits, batch.labels));
}

}  // namespace

std::vector<Device> compared_devices(std::vector<std::string>& missing, std::string_view instead) {
  check(autocast_dtype(DType::f32) == DType::f32, "compare",
        "autocast is in force, under which no layer computes in the dtype that is compared");
  try {
    with_backend(kCuda, [](auto&) {});
    return {kCpu, kCuda};
  } catch (const Error& error) {
    missing.push_back(concat("CUDA is not compared (", error.what(), "): ", instead));
  }
  return {kCpu};
}

CompareReport compare(nn::Module& model, const nn::Batch& batch, const CompareOptions& options) {
  check(!options.dtypes.empty(), "compare", "expected one dtype at least");
  CompareReport report{.what = "model", .model = std::string(model.kind()), .seed = options.seed};
  report.tolerance = options.tolerance;
  for (const Device device : compared_devices(
           report.missing, "the CPU is held against its f64 and against finite differences")) {
    report.devices.push_back(options.repeats > 0
                                 ? measure_roofs(device, options.dtypes)
                                 : CompareDevice{.device = device, .text = to_string(device)});
  }
  std::vector<std::unique_ptr<FixedDraws>> kept;  // a comparison leaves no trace
  for (const CompareDevice& device : report.devices) {
    kept.push_back(std::make_unique<FixedDraws>(device.device));
  }
  for (const DType dtype : options.dtypes) compare_in(dtype, model, batch, options, report);
  return report;
}

}  // namespace gradus
