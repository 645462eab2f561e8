// SGD, the schedules, and ten training steps of a tiny CNN, put together from the references.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/reference.h"
#include "tests/support/reference_check.h"

namespace gradus::ref {
namespace {

SgdOptions sgd_options(const Json& args) {
  return {.momentum = args.at("momentum"),
          .nesterov = args.at("nesterov"),
          .weight_decay = args.at("weight_decay")};
}

TEST(ReferenceSgd, Golden) {
  int cases = 0;
  for (const Json& json : golden_cases("sgd")) {
    SCOPED_TRACE(json.at("args").dump());
    ++cases;
    Array w = golden_array(json.at("initial")), velocity;
    for (const Json& step : json.at("steps")) {
      sgd_step(w, golden_array(step.at("gradient")), velocity, step.at("lr"),
               sgd_options(json.at("args")));
      EXPECT_TRUE(agrees_with_golden(w, step.at("w"), 4));
    }
  }
  EXPECT_EQ(cases, 5);
}

TEST(ReferenceSchedules, Golden) {
  int rates = 0;
  for (const Json& json : golden_cases("schedules")) {
    const std::string name = json.at("name");
    const Json& args = json.at("args");
    const double lr = json.at("lr");
    for (int64_t t = 0; t < static_cast<int64_t>(json.at("rates").size()); ++t, ++rates) {
      const double got = name == "cosine" ? cosine(lr, t, args.at("steps"))
                         : name == "step" ? step_decay(lr, t, args.at("every"), args.at("factor"))
                                          : one_cycle(lr, t, args.at("steps"), args.at("up"));
      EXPECT_NEAR(got, json.at("rates")[t].get<double>(), 1e-15) << name << " at step " << t;
    }
  }
  EXPECT_EQ(rates, 36);
}

TEST(ReferenceSchedules, OneCycleEnds) {
  EXPECT_EQ(one_cycle(0.1, 0, 10, 0.2), 0);
  EXPECT_DOUBLE_EQ(one_cycle(0.1, 1, 10, 0.2), 0.05);
  EXPECT_DOUBLE_EQ(one_cycle(0.1, 2, 10, 0.2), 0.1);
  EXPECT_DOUBLE_EQ(one_cycle(0.1, 9, 10, 0.2), 0.0125);
  EXPECT_DOUBLE_EQ(one_cycle(0.1, 1, 4, 0.3), 0.1 / 1.2);  // the peak lies between two steps
  EXPECT_EQ(constant(0.1, 7), 0.1);
}

// conv 1->4, BN, ReLU, conv 4->6, BN, ReLU, max pool 2, flatten, linear 96->10.
class TinyCnn {
 public:
  explicit TinyCnn(const Json& json) : sgd_(sgd_options(json.at("args"))) {
    for (const auto& [name, tensor] : json.at("initial").items())
      state_[name] = golden_array(tensor);
  }

  double step(const Array& x, const Array& labels, double lr) {
    const Array conv0 = conv2d(x, state_["0.weight"], {}, kConv);
    const Array norm1 = normalize("1", conv0);
    const Array relu2 = relu(norm1);
    const Array conv3 = conv2d(relu2, state_["3.weight"], state_["3.bias"], kConv);
    const Array norm4 = normalize("4", conv3);
    const Array relu5 = relu(norm4);
    Array flat = max_pool2d(relu5, {}).y;
    const Shape pooled = flat.shape;
    flat.shape = {pooled[0], pooled[1] * pooled[2] * pooled[3]};
    const Array logits = linear(flat, state_["8.weight"], state_["8.bias"]);
    const double loss = cross_entropy(logits, labels, {})[0];

    auto last = linear_backward(flat, state_["8.weight"],
                                cross_entropy_backward(logits, labels, full({}, 1), {}));
    last.dx.shape = pooled;
    const Array dnorm4 = relu_backward(norm4, max_pool2d_backward(relu5, last.dx, {}));
    const auto bn4 = batch_norm_train_backward(conv3, state_["4.weight"], dnorm4, kEps);
    const auto c3 = conv2d_backward(relu2, state_["3.weight"], bn4.dx, kConv);
    const auto bn1 =
        batch_norm_train_backward(conv0, state_["1.weight"], relu_backward(norm1, c3.dx), kEps);
    const auto c0 = conv2d_backward(x, state_["0.weight"], bn1.dx, kConv);

    const std::pair<const char*, const Array*> gradients[] = {
        {"0.weight", &c0.dw},   {"1.weight", &bn1.dgamma}, {"1.bias", &bn1.dbeta},
        {"3.weight", &c3.dw},   {"3.bias", &c3.db},        {"4.weight", &bn4.dgamma},
        {"4.bias", &bn4.dbeta}, {"8.weight", &last.dw},    {"8.bias", &last.db}};
    for (const auto& [name, gradient] : gradients) {
      sgd_step(state_[name], *gradient, velocity_[name], lr, sgd_);
    }
    return loss;
  }

  const std::map<std::string, Array>& state() const { return state_; }

 private:
  static constexpr double kEps = 1e-5;
  static inline const Conv2dOptions kConv{.padding_h = 1, .padding_w = 1};

  Array normalize(const std::string& layer, const Array& x) {
    Array& mean = state_[layer + ".running_mean"];
    Array& var = state_[layer + ".running_var"];
    auto out = batch_norm_train(x, state_[layer + ".weight"], state_[layer + ".bias"], kEps,
                                {mean, var}, 0.1);
    mean = out.running.mean;
    var = out.running.var;
    state_[layer + ".num_batches_tracked"][0] += 1;
    return out.y;
  }

  SgdOptions sgd_;
  std::map<std::string, Array> state_, velocity_;
};

TEST(ReferenceTraining, TenStepsOfTinyCnn) {
  const Json json = golden_cases("tiny_cnn").at(0);
  TinyCnn net(json);
  int steps = 0;
  for (const Json& step : json.at("steps")) {
    const double want = step.at("loss");
    const double got =
        net.step(golden_array(step.at("x")), golden_array(step.at("labels")), step.at("lr"));
    EXPECT_NEAR(got, want, 1e-13 * want) << "step " << steps;
    ++steps;
  }
  EXPECT_EQ(steps, 10);
  EXPECT_EQ(net.state().size(), 15u);
  for (const auto& [name, got] : net.state()) {
    const Array want = golden_array(json.at("final").at(name));
    EXPECT_TRUE(agrees(got.data, want.data, DType::f64,
                       Tolerance{.relative = 0, .of_scale = 1e-13, .absolute = 1e-14}))
        << name;
  }
}

}  // namespace
}  // namespace gradus::ref
