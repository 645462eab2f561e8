// gradus::compare(): a network's layers by themselves, and what it finds when one is wrong.
#include "nn/compare/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/autocast.h"
#include "autograd/node.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/sum.h"
#include "core/generator.h"
#include "nn/activation.h"
#include "nn/batch_norm.h"
#include "nn/conv2d.h"
#include "nn/dropout.h"
#include "nn/linear.h"
#include "nn/models.h"
#include "nn/trainer.h"
#include "tests/support/compared_modules.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

using test::Doubled;
using test::Shifted;

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

nn::Batch drawn_batch(const Shape& shape, int64_t classes = 10, uint64_t seed = 3) {
  Generator generator(kCpu, seed);
  const Tensor x = randn(shape, {}, &generator);
  return {x, randint(0, classes, {shape[0]}, {.dtype = DType::i64}, &generator)};
}

CompareOptions quick(std::vector<DType> dtypes = {DType::f32}) {
  return {.dtypes = std::move(dtypes), .repeats = 0};
}

const CompareRow& row_at(const CompareReport& report, const std::string& path) {
  for (const CompareRow& row : report.rows) {
    if (row.path == path) return row;
  }
  throw std::out_of_range(path);
}

const CompareValue& value_of(const CompareRow& row, const std::string& name) {
  for (const CompareValue& value : row.values) {
    if (value.name == name) return value;
  }
  throw std::out_of_range(name);
}

// What is wrong, "1 Doubled dx" and so on.
std::string wrong_values(const CompareReport& report) {
  std::string text;
  for (const CompareRow& row : report.rows) {
    for (const CompareValue& value : row.values) {
      if (!value.ok()) text += concat(row.path, " ", row.layer, " ", value.name, "; ");
    }
  }
  return text;
}

TEST(Compare, EveryLayerOfEveryModelIsRight) {
  for (const std::string& norm : nn::norm_names()) {
    manual_seed(1);
    nn::Sequential net = nn::make_model("lenet", {.height = 16, .width = 16, .norm = norm});
    const CompareReport report =
        compare(net, drawn_batch({4, 1, 16, 16}), quick({std::begin(kDTypes), std::end(kDTypes)}));
    EXPECT_TRUE(report.ok()) << norm << ": " << wrong_values(report);
    EXPECT_GT(report.rows.size(), 4u * 10u);
  }
}

TEST(Compare, ResidualBlocksAreRightAndTheirSumIsARow) {
  manual_seed(1);
  nn::Sequential net = nn::make_model("resnet8", {.channels = 3, .height = 8, .width = 8});
  const CompareReport report = compare(net, drawn_batch({2, 3, 8, 8}), quick());
  EXPECT_TRUE(report.ok()) << wrong_values(report);
  const CompareRow& sum = row_at(report, "4.0");
  EXPECT_EQ(sum.layer, "Residual");
  EXPECT_EQ(sum.case_name, "own");
  value_of(sum, "dy of 4.0.body");  // throws if there is none
}

TEST(Compare, ASharedModuleHasARowForEachPlace) {
  const auto shared = std::make_shared<nn::Linear>(4, 4);
  nn::Sequential net(shared, nn::Tanh(), shared);
  std::vector<std::string> paths;
  for (const CompareRow& row : compare(net, drawn_batch({6, 4}, 4), quick()).rows) {
    paths.push_back(row.path);
  }
  EXPECT_EQ(paths, (std::vector<std::string>{"0", "1", "2", "loss"}));
}

TEST(Compare, LeavesTheModelAsItWas) {
  manual_seed(1);
  nn::Sequential net(nn::Conv2d(1, 4, 3), nn::BatchNorm2d(4), nn::Dropout(0.5));
  const std::string before = nn::parameter_hash(net);
  const Tensor weight = net.parameters()[0];
  const auto draws = default_generator(kCpu).state();
  const CompareReport report =
      compare(net, drawn_batch({2, 1, 6, 6}, 4),
              {.loss = [](const Tensor& y) { return mean(y * y); }, .repeats = 0});
  EXPECT_TRUE(report.ok()) << wrong_values(report);
  EXPECT_EQ(nn::parameter_hash(net), before);
  EXPECT_EQ(net.parameters()[0].storage(), weight.storage());
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_EQ(default_generator(kCpu).state(), draws);
}

