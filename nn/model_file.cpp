#include "nn/model_file.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "autograd/ops/activation.h"
#include "core/error.h"
#include "nn/checkpoint.h"

namespace gradus::nn {
namespace {

constexpr std::string_view kModel = "model.";

std::string value_of(const TrainerState& state, const std::string& key) {
  const auto found = state.values.find(key);
  return found == state.values.end() ? "" : found->second;
}

// Of "data_set NAME, images 60000x1x28x28, ...": what follows the count. From the back: the name
// may be any text.
Shape image_shape(const std::string& loader) {
  constexpr std::string_view kImages = "images ";
  Shape shape;
  const size_t at = loader.rfind(kImages);
  if (at == std::string::npos) return shape;
  const char* next = loader.data() + at + kImages.size();
  const char* const end = loader.data() + loader.size();
  while (shape.rank() < 4) {
    int64_t extent = 0;
    const auto [after, error] = std::from_chars(next, end, extent);
    if (error != std::errc()) return {};
    shape.append(extent);
    if (after == end || *after != 'x') break;
    next = after + 1;
  }
  return shape;
}

std::vector<NamedTensor> weights_of(const TrainerState& state) {
  std::vector<NamedTensor> weights;
  for (const NamedTensor& entry : state.tensors) {
    if (entry.name.starts_with(kModel)) {
      weights.push_back({entry.name.substr(kModel.size()), entry.tensor});
    }
  }
  return weights;
}

// The activation among the layers, "relu" where there is none.
std::string activation_of(const std::string& layers) {
  for (const std::string& name : activation_names()) {
    if ((layers + ",").find(" " + name + ",") != std::string::npos) return name;
  }
  return "relu";
}

// Of the last linear layer: how many values it gives.
int64_t classes_of(const std::vector<NamedTensor>& weights) {
  int64_t last = -1, classes = 0;
  for (const NamedTensor& entry : weights) {
    int64_t layer = 0;  // the number that its name begins with
    std::from_chars(entry.name.data(), entry.name.data() + entry.name.size(), layer);
    if (entry.tensor.rank() == 2 && layer > last) last = layer, classes = entry.tensor.size(0);
  }
  return classes;
}

// Of the convolution that each network of make_model() begins with.
int64_t channels_of(const std::vector<NamedTensor>& weights) {
  for (const NamedTensor& entry : weights) {
    if (entry.name == "0.weight" && entry.tensor.rank() == 4) return entry.tensor.size(1);
  }
  return 0;
}

// Whether a file of so many parameters can hold it: what grows with the images has more weights
// than an image has pixels.
bool may_be(const std::string& name, const ModelOptions& options, int64_t parameters) {
  const bool grows = name != "resnet8" || options.norm == "layer" || options.norm == "rms";
  return !grows || options.height * options.width <= parameters;
}

// None where images of that size are too small for it.
std::optional<Sequential> try_model(const std::string& name, const ModelOptions& options) {
  try {
    return make_model(name, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    return std::nullopt;
  }
}

}  // namespace

ModelFile load_model(const std::string& path) {
  const TrainerState state = load_resume(path);
  const std::string layers = value_of(state, "layers");
  const Shape images = image_shape(value_of(state, "loader"));
  const std::vector<NamedTensor> weights = weights_of(state);
  int64_t parameters = 0;
  for (const NamedTensor& entry : weights) parameters += entry.tensor.numel();
  ModelFile file;
  file.options.activation = activation_of(layers);
  file.options.classes = classes_of(weights);
  const auto fits = [](int64_t extent) { return extent > 0 && extent <= INT32_MAX; };
  const bool sound = images.rank() == 4 && std::ranges::all_of(images, fits);
  if (sound && images[1] == channels_of(weights) && file.options.classes > 0) {
    file.options.channels = images[1], file.options.height = images[2];
    file.options.width = images[3];
    for (const std::string& name : model_names()) {
      for (const std::string& norm : norm_names()) {
        file.name = name, file.options.norm = norm;
        if (!may_be(name, file.options, parameters)) continue;
        std::optional<Sequential> network = try_model(name, file.options);
        if (!network) continue;
        file.network = std::move(*network);
        const bool same_layers = layers_text(file.network) == layers;
        if (same_layers && file.network.load_state_dict(weights, false).ok()) return file;
      }
    }
  }
  fail(ErrorCode::unsupported, "load_model", "'", path,
       "' holds no network that gradus makes: ", layers.empty() ? "it names no layers" : layers);
}

}  // namespace gradus::nn
