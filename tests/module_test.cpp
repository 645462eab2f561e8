#include "nn/module.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <thread>

#include "autograd/grad_mode.h"
#include "autograd/ops/sum.h"
#include "nn/activation.h"
#include "nn/avg_pool2d.h"
#include "nn/batch_norm.h"
#include "nn/conv2d.h"
#include "nn/flatten.h"
#include "nn/forward_observer.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/match.h"
#include "nn/max_pool2d.h"
#include "nn/sequential.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"

namespace gradus::nn {
namespace {

constexpr auto kInvalid = ErrorCode::invalid_argument;

std::vector<std::string> names(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> result;
  for (const NamedTensor& entry : tensors) result.push_back(entry.name);
  return result;
}

Sequential small_net() {
  manual_seed(1);
  return Sequential(Conv2d(1, 2, 3, {.padding = {1, 1}}), BatchNorm2d(2), MaxPool2d(2), Flatten());
}

// A module of a user's own: members as children.
struct TwoConvs final : Module {
  Conv2d first{1, 2, 1}, second{2, 1, 1};
  std::string_view kind() const override { return "TwoConvs"; }
  void list(Contents& own) override { own.child("first", first), own.child("second", second); }
  Tensor forward(const Tensor& x) override { return second(first(x)); }
};

Tensor ramp(const Shape& shape) {
  std::vector<float> values;
  for (int64_t i = 0; i < shape.numel(); ++i) values.push_back(std::sin(static_cast<float>(i)));
  return Tensor::from_vector(values, shape);
}

TEST(Layers, OneNumberStandsForBothAxes) {
  const Tensor x = Tensor::ones({1, 3, 8, 8});
  EXPECT_EQ(to_string(Conv2d(3, 4, 3, {.padding = 1})(x).shape()), "[1,4,8,8]");
  EXPECT_EQ(to_string(Conv2d(3, 4, 3, {.stride = 2, .padding = {1}})(x).shape()), "[1,4,4,4]");
  EXPECT_EQ(to_string(Conv2d(3, 4, {3, 1}, {.padding = {1, 0}})(x).shape()), "[1,4,8,8]");
  EXPECT_EQ(to_string(MaxPool2d(3, 2)(x).shape()), "[1,3,3,3]");
}

TEST(Layers, ActivationsAndPoolsPassTheirArguments) {
  const Tensor x = ramp({1, 2, 5, 6});
  const auto same = [&](Module&& layer, std::string_view kind, const Tensor& want) {
    EXPECT_EQ(layer.kind(), kind);
    EXPECT_EQ(layer(x).to_vector<float>(), want.to_vector<float>()) << kind;
  };
  same(ReLU(), "ReLU", relu(x));
  same(ReLU6(), "ReLU6", relu6(x));
  same(LeakyReLU(0.3), "LeakyReLU", leaky_relu(x, 0.3));
  same(ELU(0.5), "ELU", elu(x, 0.5));
  same(GELU(), "GELU", gelu(x));
  same(GELU("tanh"), "GELU", gelu(x, "tanh"));
  same(SiLU(), "SiLU", silu(x));
  same(Mish(), "Mish", mish(x));
  same(Sigmoid(), "Sigmoid", sigmoid(x));
  same(Tanh(), "Tanh", tanh(x));
  same(Softplus(2, 1), "Softplus", softplus(x, 2, 1));
  same(Hardswish(), "Hardswish", hardswish(x));
  same(Hardsigmoid(), "Hardsigmoid", hardsigmoid(x));
  same(AvgPool2d(3, 2, 1, true, false), "AvgPool2d",
       avg_pool2d(x, {.kernel_size = 3,
                      .stride = Pair(2),
                      .padding = 1,
                      .ceil_mode = true,
                      .count_include_pad = false}));
  same(AvgPool2d(2, {}, 0, false, true, 3), "AvgPool2d",
       avg_pool2d(x, {.kernel_size = 2, .divisor_override = 3}));
  same(AdaptiveAvgPool2d({2, 4}), "AdaptiveAvgPool2d", adaptive_avg_pool2d(x, {2, 4}));
  EXPECT_ERROR(GELU("exact"), kInvalid, "approximate must be none or tanh");
}

// As torch.nn.Sequential(Conv2d, BatchNorm2d, MaxPool2d, Flatten).state_dict() prints them.
TEST(Module, NamesAreThoseOfPyTorch) {
  Sequential net = small_net();
  EXPECT_EQ(names(net.state_dict()),
            (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean",
                                      "1.running_var", "1.num_batches_tracked"}));
  EXPECT_EQ(names(net.named_parameters()),
            (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias"}));
  EXPECT_EQ(net.parameter_count(), 18 + 2 + 2 + 2);
  EXPECT_EQ(net.state_dict()[6].tensor.shape(), Shape{});
  EXPECT_EQ(net.state_dict()[6].tensor.dtype(), DType::i64);
  Sequential outer(Conv2d(1, 1, 1, {}, false), Residual(Sequential(Conv2d(1, 1, 1, {}, false))),
                   BatchNorm2d(1, 1e-5, 0.1, false, false));
  EXPECT_EQ(names(outer.state_dict()), (std::vector<std::string>{"0.weight", "1.body.0.weight"}));
}

TEST(Module, ForwardIsThatOfItsParts) {
  Sequential net = small_net();
  const Tensor x = ramp({3, 1, 6, 4});
  const Tensor by_hand = net[3](net[2](net[1](net[0](x))));
  EXPECT_EQ(by_hand.shape(), (Shape{3, 12}));
  EXPECT_EQ(net(x).to_vector<float>(), by_hand.to_vector<float>());
  EXPECT_EQ(AdaptiveAvgPool2d(1)(x).shape(), (Shape{3, 1, 1, 1}));
}

TEST(Module, ResidualAddsInputOrShortcut) {
  Conv2d twice(1, 1, 1, {}, false), thrice(1, 1, 1, {}, false);
  {
    const NoGradGuard no_grad;
    twice.weight.fill_(2.0), thrice.weight.fill_(3.0);
  }
  const auto body = std::make_shared<Conv2d>(std::move(twice));
  const Tensor x = Tensor::ones({1, 1, 2, 2});
  EXPECT_EQ(Residual(body)(x).to_vector<float>(), std::vector<float>(4, 3.0f));
  EXPECT_EQ(Residual(body, std::move(thrice))(x).to_vector<float>(), std::vector<float>(4, 5.0f));
}

TEST(Module, TrainAndEvalReachEveryModule) {
  Sequential net(Residual(Sequential(BatchNorm2d(1))));
  net.eval();
  for (const Module::Entry& entry : net.modules()) EXPECT_FALSE(entry.module->training());
  const Tensor x = ramp({2, 1, 2, 2});
  net(x);
  EXPECT_EQ(net.state_dict()[4].tensor.item<int64_t>(), 0);
  net.train();
  net(x);
  EXPECT_EQ(net.state_dict()[4].tensor.item<int64_t>(), 1);
  EXPECT_EQ(net.modules().size(), 4u);
  EXPECT_EQ(net.modules()[3].path, "0.body.0");
}

// Weights and values follow the dtype, norms and biases its accumulator, counters stay.
TEST(Module, ToDtype) {
  Sequential net = small_net();
  net.to(DType::bf16);
  std::vector<DType> dtypes;
  for (const NamedTensor& entry : net.state_dict()) dtypes.push_back(entry.tensor.dtype());
  EXPECT_EQ(dtypes, (std::vector<DType>{DType::bf16, DType::f32, DType::f32, DType::f32, DType::f32,
                                        DType::f32, DType::i64}));
  const Tensor y = net(ramp({2, 1, 4, 4}).to(DType::bf16));
  EXPECT_EQ(y.dtype(), DType::bf16);
  y.backward(Tensor::ones(y.shape(), y.options()));
  for (const Tensor& p : net.parameters()) EXPECT_EQ(p.grad().dtype(), p.dtype());
  net.to(DType::f64);
  for (const Tensor& p : net.parameters()) {
    EXPECT_EQ(p.dtype(), DType::f64);
    EXPECT_TRUE(p.requires_grad() && p.is_leaf() && !p.grad().defined());
  }
  EXPECT_ERROR(net.to(DType::i32), kInvalid, "floating", "i32");
  Linear layer(3, 2);
  layer.to(DType::f16);
  EXPECT_EQ(layer.weight.dtype(), DType::f16);
  EXPECT_EQ(layer.bias.dtype(), DType::f32);
  EXPECT_EQ(layer(Tensor::ones({4, 3}, {.dtype = DType::f16})).dtype(), DType::f16);
}

// What is there already stays the same tensor, so that an optimizer made before still trains it.
TEST(Module, ToWhereItIsKeepsTheParameters) {
  Conv2d layer(1, 1, 1);
  const std::vector<Tensor> before = layer.parameters();
  sum(layer(Tensor::ones({1, 1, 1, 1}))).backward();
  layer.to(kCpu);
  layer.to(DType::f32);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(is_same(layer.parameters()[i], before[i]));
    EXPECT_TRUE(layer.parameters()[i].grad().defined());
  }
  layer.to(DType::f16);
  EXPECT_FALSE(is_same(layer.weight, before[0]));
  EXPECT_TRUE(is_same(layer.bias, before[1])) << "f32 beside f16";
}

// As torch.nn.Module.named_parameters(); state_dict() has both names.
TEST(Module, ASharedParameterIsListedOnce) {
  TwoConvs net;
  net.second.weight = net.first.weight;
  EXPECT_EQ(names(net.named_parameters()),
            (std::vector<std::string>{"first.weight", "first.bias", "second.bias"}));
  EXPECT_EQ(net.parameter_count(), 2 + 2 + 1);
  EXPECT_EQ(net.state_dict().size(), 4u);
}

// As torch.nn.Module.to(), which keeps ties: otherwise each would be trained by itself.
TEST(Module, ASharedParameterStaysOneWhenConverted) {
  TwoConvs net;
  net.second.weight = net.first.weight;
  net.to(DType::f64);
  EXPECT_TRUE(is_same(net.first.weight, net.second.weight));
  EXPECT_TRUE(net.first.weight.requires_grad());
  EXPECT_EQ(net.first.weight.dtype(), DType::f64);
  EXPECT_EQ(net.parameter_count(), 2 + 2 + 1);
  net.second.bias = net.first.weight;
  net.to(DType::f16);  // biases stay in f32: not one with anything in f16
  EXPECT_TRUE(is_same(net.first.weight, net.second.weight));
  EXPECT_EQ(net.second.bias.dtype(), DType::f32);
  EXPECT_EQ(net.named_parameters().size(), 3u);
}

TEST(Module, ZeroGradForgets) {
  Sequential net = small_net();
  sum(net(ramp({2, 1, 4, 4}))).backward();
  for (const Tensor& p : net.parameters()) EXPECT_TRUE(p.grad().defined());
  net.zero_grad();
  for (const Tensor& p : net.parameters()) EXPECT_FALSE(p.grad().defined());
}

TEST(Module, LoadStateDict) {
  Sequential source = small_net();
  manual_seed(2);
  Sequential target(Conv2d(1, 2, 3, {.padding = {1, 1}}), BatchNorm2d(2));
  EXPECT_NE(target.parameters()[0].to_vector<float>(), source.parameters()[0].to_vector<float>());
  EXPECT_TRUE(target.load_state_dict(source.state_dict()).ok());
  EXPECT_EQ(target.parameters()[0].to_vector<float>(), source.parameters()[0].to_vector<float>());
  source.to(DType::f64);
  EXPECT_TRUE(target.load_state_dict(source.state_dict()).ok());
  EXPECT_EQ(target.parameters()[0].dtype(), DType::f32);
}

TEST(Module, LoadStateDictReportsEveryDifferenceAndChangesNothing) {
  Sequential net = small_net();
  const std::vector<float> before = net.parameters()[1].to_vector<float>();
  const std::vector<NamedTensor> source{
      {"0.weight", Tensor::zeros({1, 2, 3, 3})}, {"0.bias", Tensor::zeros({2})},
      {"1.weight", Tensor::zeros({2})},          {"1.running_mean", Tensor::zeros({2})},
      {"1.running_var", Tensor::zeros({2})},     {"1.num_batches_tracked", Tensor::zeros({})},
      {"9.weight", Tensor::zeros({1})}};
  EXPECT_ERROR(net.load_state_dict(source), kInvalid,
               "load_state_dict: missing 1.bias; unexpected 9.weight; mismatched 0.weight expected "
               "[2,1,3,3], got [1,2,3,3]");
  EXPECT_EQ(net.parameters()[1].to_vector<float>(), before);
  const LoadReport report = net.load_state_dict(source, false);
  EXPECT_EQ(report.missing, std::vector<std::string>{"1.bias"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"9.weight"});
  EXPECT_EQ(report.mismatched.size(), 1u);
  EXPECT_EQ(net.parameters()[1].to_vector<float>(), std::vector<float>(2, 0.0f));
}

TEST(Module, ErrorsCarryThePath) {
  Sequential net(Residual(Sequential(MaxPool2d(1), Conv2d(3, 2, 3))));
  EXPECT_ERROR(net(Tensor::zeros({1, 1, 4, 4})), kInvalid, "0.body.1.conv2d: ");
  EXPECT_ERROR(Conv2d(3, 2, 3)(Tensor::zeros({1, 1, 4, 4})), kInvalid, "conv2d: ");
  Sequential norm(BatchNorm2d(3), BatchNorm1d(3));
  EXPECT_ERROR(norm(Tensor::zeros({3, 3})), kInvalid,
               "0.batch_norm: BatchNorm2d expects rank 4, got f32[3,3]@cpu");
  EXPECT_ERROR(norm(Tensor::zeros({3, 3, 2, 2})), kInvalid,
               "1.batch_norm: BatchNorm1d expects rank 2 or 3, got f32[3,3,2,2]@cpu");
  EXPECT_ERROR(BatchNorm2d(3, 1e-5, 0.1, false, false)(Tensor::zeros({2, 4, 2, 2})), kInvalid,
               "batch_norm: expected 3 channels, got f32[2,4,2,2]@cpu");
  EXPECT_ERROR(Sequential(std::shared_ptr<Module>()), kInvalid, "null");
  EXPECT_ERROR(norm[2], kInvalid, "module 2 of 2");
}

// A text that names bytes is found by its beginning.
TEST(Module, OutOfMemoryIsPassedOnAsItIs) {
  struct Hungry final : Module {
    std::string_view kind() const override { return "Hungry"; }
    Tensor forward(const Tensor&) override {
      fail(ErrorCode::out_of_memory, "out of memory", "asked for 1 byte");
    }
  };
  Sequential net;
  net.add(Hungry());
  try {
    net(Tensor::zeros({1}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "out of memory: asked for 1 byte");
  }
}

TEST(Module, ConstructorErrors) {
  EXPECT_ERROR(Conv2d(0, 1, 3), kInvalid, "channels must be positive, got 0 and 1");
  EXPECT_ERROR(Conv2d(1, 1, 0), kInvalid, "kernel_size", "0x0");
  EXPECT_ERROR(Conv2d(3, 4, 3, {.groups = 2}), kInvalid, "groups 2 must divide 3 and 4");
  EXPECT_ERROR(Conv2d(int64_t{1} << 62, 1, 3), kInvalid, "does not fit 63 bits");
  EXPECT_ERROR(BatchNorm2d(0), kInvalid, "num_features");
  EXPECT_ERROR(Residual(std::shared_ptr<Conv2d>()), kInvalid, "residual", "null pointer");
}

TEST(Module, ObserverSeesEveryModuleInnermostFirst) {
  Sequential net(Residual(Sequential(BatchNorm2d(1))), Flatten());
  std::string seen;
  {
    const ForwardObserver observer([&](const ForwardEvent& event) {
      seen += concat(event.path, ":", event.module.kind(), ":", event.y.shape(), " ");
    });
    net(ramp({2, 1, 2, 2}));
  }
  net(ramp({2, 1, 2, 2}));
  EXPECT_EQ(seen,
            "0.body.0:BatchNorm2d:[2,1,2,2] 0.body:Sequential:[2,1,2,2] 0:Residual:[2,1,2,2] "
            "1:Flatten:[2,4] :Sequential:[2,4] ");
}

std::string paths_of(Module& net, const Tensor& x) {
  std::string paths;
  const ForwardObserver observer([&](const ForwardEvent& event) { paths += event.path + ":"; });
  net(x);
  return paths;
}

TEST(Module, ASharedModuleHasThePathOfEachCall) {
  const auto shared = std::make_shared<Linear>(3, 3);
  const auto block = std::make_shared<Residual>(shared, shared);
  Sequential net(shared, block, ReLU(), shared, block);
  for (int run = 0; run < 2; ++run) {
    EXPECT_EQ(paths_of(net, ramp({1, 3})), "0:1.body:1.shortcut:1:2:3:4.body:4.shortcut:4::");
  }
  EXPECT_ERROR(net(ramp({1, 4})), kInvalid, "0.linear: ");
  EXPECT_ERROR(Sequential(shared, Linear(3, 4), shared)(ramp({1, 3})), kInvalid, "2.linear: ");
  EXPECT_EQ(paths_of(*shared, ramp({1, 3})), ":") << "outermost";
}

// As of blocks that a module keeps in a Sequential and calls one by one.
TEST(Module, ModulesFurtherInHaveTheirWholePath) {
  struct Blocks final : Module {
    Sequential blocks{ReLU(), Flatten()};
    std::string_view kind() const override { return "Blocks"; }
    void list(Contents& own) override { own.child("blocks", blocks); }
    Tensor forward(const Tensor& x) override { return blocks[1](blocks[0](x)); }
  };
  Blocks net;
  EXPECT_EQ(paths_of(net, ramp({1, 3})), "blocks.0:blocks.1::");
}

TEST(Module, ThreadsShareAForward) {
  Sequential net = Sequential(Residual(ReLU()), Flatten());
  const Tensor x = ramp({1, 1});
  for (int round = 0; round < 200; ++round) {
    std::string other;
    std::thread thread([&] { other = paths_of(net, x); });
    const std::string own = paths_of(net, x);
    thread.join();
    ASSERT_EQ(own + other, "0.body:0:1::0.body:0:1::");
  }
}

TEST(Module, UserModulesWithMembers) {
  TwoConvs net;
  EXPECT_EQ(names(net.state_dict()), (std::vector<std::string>{"first.weight", "first.bias",
                                                               "second.weight", "second.bias"}));
  EXPECT_ERROR(net(Tensor::zeros({1, 3, 1, 1})), kInvalid, "first.conv2d: ");
  Sequential outer(std::move(net));
  EXPECT_ERROR(outer(Tensor::zeros({1, 3, 1, 1})), kInvalid, "0.first.conv2d: ");
}

TEST(Init, BoundsMomentsAndSeeds) {
  manual_seed(3);
  const std::vector<float> a = init::kaiming_uniform({64, 16, 3, 3}).to_vector<float>();
  const float bound = 1.0f / std::sqrt(16.0f * 9);
  double sum = 0, squares = 0;
  for (const float value : a) {
    EXPECT_LT(std::abs(value), bound * 1.000001f);
    sum += value, squares += value * value;
  }
  const auto count = static_cast<double>(a.size());
  EXPECT_NEAR(sum / count, 0.0, 0.02 * bound);
  EXPECT_NEAR(squares / count, bound * bound / 3, 0.03 * bound * bound);
  EXPECT_NE(init::kaiming_uniform({64, 16, 3, 3}).to_vector<float>(), a);
  manual_seed(3);
  EXPECT_EQ(init::kaiming_uniform({64, 16, 3, 3}).to_vector<float>(), a);
  manual_seed(4);
  EXPECT_NE(init::kaiming_uniform({64, 16, 3, 3}).to_vector<float>(), a);
  for (const float value : init::bias_uniform({100, 4}).to_vector<float>()) {
    EXPECT_LE(std::abs(value), 0.5f);
  }
  manual_seed(314);  // its draw 15609 is so close to 1 that it rounds to it
  EXPECT_LT(init::uniform({15610}, 0, 1).to_vector<float>().back(), 1);
  EXPECT_ERROR(init::kaiming_uniform({3}), kInvalid, "rank 2");
}

TEST(ModuleCuda, ToDeviceAndBackKeepsEveryBit) {
  GRADUS_SKIP_WITHOUT(kCuda);
  Sequential net = small_net();
  const std::vector<float> before = net.parameters()[0].to_vector<float>();
  net.to(kCuda);
  for (const NamedTensor& entry : net.state_dict()) EXPECT_EQ(entry.tensor.device(), kCuda);
  const Tensor y = net(ramp({2, 1, 4, 4}).to(kCuda));
  sum(y).backward();
  EXPECT_EQ(net.parameters()[0].grad().device(), kCuda);
  net.to(kCpu);
  EXPECT_EQ(net.parameters()[0].to_vector<float>(), before);
  EXPECT_TRUE(net.parameters()[0].requires_grad());
}

}  // namespace
}  // namespace gradus::nn