TEST(Compare, BuffersAreCompared) {
  nn::Sequential net(nn::BatchNorm2d(3));
  const CompareReport report = compare(net, {drawn_batch({4, 3, 5, 5}).x, {}}, quick());
  EXPECT_TRUE(report.ok()) << wrong_values(report);
  EXPECT_EQ(value_of(row_at(report, "0"), "running_var").direction, CompareDirection::forward);
}

// The terms of dx cancel to eps·rstd² of their size.
TEST(Compare, NormalizationOfTwoValues) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    nn::Sequential net(nn::BatchNorm1d(16));
    const CompareReport report = compare(net, {drawn_batch({2, 16}, 10, seed).x, {}},
                                         quick({std::begin(kDTypes), std::end(kDTypes)}));
    EXPECT_TRUE(report.ok()) << "seed " << seed << ": " << wrong_values(report);
  }
}

// An infinity in one image makes its loss NaN, and so the gradient that arrives at all layers; what
// ReLU makes of -inf is finite all the same.
TEST(Compare, GradientsThatAreNotFiniteHaveNoDifferences) {
  manual_seed(1);
  nn::Sequential net(nn::Linear(6, 6), nn::ReLU(), nn::Linear(6, 3));
  nn::Batch batch = drawn_batch({5, 6}, 3);
  batch.x.slice(0, 0, 1).slice(1, 3, 4).fill_(HUGE_VAL);
  const CompareReport report = compare(net, batch, quick());
  EXPECT_TRUE(report.ok()) << wrong_values(report);
  const CompareDifferences relu = value_of(row_at(report, "1"), "dx").differences.value();
  EXPECT_TRUE(relu.has_power) << "the other images";
  EXPECT_TRUE(std::isfinite(relu.want));
}

TEST(Compare, FindsABackwardThatIsWrongEverywhere) {
  nn::Sequential net(nn::Conv2d(1, 4, 3), Doubled(1.99), nn::BatchNorm2d(4));
  const CompareReport report = compare(net, {drawn_batch({2, 1, 6, 6}).x, {}}, quick());
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(wrong_values(report), "1 Doubled dx; ");
  const CompareValue& dx = value_of(row_at(report, "1"), "dx");
  EXPECT_TRUE(dx.errors[0].ok) << "the same in f64, so only differences tell";
  ASSERT_TRUE(dx.differences);
  EXPECT_FALSE(dx.differences->ok);
  EXPECT_NEAR(dx.differences->got / dx.differences->want, 1.99 / 2, 1e-6);
  nn::Sequential right(nn::Conv2d(1, 4, 3), Doubled(2), nn::BatchNorm2d(4));
  const CompareReport other = compare(right, {drawn_batch({2, 1, 6, 6}).x, {}}, quick());
  EXPECT_TRUE(other.ok()) << wrong_values(other);
}

TEST(Compare, FindsAForwardThatIsWrongInOneDtypeAndWhere) {
  nn::Sequential net(Doubled(2), Shifted(1e-3, 17));
  const CompareReport report =
      compare(net, {drawn_batch({2, 1, 6, 6}).x, {}}, quick({DType::f32, DType::f64}));
  EXPECT_EQ(wrong_values(report), "1 Shifted y; ");
  const CompareError& error = value_of(row_at(report, "1"), "y").errors[0];
  EXPECT_EQ(error.beyond, 1);
  EXPECT_EQ(error.worst, 17);
  EXPECT_NEAR(error.got[0] - error.want, 1e-3, 1e-6);
  EXPECT_EQ(std::accumulate(error.histogram.begin(), error.histogram.end(), int64_t{0}), 72);
}

// A module that computes on its own, with a child in the middle.
struct Gate final : nn::Module {
  explicit Gate(double factor) : inner(2), outer(factor) {}
  std::string_view kind() const override { return "Gate"; }
  void list(nn::Contents& own) override { own.child("inner", inner); }
  Tensor forward(const Tensor& x) override { return x * inner(test::doubled(x, outer)); }
  Doubled inner;
  double outer;
};

TEST(Compare, FindsWhatAModuleWithChildrenDoesWrongItself) {
  nn::Sequential wrong(Gate(1.9)), right(Gate(2));
  const CompareReport report = compare(wrong, {drawn_batch({3, 7}).x, {}}, quick());
  EXPECT_EQ(wrong_values(report), "0 Gate dx; ");
  const CompareReport other = compare(right, {drawn_batch({3, 7}).x, {}}, quick());
  EXPECT_TRUE(other.ok()) << wrong_values(other);
}

