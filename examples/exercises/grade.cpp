#include "examples/exercises/grade.h"

#include <algorithm>
#include <exception>

#include "autograd/explain/diagnosis.h"
#include "autograd/explain/library.h"
#include "core/error.h"

namespace exercises {
namespace {

using gradus::concat;
using gradus::Shape;
using gradus::Tensor;
using gradus::explain::Claim;
using gradus::explain::Inputs;
using gradus::explain::Layer;
using gradus::explain::Setting;

struct Task {
  Setting setting;
  Shape shape;
};

// Shapes in which every slip shows: several samples, small sets, odd extents.
std::vector<Task> tasks_of(Layer layer) {
  switch (layer) {
    case Layer::group_norm:
      return {{{.layer = layer, .groups = 2}, {3, 4, 3}},
              {{.layer = layer, .groups = 3}, {2, 9, 2}}};
    case Layer::layer_norm:
    case Layer::rms_norm:
      return {{{.layer = layer}, {3, 5}}, {{.layer = layer}, {4, 7}}};
    case Layer::local_response_norm:
      return {{{.layer = layer, .size = 4}, {2, 6, 2}},
              {{.layer = layer, .size = 3, .alpha = 0.5, .beta = 0.5, .k = 2}, {1, 5, 3}}};
    default:
      return {{{.layer = layer}, {3, 3, 4}}, {{.layer = layer}, {2, 5, 3}}};
  }
}

Values values_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.to_vector<double>() : Values();
}

Input input_of(const Setting& setting, const Inputs& in) {
  const gradus::explain::Library library = gradus::explain::run_library(setting, in);
  const Shape& shape = in.x.shape();
  Input input;
  input.n = shape[0];
  input.c = shape[1];
  input.s = shape.numel() / (shape[0] * shape[1]);
  input.x = values_of(in.x);
  input.dy = values_of(in.dy);
  input.gamma = values_of(in.gamma);
  if (setting.has_mean()) input.mean = values_of(library.saved.mean);
  input.rstd = values_of(library.saved.rstd);
  if (setting.layer == Layer::softmax2d) input.y = values_of(library.y);
  if (setting.layer == Layer::group_norm) input.groups = setting.groups;
  input.size = setting.size;
  input.alpha = setting.alpha;
  input.beta = setting.beta;
  input.k = setting.k;
  return input;
}

Claim claim_of(const Setting& setting, const Inputs& in, const Gradients& gradients) {
  const auto tensor = [](const Values& values) {
    return Tensor::from_vector(values, {std::ssize(values)});
  };
  Claim claim{.dx = tensor(gradients.dx)};
  if (in.gamma.defined()) claim.dgamma = tensor(gradients.dgamma);
  if (in.gamma.defined() && setting.layer != Layer::rms_norm) claim.dbeta = tensor(gradients.dbeta);
  return claim;
}

bool all_zero(const Gradients& gradients) {
  const auto is_zero = [](const Values& values) {
    return std::ranges::all_of(values, [](double value) { return value == 0; });
  };
  return is_zero(gradients.dx) && is_zero(gradients.dgamma) && is_zero(gradients.dbeta);
}

}  // namespace

Grade grade(Layer layer, const std::function<Gradients(const Input&)>& backward,
            const std::string& file) {
  const std::string name(to_string(layer));
  const std::string help = concat("\nWrite it in ", file, "; `gradus explain ", name,
                                  "` shows each step of it in numbers.\n");
  const std::vector<Task> tasks = tasks_of(layer);
  for (const Task& task : tasks) {
    const Inputs in = draw_inputs(task.setting, task.shape, 0);
    try {
      const Gradients gradients = backward(input_of(task.setting, in));
      if (all_zero(gradients))
        return {false, concat(name, ": backward() is not filled in yet.", help)};
      const auto diagnosis = diagnose(task.setting, in, claim_of(task.setting, in, gradients));
      if (!diagnosis.right())
        return {false, concat(name, " of x ", to_string(task.shape), "\n", diagnosis.text(), help)};
    } catch (const gradus::Error& error) {  // vectors of another size
      return {false, concat(error.what(), help)};
    } catch (const std::exception& error) {  // of the student's: vector::at() beyond the end
      return {false, concat(name, ": backward() threw: ", error.what(), help)};
    }
  }
  return {true, concat(name, ": right, on ", tasks.size(), " inputs.\n")};
}

}  // namespace exercises
