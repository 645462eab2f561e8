// Every normalization between two layers, in training and in evaluation: what lies before it
// learns.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/sum.h"
#include "nn/batch_norm.h"
#include "nn/group_norm.h"
#include "nn/instance_norm.h"
#include "nn/layer_norm.h"
#include "nn/linear.h"
#include "nn/local_response_norm.h"
#include "nn/optim/sgd.h"
#include "nn/rms_norm.h"
#include "nn/sequential.h"
#include "tests/support/each_device.h"

namespace gradus::nn {
namespace {

struct Norm {
  std::string name;
  std::function<std::shared_ptr<Module>()> make;  // for [n, 2, 4]
};

template <class M, class... Arguments>
Norm norm(std::string name, Arguments... arguments) {
  return {std::move(name), [=] { return std::make_shared<M>(arguments...); }};
}

const Norm kNorms[] = {
    norm<BatchNorm1d>("batch_norm", 2),
    norm<GroupNorm>("group_norm", 2, 2),
    norm<InstanceNorm1d>("instance_norm", 2, 1e-5, 0.1, true),
    norm<LayerNorm>("layer_norm", Shape{4}),
    norm<RMSNorm>("rms_norm", Shape{4}),
    norm<LocalResponseNorm>("local_response_norm", 3),
};

class NormLearning : public test::EachDevice {};
GRADUS_ON_EACH_DEVICE(NormLearning);

TEST_P(NormLearning, D028_OneStepChangesEveryParameter) {
  const Device device = GetParam();
  for (const Norm& norm : kNorms) {
    for (const bool training : {true, false}) {
      SCOPED_TRACE(concat(norm.name, training ? ", training" : ", evaluation"));
      Sequential net(Linear(4, 4), norm.make(), Linear(4, 3));
      net.to(device);
      net.train(training);
      std::vector<double> values(24);
      for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(0.7 * (i + 1) * (i + 2));
      const Tensor x =
          Tensor::from_vector(values, {3, 2, 4}, {.dtype = DType::f32, .device = device});
      const Tensor weights = Tensor::from_vector(std::vector<double>{1, 3, -2}, {3},
                                                 {.dtype = DType::f32, .device = device});
      std::vector<std::vector<double>> before;
      const std::vector<NamedTensor> parameters = net.named_parameters();
      for (const auto& [name, tensor] : parameters) before.push_back(tensor.to_vector<double>());
      SGD optimizer(parameters, {.lr = 0.1});
      const Tensor y = net(x);
      sum(y * y * weights).backward();
      optimizer.step();
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_NE(parameters[i].tensor.to_vector<double>(), before[i]) << parameters[i].name;
      }
    }
  }
}

}  // namespace
}  // namespace gradus::nn