TEST(Compare, ToleranceCanBeGiven) {
  manual_seed(1);
  nn::Sequential net(nn::Conv2d(1, 4, 3), Shifted(1e-3, 3));
  CompareOptions options = quick();
  const nn::Batch batch{drawn_batch({2, 1, 6, 6}).x, {}};
  options.tolerance = 1e-12;
  EXPECT_FALSE(row_at(compare(net, batch, options), "0").ok());
  options.tolerance = 0.1;
  EXPECT_TRUE(compare(net, batch, options).ok());
  // A hundredth of the largest value, 8, and no more where the value itself is that.
  options.tolerance = 0.01;
  nn::Sequential at_largest(Shifted(0.1, 1));
  const nn::Batch two{Tensor::from_vector<float>({1, 4}, {1, 2}), {}};
  const CompareRow row = compare(at_largest, two, options).rows.at(0);
  EXPECT_FALSE(row.ok());
  EXPECT_NEAR(row.values[0].errors[0].allowed, 0.08, 1e-3);
}

TEST(Compare, TimesComeWithRoofs) {
  nn::Sequential net(nn::Conv2d(1, 4, 3), nn::BatchNorm2d(4));
  const CompareReport report = compare(net, {drawn_batch({2, 1, 6, 6}).x, {}}, {.repeats = 1});
  for (const CompareDevice& device : report.devices) {
    EXPECT_GT(device.copy_gb_per_s, 0);
    EXPECT_EQ(device.tflop_per_s.size(), 1u);
  }
  for (const CompareRow& row : report.rows) {
    ASSERT_EQ(row.times.size(), 2 * report.devices.size()) << row.layer;
    for (const CompareTime& time : row.times) {
      EXPECT_GT(time.seconds, 0);
      EXPECT_GT(time.bytes, 0);
      EXPECT_GT(time.share, 0);
    }
  }
}

// Its products would be judged by the tolerances of f32.
TEST(Compare, IsRefusedUnderAutocast) {
  nn::Sequential net(nn::Linear(6, 3));
  const AutocastGuard autocast(DType::bf16);
  EXPECT_ERROR(compare(net, drawn_batch({5, 6}, 3), quick()), ErrorCode::invalid_argument,
               "compare: autocast is in force");
}

TEST(Compare, ErrorsNameTheModule) {
  nn::Sequential net(nn::Conv2d(3, 4, 3));
  EXPECT_ERROR(compare(net, drawn_batch({2, 1, 6, 6}), quick()), ErrorCode::invalid_argument,
               "conv2d");
  EXPECT_ERROR(compare(net, drawn_batch({2, 3, 6, 6}), {.dtypes = {}}), ErrorCode::invalid_argument,
               "dtype");
}

// As one without parameters is easily forgotten.
TEST(Compare, AModuleThatIsNotListedIsNamed) {
  struct Forgetful final : nn::Module {
    std::string_view kind() const override { return "Forgetful"; }
    void list(nn::Contents& own) override { own.child("hidden", hidden); }
    Tensor forward(const Tensor& x) override { return activation(hidden(x)); }
    nn::Linear hidden{6, 3};
    nn::ReLU activation;
  };
  Forgetful net;
  EXPECT_ERROR(compare(net, drawn_batch({5, 6}, 3), quick()), ErrorCode::invalid_argument,
               "compare", "ReLU", "list()");
}

TEST(CompareCuda, TheGpuIsHeldAgainstTheSameReference) {
  GRADUS_SKIP_WITHOUT(kCuda);
  for (const std::string& norm : nn::norm_names()) {
    manual_seed(1);
    nn::Sequential net = nn::make_model("small_cnn", {.norm = norm});
    const CompareReport report =
        compare(net, drawn_batch({8, 1, 28, 28}), quick({std::begin(kDTypes), std::end(kDTypes)}));
    ASSERT_EQ(report.devices.size(), 2u);
    EXPECT_TRUE(report.missing.empty());
    EXPECT_TRUE(report.ok()) << norm << ": " << wrong_values(report);
  }
}

TEST(Compare, SaysWhatIsMissingWithoutAGpu) {
  nn::Sequential net(Doubled(2));
  const CompareReport report = compare(net, {drawn_batch({2, 3}).x, {}}, quick());
  EXPECT_EQ(report.missing.size(), report.devices.size() == 1 ? 1u : 0u);
  if (report.devices.size() == 1) {
    EXPECT_NE(report.missing[0].find("CUDA is not compared"), std::string::npos);
  }
}

}  // namespace
}  // namespace gradus
