#include "nn/models.h"

#include "nn/activation.h"
#include "nn/avg_pool2d.h"
#include "nn/batch_norm.h"
#include "nn/conv2d.h"
#include "nn/flatten.h"
#include "nn/linear.h"
#include "nn/max_pool2d.h"

namespace gradus::nn {
namespace {

using Builder = Sequential (*)(const ModelOptions&);
struct NamedBuilder {
  std::string_view name;
  Builder build;
};
constexpr NamedBuilder kModels[] = {
    {"small_cnn", small_cnn}, {"lenet", lenet}, {"resnet8", resnet8}};

Activate make_activation(const ModelOptions& options) {
  return Activate(parse_activation(options.activation));
}

// Convolution and norm; the convolution has a bias only where no norm would cancel it.
void add_conv(Sequential& net, int64_t in, int64_t out, int64_t kernel, const Conv2dOptions& conv,
              const ModelOptions& options) {
  check(options.norm == "batch" || options.norm == "none", "model",
        "norm must be batch or none, got '", options.norm, "'");
  const bool norm = options.norm == "batch";
  net.add(Conv2d(in, out, kernel, conv, !norm));
  if (norm) net.add(BatchNorm2d(out));
}

void check_size(const ModelOptions& options, int64_t least, std::string_view model) {
  check(options.channels > 0 && options.classes > 0, model,
        "channels and classes must be positive");
  check(options.height >= least && options.width >= least, model, "images must be at least ", least,
        "x", least, ", got ", options.height, "x", options.width);
}

Sequential residual_block(int64_t in, int64_t out, int64_t stride, const ModelOptions& options) {
  Sequential body;
  add_conv(body, in, out, 3, {.stride = {stride, stride}, .padding = {1, 1}}, options);
  body.add(make_activation(options));
  add_conv(body, out, out, 3, {.padding = {1, 1}}, options);
  Sequential block;
  if (stride == 1 && in == out) {
    block.add(Residual(std::move(body)));
  } else {
    Sequential shortcut;
    add_conv(shortcut, in, out, 1, {.stride = {stride, stride}}, options);
    block.add(Residual(std::move(body), std::move(shortcut)));
  }
  block.add(make_activation(options));
  return block;
}

}  // namespace

Sequential make_model(std::string_view name, const ModelOptions& options) {
  std::string known;
  for (const NamedBuilder& model : kModels) {
    if (model.name == name) return model.build(options);
    known += concat(known.empty() ? "" : ", ", model.name);
  }
  fail(ErrorCode::invalid_argument, "model", "expected one of ", known, ", got '", name, "'");
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const NamedBuilder& model : kModels) names.emplace_back(model.name);
  return names;
}

Sequential small_cnn(const ModelOptions& options) {
  check_size(options, 4, "small_cnn");
  Sequential net;
  int64_t in = options.channels;
  for (const int64_t out : {32, 64}) {
    add_conv(net, in, out, 3, {.padding = {1, 1}}, options);
    net.add(make_activation(options));
    add_conv(net, out, out, 3, {.padding = {1, 1}}, options);
    net.add(make_activation(options));
    net.add(MaxPool2d(2));
    in = out;
  }
  net.add(Flatten()).add(Linear(64 * (options.height / 4) * (options.width / 4), 128));
  net.add(make_activation(options)).add(Linear(128, options.classes));
  return net;
}

Sequential lenet(const ModelOptions& options) {
  check_size(options, 16, "lenet");
  const int64_t padding = options.height < 32 || options.width < 32 ? 2 : 0;
  const auto after_convs = [&](int64_t extent) { return ((extent + 2 * padding - 4) / 2 - 4) / 2; };
  Sequential net;
  add_conv(net, options.channels, 6, 5, {.padding = {padding, padding}}, options);
  net.add(make_activation(options)).add(MaxPool2d(2));
  add_conv(net, 6, 16, 5, {}, options);
  net.add(make_activation(options)).add(MaxPool2d(2)).add(Flatten());
  int64_t in = 16 * after_convs(options.height) * after_convs(options.width);
  for (const int64_t out : {120, 84}) {
    net.add(Linear(in, out)).add(make_activation(options));
    in = out;
  }
  return std::move(net.add(Linear(in, options.classes)));
}

Sequential resnet8(const ModelOptions& options) {
  check_size(options, 4, "resnet8");
  Sequential net;
  add_conv(net, options.channels, 16, 3, {.padding = {1, 1}}, options);
  net.add(make_activation(options));
  net.add(residual_block(16, 16, 1, options));
  net.add(residual_block(16, 32, 2, options));
  net.add(residual_block(32, 64, 2, options));
  net.add(AdaptiveAvgPool2d(1)).add(Flatten()).add(Linear(64, options.classes));
  return net;
}

}  // namespace gradus::nn
