#include "nn/models.h"

#include <gtest/gtest.h>

#include "autograd/ops/activation.h"
#include "autograd/ops/sum.h"
#include "nn/group_norm.h"
#include "nn/init.h"
#include "tests/support/expect_error.h"

namespace gradus::nn {
namespace {

constexpr auto kInvalid = ErrorCode::invalid_argument;

TEST(Models, ShapesOfEveryModelNormAndImage) {
  for (const std::string& name : model_names()) {
    for (const std::string& norm : norm_names()) {
      for (const auto& [c, extent] : {std::pair<int64_t, int64_t>{1, 28}, {3, 32}}) {
        Sequential net = make_model(
            name, {.channels = c, .height = extent, .width = extent, .classes = 7, .norm = norm});
        const Tensor y = net(Tensor::zeros({2, c, extent, extent}));
        EXPECT_EQ(y.shape(), (Shape{2, 7})) << name << " " << norm;
        const size_t tensors = net.state_dict().size(), trained = net.parameters().size();
        EXPECT_EQ(tensors > trained, norm == "batch");
      }
    }
  }
}

// Counted by hand: weights of convolutions, 2 per norm channel, linear layers with bias.
TEST(Models, ParameterCounts) {
  const int64_t convs = 9 * (32 + 32 * 32 + 32 * 64 + 64 * 64), norms = 2 * (32 + 32 + 64 + 64);
  EXPECT_EQ(small_cnn().parameter_count(), convs + norms + 3136 * 128 + 128 + 1280 + 10);
  EXPECT_EQ(lenet({.norm = "none"}).parameter_count(), 61706);
  EXPECT_EQ(lenet({.height = 32, .width = 32, .norm = "none"}).parameter_count(), 61706);
  const int64_t blocks =
      9 * (16 * 16 * 2 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64) + 16 * 32 + 32 * 64;
  const int64_t channels = 16 * 3 + 32 * 3 + 64 * 3;
  EXPECT_EQ(resnet8({.channels = 3}).parameter_count(), 9 * 3 * 16 + blocks + 2 * channels + 650);
}

// The keys of the same torch.nn.Sequential.
TEST(Models, SmallCnnHasTheNamesOfItsSequential) {
  Sequential net = small_cnn();
  std::vector<std::string> names;
  for (const NamedTensor& p : net.named_parameters()) names.push_back(p.name);
  EXPECT_EQ(names, (std::vector<std::string>{"0.weight", "1.weight", "1.bias", "3.weight",
                                             "4.weight", "4.bias", "7.weight", "8.weight", "8.bias",
                                             "10.weight", "11.weight", "11.bias", "15.weight",
                                             "15.bias", "17.weight", "17.bias"}));
}

// What each norm adds to lenet, and whether they have a bias.
TEST(Models, NormsOfLenet) {
  const int64_t plain = lenet({.norm = "none"}).parameter_count(), channels = 6 + 16;
  const int64_t elements = 6 * 28 * 28 + 16 * 10 * 10;
  const std::pair<const char*, int64_t> added[] = {
      {"batch", channels}, {"group", channels}, {"instance", channels},
      {"lrn", 0},          {"rms", elements},   {"layer", 2 * elements - channels}};
  for (const auto& [norm, count] : added) {
    Sequential net = lenet({.norm = norm});
    EXPECT_EQ(net.parameter_count(), plain + count) << norm;
  }
  Sequential grouped = lenet({.norm = "group"});  // of 6 and 16 channels
  EXPECT_EQ(dynamic_cast<GroupNorm&>(grouped[1]).num_groups, 2);
  EXPECT_EQ(dynamic_cast<GroupNorm&>(grouped[5]).num_groups, 8);
  EXPECT_EQ(small_cnn({.norm = "instance"})[1].kind(), "InstanceNorm2d");
  EXPECT_EQ(norm_names(), (std::vector<std::string>{"batch", "group", "layer", "instance", "rms",
                                                    "lrn", "none"}));
}

TEST(Models, EveryActivationTrainsEveryParameter) {
  for (const std::string& activation : activation_names()) {
    Sequential net = lenet({.activation = activation});
    sum(net(Tensor::ones({2, 1, 28, 28}))).backward();
    for (const auto& [name, parameter] : net.named_parameters())
      EXPECT_TRUE(parameter.grad().defined()) << activation << " " << name;
  }
}

TEST(Models, TheSeedDecidesTheWeights) {
  const auto first = [](uint64_t seed) {
    manual_seed(seed);
    return small_cnn().parameters()[0].to_vector<float>();
  };
  EXPECT_EQ(first(1), first(1));
  EXPECT_NE(first(1), first(2));
}

TEST(Models, Errors) {
  EXPECT_ERROR(make_model("vgg"), kInvalid, "expected one of small_cnn, lenet, resnet8, got 'vgg'");
  EXPECT_ERROR(small_cnn({.norm = "whole"}), kInvalid, "norm must be one of batch, ",
               "got 'whole'");
  EXPECT_ERROR(small_cnn({.activation = "sine"}), kInvalid, "sine", "relu");
  EXPECT_ERROR(lenet({.height = 8}), kInvalid, "at least 16x16, got 8x28");
  EXPECT_ERROR(lenet({.height = int64_t{1} << 62}), kInvalid,
               "model: the number of elements of [16,1152921504606846974,5] does not fit");
  EXPECT_ERROR(resnet8({.classes = 0}), kInvalid, "classes must be positive");
}

}  // namespace
}  // namespace gradus::nn
