#include "examples/cli/lesson_html.h"

#include <algorithm>
#include <set>

#include "core/build_config.h"
#include "core/error.h"
#include "examples/cli/lesson_variant.h"
#include "examples/cli/page.h"

namespace gradus::cli {
namespace {

using explain::Inputs;
using explain::Layer;
using explain::Setting;
using nlohmann::json;

constexpr int64_t kMostValues = 600;
constexpr size_t kMostOfSlider = 24;
constexpr size_t kMostOfPage = 48 * kMostValues;  // positions times values of x

// The first n samples.
Inputs first_samples(const Inputs& inputs, int64_t n) {
  Inputs result = inputs;
  for (Tensor* tensor : {&result.x, &result.dy}) {
    Shape shape = tensor->shape();
    std::vector<double> values = tensor->to_vector<double>();
    values.resize(values.size() / static_cast<size_t>(shape[0]) * static_cast<size_t>(n));
    shape[0] = n;
    *tensor = Tensor::from_vector(values, shape);
  }
  return result;
}

// The positions of the sliders: settings of one layer, and the values that name each.
struct Position {
  Setting setting;
  int64_t batch;
  json names;
};

json numbers(int64_t first, int64_t last) {
  json values = json::array();
  for (int64_t value = first; value <= last; ++value) values.push_back(value);
  return values;
}

// What the page's bar has for this layer.
json controls_of(const Setting& setting, const Shape& shape) {
  json controls = json::array();
  if (setting.layer == Layer::group_norm) {
    json groups = json::array();
    for (int64_t g = 1; g <= shape[1]; ++g) {
      if (shape[1] % g == 0) groups.push_back(g);
    }
    controls.push_back({{"key", "groups"},
                        {"label", "groups"},
                        {"values", groups},
                        {"says",
                         {{"1", "one set per sample: as LayerNorm"},
                          {std::to_string(shape[1]), "one per channel: InstanceNorm"}}}});
  }
  if (setting.layer == Layer::local_response_norm) {
    const int64_t all = 2 * shape[1];  // a window that holds all channels from anywhere
    json sizes = numbers(1, std::min(std::max(setting.size, shape[1]), all));
    if (setting.size > all) sizes.push_back(setting.size);
    controls.push_back({{"key", "size"}, {"label", "size of the window"}, {"values", sizes}});
  }
  // A channel of one value cannot be trained on.
  const int64_t s = shape.numel() / (shape[0] * shape[1]);
  const bool has_one = setting.layer == Layer::batch_norm && shape[0] * s == 1;
  const bool needs_two = setting.layer == Layer::batch_norm && s == 1 && !has_one;
  // gamma of a set that runs over all axes is as large as x.
  const Shape row = setting.is_row_norm() ? layout_of(setting, shape).per_param : Shape();
  const int64_t fewest = row.rank() == shape.rank() ? shape[0] : needs_two ? 2 : 1;
  controls.push_back({{"key", "batch"},
                      {"label", row.rank() + 1 == shape.rank() ? "rows" : "batch"},
                      {"values", numbers(fewest, shape[0])}});
  if (setting.has_running()) {
    controls.push_back({{"key", "mode"},
                        {"label", "training or evaluation"},
                        {"values", has_one ? json::array({"eval"}) : json{"train", "eval"}},
                        {"names", {{"train", "training"}, {"eval", "evaluation"}}}});
  }
  return controls;
}

// All combinations of the controls' values.
std::vector<Position> positions_of(const json& controls, const Setting& setting) {
  std::vector<Position> all = {{setting, 0, json::object()}};
  for (const json& control : controls) {
    const std::string key = control.at("key");
    std::vector<Position> longer;
    for (const Position& position : all) {
      for (const json& value : control.at("values")) {
        Position next = position;
        next.names[key] = value;
        if (key == "groups") next.setting.groups = value;
        if (key == "size") next.setting.size = value;
        if (key == "batch") next.batch = value;
        if (key == "mode") next.setting.training = value == "train";
        longer.push_back(std::move(next));
      }
    }
    all = std::move(longer);
  }
  return all;
}

json start_of(const Setting& setting, const json& controls) {
  json start;
  for (const json& control : controls) {
    const std::string key = control.at("key");
    if (key == "groups") start[key] = setting.groups;
    if (key == "size") start[key] = setting.size;
    if (key == "batch") start[key] = control.at("values").back();
    if (key == "mode") start[key] = setting.training ? "train" : "eval";
  }
  return start;
}

// gamma and beta of the whole layer stay; running statistics only where evaluation reads them.
Inputs inputs_for(const Setting& setting, Inputs inputs) {
  const bool running = setting.layer == Layer::batch_norm || setting.is_evaluation();
  if (!running) inputs.running_mean = inputs.running_var = Tensor();
  return inputs;
}

Inputs inputs_at(const Position& position, const Inputs& inputs) {
  return first_samples(inputs_for(position.setting, inputs), position.batch);
}

bool has_variance(const Position& position, const Inputs& inputs) {
  try {
    explain::check_variance(position.setting, inputs_at(position, inputs));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    return false;
  }
  return true;
}

// Leaves out values at which nothing can be told, but for those of the start: groups and modes by
// all samples, and of batch what a group or mode that stays has too few samples for.
void keep_variance(json& controls, const Setting& setting, const json& start,
                   const Inputs& inputs) {
  if (!setting.is_norm() || setting.eps > 0) return;
  const auto told = [&](const std::string& key, const json& value) {
    json narrow = controls;
    for (json& control : narrow) {
      if (control.at("key") == key)
        control["values"] = json::array({value});
      else if (control.at("key") == "batch")
        control["values"] = json::array({start.at("batch")});
    }
    return std::ranges::all_of(positions_of(narrow, setting), [&](const Position& position) {
      return has_variance(position, inputs);
    });
  };
  for (const std::string key : {"groups", "mode", "batch"}) {
    for (json& control : controls) {
      if (control.at("key") != key) continue;
      json kept = json::array();
      for (const json& value : control.at("values"))
        if (value == start.at(key) || told(key, value)) kept.push_back(value);
      control["values"] = kept;
    }
  }
}

// The start, the ends, and others evenly spread between these: `most` of all, which is 3 or more.
json spread(const json& values, const json& start, size_t most) {
  if (values.size() <= most) return values;
  std::set<size_t> kept;
  for (size_t i = 0; i + 1 < most; ++i) kept.insert(i * (values.size() - 1) / (most - 2));
  kept.insert(static_cast<size_t>(std::ranges::find(values, start) - values.begin()));
  json result = json::array();
  for (const size_t at : kept) result.push_back(values[at]);
  return result;
}

// Leaves out values of the longest sliders until the page is of some MB.
void keep_size(json& controls, const json& start, const Shape& shape) {
  std::vector<size_t> most;
  for (const json& control : controls)
    most.push_back(std::min(control.at("values").size(), kMostOfSlider));
  const auto size = [&] {
    size_t product = static_cast<size_t>(shape.numel());
    for (const size_t one : most) product *= one;
    return product;
  };
  while (size() > kMostOfPage) --*std::ranges::max_element(most);
  for (size_t i = 0; i < most.size(); ++i) {
    json& control = controls[i];
    control["values"] =
        spread(control.at("values"), start.at(control.at("key").get<std::string>()), most[i]);
  }
}

json variants_of(const json& controls, const Setting& setting, const Inputs& inputs) {
  json variants = json::array();
  for (const Position& position : positions_of(controls, setting)) {
    json variant = lesson_variant(explain::derive(position.setting, inputs_at(position, inputs)));
    variant.update(position.names);
    variants.push_back(std::move(variant));
  }
  return variants;
}

json page_data(const json& controls, const Shape& shape) {
  return {{"version", GRADUS_VERSION},
          {"controls", controls},
          {"shape", std::vector<int64_t>(shape.begin(), shape.end())}};
}

// Where the numbers are from.
std::string source_of(const char* contract) {
  return std::string(
             "Every number was computed by gradus in f64, for each position of the sliders: the "
             "steps by plain loops, beside them the library's own kernels and finite differences. "
             "Shown with 9 significant digits at most. Formulas and letters: ") +
         contract + ".";
}

const char* contract_of(const Setting& setting) {
  if (setting.layer == Layer::local_response_norm) return "core/ops/local_response_norm.h";
  return setting.is_norm() ? "core/ops/normalization.h" : "core/ops/softmax.h";
}

// `script` draws it.
std::string page_of_maps(std::string_view title, const json& data, std::string_view script) {
  return make_page(title, data,
                   {"page.js", "heatmap.js", "controls.js", "lesson_text.js", "inspector.js",
                    "selection.js", script});
}

}  // namespace

Shape lesson_shape(const Setting& setting) {
  switch (setting.layer) {
    case Layer::layer_norm:
    case Layer::rms_norm: {
      Shape shape = {4};
      for (int axis = 1; axis < setting.axes; ++axis) shape.append(2);
      shape.append(setting.axes > 1 ? 4 : 8);
      return shape;
    }
    case Layer::group_norm:
      return {3, setting.groups > 0 && 6 % setting.groups != 0 ? 2 * setting.groups : 6, 1, 3};
    case Layer::softmax2d:
      return {2, 4, 1, 4};
    default:
      return {3, 6, 1, 3};
  }
}

json lesson_data(const Setting& setting, const Inputs& given, uint64_t seed) {
  // Drawn for evaluation, where the layer has it: with all that any position reads.
  Setting fullest = setting;
  fullest.training = !setting.has_running();
  const Inputs inputs = given.x.defined()
                            ? explain::complete(fullest, given, seed)
                            : explain::draw_inputs(fullest, lesson_shape(setting), seed);
  const Shape& shape = inputs.x.shape();
  check(shape.numel() <= kMostValues, "lesson", "a page shows at most ", kMostValues,
        " values, got a tensor of shape ", shape);
  json controls = controls_of(setting, shape);
  const json start = start_of(setting, controls);
  keep_variance(controls, setting, start, inputs);
  keep_size(controls, start, shape);
  json data = page_data(controls, shape);
  data["op"] = explain::to_string(setting.layer);
  data["start"] = start;
  data["variants"] = variants_of(controls, setting, inputs);
  data["source"] = source_of(contract_of(setting));
  return data;
}

void write_lesson_html(const std::string& file, const Setting& setting, const Inputs& inputs,
                       uint64_t seed) {
  const std::string name(explain::to_string(setting.layer));
  write_page(file, page_of_maps(name + ": its gradient, term by term",
                                lesson_data(setting, inputs, seed), "lesson.js"));
}

json norms_data(uint64_t seed) {
  const Setting group{.layer = Layer::group_norm};
  const Shape shape = lesson_shape(group);
  Setting batch{.layer = Layer::batch_norm};
  const Inputs inputs = explain::draw_inputs(batch, shape, seed);
  json data = page_data(controls_of(group, shape), shape);
  data["start"] = start_of(group, data["controls"]);
  data["source"] = source_of("core/ops/normalization.h");
  const int64_t s = shape[2] * shape[3];
  for (const Layer layer :
       {Layer::batch_norm, Layer::layer_norm, Layer::group_norm, Layer::instance_norm,
        Layer::rms_norm, Layer::local_response_norm, Layer::softmax2d}) {
    const Setting setting{.layer = layer};
    Inputs in = inputs_for(setting, inputs);
    if (setting.is_row_norm()) {  // one gamma per channel, as the others have it
      const Shape row = {shape[1], shape[2], shape[3]};
      const auto spread = [&](const Tensor& tensor) {
        return tensor.reshape({shape[1], 1}).expand({shape[1], s}).contiguous().reshape(row);
      };
      in.gamma = spread(in.gamma);
      in.beta = layer == Layer::rms_norm ? Tensor() : spread(in.beta);
    }
    if (!setting.is_norm()) in.gamma = in.beta = Tensor();
    json controls = json::array(), keys = json::array();
    for (const json& control : data["controls"]) {
      if (control.at("key") == "groups" && layer != Layer::group_norm) continue;
      controls.push_back(control);
      keys.push_back(control.at("key"));
    }
    json variants = variants_of(controls, setting, in);
    for (json& variant : variants) {  // what a single lesson tells
      for (const char* part : {"slips", "checks", "half"}) variant.erase(part);
    }
    data["layers"].push_back(
        {{"op", explain::to_string(layer)}, {"keys", keys}, {"variants", variants}});
  }
  return data;
}

void write_norms_html(const std::string& file, uint64_t seed) {
  write_page(file, page_of_maps("The norms side by side", norms_data(seed), "norms.js"));
}

}  // namespace gradus::cli
