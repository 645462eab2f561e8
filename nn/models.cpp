#include "nn/models.h"

#include <numeric>

#include "nn/activation.h"
#include "nn/avg_pool2d.h"
#include "nn/batch_norm.h"
#include "nn/conv2d.h"
#include "nn/flatten.h"
#include "nn/group_norm.h"
#include "nn/instance_norm.h"
#include "nn/layer_norm.h"
#include "nn/linear.h"
#include "nn/local_response_norm.h"
#include "nn/max_pool2d.h"
#include "nn/rms_norm.h"

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

// Of the images between two layers.
struct Image {
  int64_t c, h, w;
};

int64_t values_of(const Image& image) {
  return checked_numel({image.c, image.h, image.w}, "model");
}

struct NamedNorm {
  std::string_view name;
  bool has_shift;  // so that the convolution before it needs none
  void (*add)(Sequential& net, const Image& image);
};
constexpr NamedNorm kNorms[] = {
    {"batch", true, [](Sequential& net, const Image& i) { net.add(BatchNorm2d(i.c)); }},
    {"group", true,
     [](Sequential& net, const Image& i) { net.add(GroupNorm(std::gcd(i.c, int64_t{8}), i.c)); }},
    {"layer", true,
     [](Sequential& net, const Image& i) {
       net.add(LayerNorm({i.c, i.h, i.w}));
     }},
    {"instance", true,
     [](Sequential& net, const Image& i) { net.add(InstanceNorm2d(i.c, 1e-5, 0.1, true)); }},
    {"rms", false,
     [](Sequential& net, const Image& i) {
       net.add(RMSNorm({i.c, i.h, i.w}));
     }},
    {"lrn", false, [](Sequential& net, const Image&) { net.add(LocalResponseNorm(5)); }},
    {"none", false, [](Sequential&, const Image&) {}},
};

const NamedNorm& find_norm(const std::string& name) {
  std::string known;
  for (const NamedNorm& norm : kNorms) {
    if (norm.name == name) return norm;
    known += concat(known.empty() ? "" : ", ", norm.name);
  }
  fail(ErrorCode::invalid_argument, "model", "norm must be one of ", known, ", got '", name, "'");
}

// Convolution and norm; `image` becomes what they give.
void add_conv(Sequential& net, Image& image, int64_t out, int64_t kernel, const Conv2dOptions& conv,
              const ModelOptions& options) {
  const NamedNorm& norm = find_norm(options.norm);
  net.add(Conv2d(image.c, out, kernel, conv, !norm.has_shift));
  const Window window{.kernel = kernel, .stride = conv.stride, .padding = conv.padding};
  image = {out, window.positions(0, image.h), window.positions(1, image.w)};
  norm.add(net, image);
}

void add_pool(Sequential& net, Image& image) {
  net.add(MaxPool2d(2));
  image = {image.c, image.h / 2, image.w / 2};
}

Image image_of(const ModelOptions& options) {
  return {options.channels, options.height, options.width};
}

void check_size(const ModelOptions& options, int64_t least, std::string_view model) {
  check(options.channels > 0 && options.classes > 0, model,
        "channels and classes must be positive");
  check(options.height >= least && options.width >= least, model, "images must be at least ", least,
        "x", least, ", got ", options.height, "x", options.width);
}

Sequential residual_block(Image& image, int64_t out, int64_t stride, const ModelOptions& options) {
  const Image in = image;
  Sequential body;
  add_conv(body, image, out, 3, {.stride = stride, .padding = 1}, options);
  body.add(make_activation(options));
  add_conv(body, image, out, 3, {.padding = 1}, options);
  Sequential block;
  if (stride == 1 && in.c == out) {
    block.add(Residual(std::move(body)));
  } else {
    Sequential shortcut;
    Image side = in;
    add_conv(shortcut, side, out, 1, {.stride = stride}, options);
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

std::vector<std::string> norm_names() {
  std::vector<std::string> names;
  for (const NamedNorm& norm : kNorms) names.emplace_back(norm.name);
  return names;
}

Sequential small_cnn(const ModelOptions& options) {
  check_size(options, 4, "small_cnn");
  Sequential net;
  Image image = image_of(options);
  for (const int64_t out : {32, 64}) {
    for (int i = 0; i < 2; ++i) {
      add_conv(net, image, out, 3, {.padding = 1}, options);
      net.add(make_activation(options));
    }
    add_pool(net, image);
  }
  net.add(Flatten()).add(Linear(values_of(image), 128));
  net.add(make_activation(options)).add(Linear(128, options.classes));
  return net;
}

Sequential lenet(const ModelOptions& options) {
  check_size(options, 16, "lenet");
  const int64_t padding = options.height < 32 || options.width < 32 ? 2 : 0;
  Sequential net;
  Image image = image_of(options);
  add_conv(net, image, 6, 5, {.padding = padding}, options);
  net.add(make_activation(options));
  add_pool(net, image);
  add_conv(net, image, 16, 5, {}, options);
  net.add(make_activation(options));
  add_pool(net, image);
  net.add(Flatten());
  int64_t in = values_of(image);
  for (const int64_t out : {120, 84}) {
    net.add(Linear(in, out)).add(make_activation(options));
    in = out;
  }
  return std::move(net.add(Linear(in, options.classes)));
}

Sequential resnet8(const ModelOptions& options) {
  check_size(options, 4, "resnet8");
  Sequential net;
  Image image = image_of(options);
  add_conv(net, image, 16, 3, {.padding = 1}, options);
  net.add(make_activation(options));
  net.add(residual_block(image, 16, 1, options));
  net.add(residual_block(image, 32, 2, options));
  net.add(residual_block(image, 64, 2, options));
  net.add(AdaptiveAvgPool2d(1)).add(Flatten()).add(Linear(64, options.classes));
  return net;
}

}  // namespace gradus::nn
