// The reference of batch normalization against PyTorch, finite differences and cases known by hand.
#include "tests/support/reference_norm.h"

#include <gtest/gtest.h>

#include "tests/support/reference_check.h"

namespace gradus::ref {
namespace {

struct NormCase {
  std::string name;
  Array x, gamma, beta, dy;
  RunningStats running;
  double eps;
  int64_t m;

  explicit NormCase(const Json& json)
      : name(json.at("name")),
        x(golden_array(json.at("inputs"), "x")),
        gamma(golden_array(json.at("inputs"), "gamma")),
        beta(golden_array(json.at("inputs"), "beta")),
        dy(golden_array(json.at("dy"))),
        running{golden_array(json.at("inputs"), "running_mean"),
                golden_array(json.at("inputs"), "running_var")},
        eps(json.at("args").at("eps")),
        m(x.numel() / x.shape[1]) {}
};

void expect_gradients(const BatchNormGradients& got, const Json& json, int64_t m) {
  const Json& want = json.at("gradients");
  EXPECT_TRUE(agrees_with_golden(got.dx, want.at("x"), m));
  if (!want.contains("gamma")) return;
  EXPECT_TRUE(agrees_with_golden(got.dgamma, want.at("gamma"), m));
  EXPECT_TRUE(agrees_with_golden(got.dbeta, want.at("beta"), m));
}

TEST(ReferenceBatchNorm, GoldenTrain) {
  int cases = 0;
  for (const Json& json : golden_cases("batch_norm")) {
    const NormCase c(json);
    if (!c.name.ends_with("_train")) continue;
    SCOPED_TRACE(c.name);
    ++cases;
    const Json& momentum_json = json.at("args").at("momentum");
    std::optional<double> momentum;
    if (!momentum_json.is_null()) momentum = momentum_json.get<double>();

    const Json& outputs = json.at("outputs");
    const auto first = batch_norm_train(c.x, c.gamma, c.beta, c.eps, c.running, momentum);
    EXPECT_TRUE(agrees_with_golden(first.y, outputs.at("y"), c.m));
    EXPECT_TRUE(agrees_with_golden(first.running.mean, outputs.at("running_mean"), c.m));
    EXPECT_TRUE(agrees_with_golden(first.running.var, outputs.at("running_var"), c.m));
    EXPECT_EQ(first.running.batches, 1);

    const Array second_x = golden_array(json.at("inputs").at("second_x"));
    const auto second = batch_norm_train(second_x, {}, {}, c.eps, first.running, momentum);
    EXPECT_TRUE(agrees_with_golden(second.running.mean, outputs.at("second_running_mean"), c.m));
    EXPECT_TRUE(agrees_with_golden(second.running.var, outputs.at("second_running_var"), c.m));

    expect_gradients(batch_norm_train_backward(c.x, c.gamma, c.dy, c.eps), json, c.m);
  }
  EXPECT_EQ(cases, 4);
}

TEST(ReferenceBatchNorm, GoldenEval) {
  int cases = 0;
  for (const Json& json : golden_cases("batch_norm")) {
    const NormCase c(json);
    if (!c.name.ends_with("_eval")) continue;
    SCOPED_TRACE(c.name);
    ++cases;
    const auto& [mean, var, batches] = c.running;
    EXPECT_TRUE(agrees_with_golden(batch_norm_eval(c.x, c.gamma, c.beta, c.eps, mean, var),
                                   json.at("outputs").at("y"), c.m));
    expect_gradients(batch_norm_eval_backward(c.x, c.gamma, c.dy, c.eps, mean, var), json, c.m);
  }
  EXPECT_EQ(cases, 4);
}

TEST(ReferenceBatchNorm, FiniteDifferences) {
  int cases = 0;
  for (const Json& json : golden_cases("batch_norm")) {
    const NormCase c(json);
    SCOPED_TRACE(c.name);
    ++cases;
    const bool train = c.name.ends_with("_train");
    const auto& [mean, var, batches] = c.running;
    const auto forward = [&](const Array& x, const Array& gamma, const Array& beta) {
      return train ? batch_norm_train(x, gamma, beta, c.eps).y
                   : batch_norm_eval(x, gamma, beta, c.eps, mean, var);
    };
    const auto gradients = train ? batch_norm_train_backward(c.x, c.gamma, c.dy, c.eps)
                                 : batch_norm_eval_backward(c.x, c.gamma, c.dy, c.eps, mean, var);
    EXPECT_TRUE(agrees_with_differences(
        gradients.dx, [&](const Array& x) { return forward(x, c.gamma, c.beta); }, c.x, c.dy));
    if (c.gamma.empty()) continue;
    EXPECT_TRUE(agrees_with_differences(
        gradients.dgamma, [&](const Array& gamma) { return forward(c.x, gamma, c.beta); }, c.gamma,
        c.dy));
    EXPECT_TRUE(agrees_with_differences(
        gradients.dbeta, [&](const Array& beta) { return forward(c.x, c.gamma, beta); }, c.beta,
        c.dy));
  }
  EXPECT_EQ(cases, 8);
}

// Mean far from 0 against the spread: E[x^2] - E[x]^2 would lose everything in f32.
TEST(ReferenceBatchNorm, LargeOffset) {
  const Array x = array({4, 1}, {19999.5, 20000, 20000.5, 20000});
  const auto out = batch_norm_train(x, {}, {}, 1e-5);
  const Tolerance digits{.relative = 0, .of_scale = 0, .absolute = 5e-7};
  EXPECT_TRUE(
      agrees(out.y.data, std::vector<double>{-1.414157, 0, 1.414157, 0}, DType::f64, digits));
  const auto gradients = batch_norm_train_backward(x, {}, array({4, 1}, {1, 0, 0, 0}), 1e-5);
  EXPECT_TRUE(agrees(gradients.dx.data,
                     std::vector<double>{0.7071916, -0.7070785, 0.7069654, -0.7070785}, DType::f64,
                     digits));
}

// eps stays out of the running variance, which takes the unbiased one.
TEST(ReferenceBatchNorm, RunningStatistics) {
  const RunningStats start{array({1}, {0}), array({1}, {1})};
  const auto flat = batch_norm_train(array({4, 1}, {3, 3, 3, 3}), {}, {}, 0.5, start, 0.1);
  EXPECT_DOUBLE_EQ(flat.running.mean[0], 0.3);
  EXPECT_DOUBLE_EQ(flat.running.var[0], 0.9);

  RunningStats running = start;
  const Array x = array({2, 1, 1, 2}, {0, 2, 4, 6});
  for (int step = 0; step < 3; ++step) {
    running = batch_norm_train(x, {}, {}, 1e-5, running, 0.1).running;
  }
  EXPECT_NEAR(running.mean[0], 0.813, 1e-15);
  EXPECT_NEAR(running.var[0], 0.729 + 0.271 * 20 / 3, 1e-15);

  RunningStats average = start;
  const std::vector<std::vector<double>> batches = {{1, 3}, {2, 6}, {8, 10}};
  const double means[] = {2, 3, 5}, vars[] = {2, 5, 4};
  for (int step = 0; step < 3; ++step) {
    average = batch_norm_train(array({2, 1}, batches[step]), {}, {}, 1e-5, average, {}).running;
    EXPECT_NEAR(average.mean[0], means[step], 1e-14);
    EXPECT_NEAR(average.var[0], vars[step], 1e-14);
    EXPECT_EQ(average.batches, step + 1);
  }
}

TEST(ReferenceBatchNorm, EmptyBatch) {
  const RunningStats start{array({2}, {1, 2}), array({2}, {3, 4}), 7};
  const Array x = zeros({0, 2, 3});
  const auto out = batch_norm_train(x, {}, {}, 1e-5, start, 0.1);
  EXPECT_EQ(out.y.shape, x.shape);
  EXPECT_EQ(out.running.mean.data, start.mean.data);
  EXPECT_EQ(out.running.var.data, start.var.data);
  EXPECT_EQ(out.running.batches, 7);
  const auto gradients = batch_norm_train_backward(x, {}, x, 1e-5);
  EXPECT_EQ(gradients.dgamma.data, std::vector<double>(2, 0.0));
  EXPECT_EQ(gradients.dbeta.data, std::vector<double>(2, 0.0));
}

}  // namespace
}  // namespace gradus::ref
