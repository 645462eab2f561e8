// Small image classifiers, by name.
//
//   nn::Sequential net = nn::make_model("small_cnn", {.classes = 10});
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "nn/sequential.h"

namespace gradus::nn {

struct ModelOptions {
  int64_t channels = 1, height = 28, width = 28;  // of the images
  int64_t classes = 10;
  std::string norm = "batch";       // after every convolution: any of norm_names()
  std::string activation = "relu";  // any of activation_names()
};

// What may follow a convolution of c channels whose images are h x w:
//   batch     BatchNorm2d(c)
//   group     GroupNorm(gcd(c, 8), c)
//   layer     LayerNorm({c, h, w})
//   instance  InstanceNorm2d(c), with weight and bias
//   rms       RMSNorm({c, h, w})
//   lrn       LocalResponseNorm(5)
//   none      nothing
// The convolution has a bias where no shift follows: before rms, lrn and none.
std::vector<std::string> norm_names();

// Parameters are drawn as the layers are made: call manual_seed first. Throws invalid_argument for
// an unknown name, norm or activation and for images that are too small.
Sequential make_model(std::string_view name, const ModelOptions& options = {});
std::vector<std::string> model_names();

// Two pairs of 3x3 convolutions (32 and 64 channels), each followed by a pooling of 2, then
// 128 hidden features and the classes.
Sequential small_cnn(const ModelOptions& options = {});

// LeNet-5 with ReLU and max pooling: 5x5 convolutions of 6 and 16 channels, then 120, 84, classes.
// Images of 28x28 are padded to 32x32 by the first convolution. LeCun et al. 1998.
Sequential lenet(const ModelOptions& options = {});

// 3x3 convolution of 16 channels, three residual blocks of 16, 32 and 64 (the last two with stride
// 2 and a 1x1 shortcut), global average, linear. He et al. 2015, https://arxiv.org/abs/1512.03385
Sequential resnet8(const ModelOptions& options = {});

}  // namespace gradus::nn
