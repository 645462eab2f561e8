// Ten training steps of a tiny CNN against PyTorch: losses, and every tensor of the state_dict at
// the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops/cross_entropy.h"
#include "nn/activation.h"
#include "nn/batch_norm.h"
#include "nn/conv2d.h"
#include "nn/flatten.h"
#include "nn/linear.h"
#include "nn/max_pool2d.h"
#include "nn/optim/sgd.h"
#include "nn/sequential.h"
#include "tests/support/each_device.h"
#include "tests/support/golden.h"

namespace gradus::nn {
namespace {

Tensor tensor_of(const ref::Json& json, DType dtype, Device device) {
  const ref::Array array = ref::golden_array(json);
  return Tensor::from_vector(array.data, array.shape, {.dtype = dtype, .device = device});
}

void load_initial(Sequential& net, const ref::Json& initial) {
  std::vector<NamedTensor> values;
  for (const auto& [key, value] : initial.items()) {
    values.push_back({key, tensor_of(value, DType::f64, kCpu)});
  }
  net.load_state_dict(values);
}

// |got - want| within `relative` of the largest magnitude of the tensor.
void expect_close(const Tensor& got, const ref::Array& want, double relative,
                  const std::string& name) {
  double scale = 0;
  for (const double value : want.data) scale = std::max(scale, std::abs(value));
  const std::vector<double> values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.data.size()) << name;
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], want.data[i], relative * scale) << name << " " << i;
  }
}

void train_and_compare(DType dtype, Device device, MemoryFormat format, double relative) {
  const ref::Json json = ref::golden_cases("tiny_cnn").at(0);
  Sequential net(Conv2d(1, 4, 3, {.padding = {1, 1}}, false), BatchNorm2d(4), ReLU(),
                 Conv2d(4, 6, 3, {.padding = {1, 1}}), BatchNorm2d(6), ReLU(), MaxPool2d(2),
                 Flatten(), Linear(96, 10));
  net.to(dtype);
  load_initial(net, json.at("initial"));
  net.to(device);
  const ref::Json& args = json.at("args");
  SGD optimizer(net.named_parameters(), {.momentum = args.at("momentum"),
                                         .weight_decay = args.at("weight_decay"),
                                         .nesterov = args.at("nesterov")});
  const ref::Json& steps = json.at("steps");
  std::vector<double> rates;
  for (const ref::Json& step : steps) rates.push_back(step.at("lr"));
  optimizer.set_schedule([&](int64_t t) { return rates[static_cast<size_t>(t)]; },
                         std::ssize(rates));
  for (const ref::Json& step : steps) {
    const Tensor x = tensor_of(step.at("x"), dtype, device).contiguous(format);
    const Tensor loss = cross_entropy(net(x), tensor_of(step.at("labels"), DType::i64, device));
    const double want = step.at("loss");
    EXPECT_NEAR(loss.item<double>(), want, relative * want);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  for (const NamedTensor& entry : net.state_dict()) {
    expect_close(entry.tensor, ref::golden_array(json.at("final").at(entry.name)), relative,
                 entry.name);
  }
  EXPECT_EQ(net.state_dict().size(), json.at("final").size());
}

class TinyCnn : public test::EachDevice {};

TEST_P(TinyCnn, TenStepsF64) {
  train_and_compare(DType::f64, GetParam(), MemoryFormat::contiguous, 1e-9);
  train_and_compare(DType::f64, GetParam(), MemoryFormat::channels_last, 1e-9);
}

TEST_P(TinyCnn, TenStepsF32) {
  train_and_compare(DType::f32, GetParam(), MemoryFormat::contiguous, 1e-5);
  train_and_compare(DType::f32, GetParam(), MemoryFormat::channels_last, 1e-5);
}

GRADUS_ON_EACH_DEVICE(TinyCnn);

}  // namespace
}  // namespace gradus::nn
