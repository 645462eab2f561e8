#include "autograd/ops/cross_entropy.h"

#include <cmath>

#include "autograd/grad_mode.h"
#include "core/generator.h"
#include "core/trace.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/gpu.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(cross_entropy);

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

Tensor logits_of(const std::vector<double>& values, const Shape& shape, DType dtype = DType::f64,
                 Device device = kCpu) {
  return Tensor::from_vector(values, shape, {.dtype = dtype, .device = device})
      .set_requires_grad(true);
}

Tensor labels_of(const std::vector<int64_t>& values, Device device = kCpu) {
  return Tensor::from_vector(values, {static_cast<int64_t>(values.size())},
                             {.dtype = DType::i64, .device = device});
}

std::vector<double> values_of(const Tensor& tensor) { return tensor.to_vector<double>(); }

TEST(CrossEntropy, Golden) {
  int cases = 0;
  for (const ref::Json& json : ref::golden_cases("cross_entropy")) {
    SCOPED_TRACE(json.at("name"));
    const ref::Json &inputs = json.at("inputs"), &args = json.at("args");
    const ref::Array logits = ref::golden_array(inputs, "logits");
    const ref::Array labels = ref::golden_array(inputs, "labels");
    const ref::Array weight = ref::golden_array(inputs, "weight");
    const std::string reduction = args.at("reduction");
    CrossEntropyOptions options{.reduction = reduction == "mean"  ? Reduction::mean
                                             : reduction == "sum" ? Reduction::sum
                                                                  : Reduction::none,
                                .label_smoothing = args.at("label_smoothing"),
                                .ignore_index = args.at("ignore_index")};
    if (!weight.empty()) options.weight = Tensor::from_vector(weight.data, weight.shape);
    const Tensor x = logits_of(logits.data, logits.shape);
    const Tensor y = cross_entropy(
        x, Tensor::from_vector(labels.data, labels.shape, {.dtype = DType::i64}), options);
    const ref::Array dy = ref::golden_array(json.at("dy"));
    y.backward(Tensor::from_vector(dy.data, dy.shape));
    const ref::Array want = ref::golden_array(json.at("outputs").at("y"));
    EXPECT_EQ(y.shape(), want.shape);
    EXPECT_TRUE(agrees(values_of(y), want.data, DType::f64, 20));
    const ref::Array want_dx = ref::golden_array(json.at("gradients").at("logits"));
    EXPECT_TRUE(agrees(values_of(x.grad()), want_dx.data, DType::f64, 20));
    ++cases;
  }
  EXPECT_EQ(cases, 15);
}

// Wrong backward passes that the comparison of the cases must reject, in every dtype. Each is
// d·(p·all - direct) with one thing wrong.
struct Row {
  ref::Real d, divisor, n, p, all, target, label_weight;
  bool is_label, is_ignored;
};

struct Mutant {
  const char* name;
  ref::Real (*gradient)(const Row&);
};

const Mutant kMutants[] = {
    {"no softmax term", [](const Row& r) { return r.d * -r.target; }},
    {"no target term", [](const Row& r) { return r.d * r.p * r.all; }},
    {"softmax term not weighted", [](const Row& r) { return r.d * (r.p - r.target); }},
    {"softmax term weighted by the label only",
     [](const Row& r) { return r.d * (r.p * r.label_weight - r.target); }},
    {"no smoothing",
     [](const Row& r) { return r.d * (r.p * r.label_weight - (r.is_label ? r.label_weight : 0)); }},
    {"sum instead of mean",
     [](const Row& r) { return r.d * r.divisor * (r.p * r.all - r.target); }},
    {"divided by the number of rows",
     [](const Row& r) { return r.d * r.divisor / r.n * (r.p * r.all - r.target); }},
    {"upstream taken for its size",
     [](const Row& r) { return std::abs(r.d) * (r.p * r.all - r.target); }},
};

std::vector<double> mutated(const Mutant& mutant, std::span<const ref::Array> in, double dy,
                            const ref::CrossEntropyOptions& o) {
  const int64_t n = in[0].shape[0], c = in[0].shape[1];
  std::vector<double> dx;
  ref::Real divisor = 0, weights = 0;
  for (int64_t row = 0; row < n; ++row) {
    const auto label = static_cast<int64_t>(in[1][row]);
    divisor += label == o.ignore_index ? 0 : o.weight[label];
  }
  for (int64_t k = 0; k < c; ++k) weights += o.weight[k];
  for (int64_t row = 0; row < n; ++row) {
    const auto label = static_cast<int64_t>(in[1][row]);
    ref::Real total = 0;
    for (int64_t k = 0; k < c; ++k) total += std::exp(ref::Real(in[0].at(row, k)));
    for (int64_t k = 0; k < c; ++k) {
      const ref::Real share = o.label_smoothing / ref::Real(c);
      const ref::Real direct = (1 - o.label_smoothing) * o.weight[label];
      const Row r{.d = dy / divisor,
                  .divisor = divisor,
                  .n = ref::Real(n),
                  .p = std::exp(ref::Real(in[0].at(row, k))) / total,
                  .all = direct + share * weights,
                  .target = share * o.weight[k] + (k == label ? direct : 0),
                  .label_weight = o.weight[label],
                  .is_label = k == label,
                  .is_ignored = label == o.ignore_index};
      dx.push_back(r.is_ignored ? 0 : static_cast<double>(mutant.gradient(r)));
    }
  }
  return dx;
}

TEST(CrossEntropy, MutantsAreRejected) {
  const Mutant right{"right", [](const Row& r) { return r.d * (r.p * r.all - r.target); }};
  for (const OpCase& op_case : test_cases_of("cross_entropy")) {
    if (op_case.name != "everything") continue;
    for (const DType dtype : kDTypes) {
      const std::vector<ref::Array> in = draw_inputs(op_case, dtype, 1);
      const ref::Array dy = ref::full({}, -0.75);
      const ref::CrossEntropyOptions options{
          .label_smoothing = 0.2, .ignore_index = 2, .weight = in[2]};
      const std::vector<double> want = op_case.reference_backward(in, dy)[0].data;
      const auto judge = [&](const Mutant& mutant) {
        return compare(mutated(mutant, in, dy[0], options), want, dtype, op_case.reduction);
      };
      EXPECT_TRUE(assertion(judge(right))) << to_string(dtype);
      for (const Mutant& mutant : kMutants) {
        EXPECT_FALSE(judge(mutant)) << mutant.name << " in " << to_string(dtype);
      }
      std::vector<double> late = want;  // the ignored rows get a gradient
      for (int64_t row = 0; row < in[1].numel(); ++row) {
        if (in[1][row] == 2) late[static_cast<size_t>(row * 4)] = 0.01;
      }
      EXPECT_FALSE(compare(late, want, dtype, op_case.reduction)) << to_string(dtype);
    }
  }
}

TEST(CrossEntropy, LabelsOfEveryDType) {
  const std::vector<int64_t> labels = {2, 0, 1, 2};
  const ref::Array x = draw_upstream({4, 3}, DType::f32, 1);
  const auto loss = [&](DType dtype) {
    return cross_entropy(Tensor::from_vector(x.data, x.shape),
                         Tensor::from_vector(labels, {4}, {.dtype = dtype}))
        .item<double>();
  };
  EXPECT_EQ(loss(DType::u8), loss(DType::i64));
  EXPECT_EQ(loss(DType::i32), loss(DType::i64));
}

void expect_same_as_contiguous(Device device) {
  const ref::Array x = draw_upstream({2, 5, 3, 4}, DType::f32, 1);
  const Tensor labels = Tensor::zeros({2, 3, 4}, {.dtype = DType::i64, .device = device}).fill_(3);
  std::vector<double> first;
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor tensor =
        Tensor::from_vector(x.data, x.shape,
                            {.dtype = DType::f32, .device = device, .format = format})
            .set_requires_grad(true);
    cross_entropy(tensor, labels).backward();
    EXPECT_TRUE(tensor.grad().is_contiguous(format));
    const std::vector<double> dx = values_of(tensor.grad());
    if (first.empty()) first = dx;
    EXPECT_TRUE(agrees(dx, first, DType::f32, 5));
  }
}

TEST(CrossEntropy, GradientKeepsTheLayout) { expect_same_as_contiguous(kCpu); }
TEST(CrossEntropyCuda, GradientKeepsTheLayout) {
  GRADUS_SKIP_WITHOUT(kCuda);
  expect_same_as_contiguous(kCuda);
}

// Only differences between logits matter, however far from 0 they are.
TEST(CrossEntropy, LargeLogits) {
  const Tensor near = logits_of({0, 1, -2}, {1, 3}, DType::f32);
  const Tensor far = logits_of({1e6, 1e6 + 1, 1e6 - 2}, {1, 3}, DType::f32);
  const Tensor a = cross_entropy(near, labels_of({0})), b = cross_entropy(far, labels_of({0}));
  EXPECT_EQ(values_of(a), values_of(b));
  a.backward();
  b.backward();
  EXPECT_EQ(values_of(near.grad()), values_of(far.grad()));
  const Tensor huge = logits_of({3e38, -3e38, 0}, {1, 3}, DType::f32);
  const Tensor loss = cross_entropy(huge, labels_of({0}));
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  for (const double d : values_of(huge.grad())) EXPECT_NEAR(d, 0, 1e-37);  // exp may end above 0
}

void expect_non_finite_rows(Device device) {
  for (const DType dtype : kDTypes) {
    const Tensor x = logits_of({0, -kInf, 0,          // the class that cannot be
                                0, kNaN, 0,           // NaN
                                -kInf, -kInf, -kInf,  // no class can be
                                1, 2, 3},
                               {4, 3}, dtype, device);
    const Tensor y =
        cross_entropy(x, labels_of({1, 0, 0, 2}, device), {.reduction = Reduction::none});
    const std::vector<double> loss = values_of(y);
    EXPECT_EQ(loss[0], kInf);
    EXPECT_TRUE(std::isnan(loss[1]));
    EXPECT_TRUE(std::isnan(loss[2]));
    EXPECT_NEAR(loss[3], 0.40760596, 1e-6);
    y.backward(Tensor::ones({4}, {.dtype = y.dtype(), .device = device}));
    const std::vector<double> dx = values_of(x.grad());
    EXPECT_EQ(std::vector<double>(dx.begin(), dx.begin() + 3), (std::vector<double>{0.5, -1, 0.5}));
    for (size_t i = 3; i < 9; ++i) EXPECT_TRUE(std::isnan(dx[i])) << i;
    EXPECT_NEAR(dx[9], 0.09003, dtype == DType::bf16 ? 3e-4 : 3e-5);
  }
}

TEST(CrossEntropy, NonFiniteRows) { expect_non_finite_rows(kCpu); }
TEST(CrossEntropyCuda, NonFiniteRows) {
  GRADUS_SKIP_WITHOUT(kCuda);
  expect_non_finite_rows(kCuda);
}

void expect_nothing_counted(Device device) {
  for (const Shape& shape : {Shape{0, 4}, Shape{3, 4}, Shape{0, 4, 2}, Shape{2, 4, 0}}) {
    Shape label_shape{shape[0]};
    if (shape.rank() == 3) label_shape.append(shape[2]);
    const Tensor labels =
        Tensor::zeros(label_shape, {.dtype = DType::i64, .device = device}).fill_(-100);
    for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
      const Tensor x = Tensor::ones(shape, {.device = device}).set_requires_grad(true);
      const Tensor y = cross_entropy(x, labels, {.reduction = reduction});
      const bool is_none = reduction == Reduction::none;
      EXPECT_EQ(y.shape(), is_none ? label_shape : Shape{});
      for (const double value : values_of(y)) {
        if (reduction == Reduction::mean) {
          EXPECT_TRUE(std::isnan(value));
        } else {
          EXPECT_EQ(value, 0);
        }
      }
      y.backward(Tensor::ones(y.shape(), {.device = device}));
      EXPECT_EQ(values_of(x.grad()), std::vector<double>(static_cast<size_t>(x.numel()), 0.0));
    }
  }
}

TEST(CrossEntropy, NothingCounted) { expect_nothing_counted(kCpu); }
TEST(CrossEntropyCuda, NothingCounted) {
  GRADUS_SKIP_WITHOUT(kCuda);
  expect_nothing_counted(kCuda);
}

TEST(CrossEntropy, TwoLaunchesAndNoCopies) {
  const Tensor x = logits_of({1, 2, 3, 4}, {2, 2}, DType::bf16);
  const Trace trace;
  const Tensor y = cross_entropy(x, labels_of({0, 1}));
  EXPECT_EQ(y.dtype(), DType::f32);
  float one = 1;
  y.backward(Tensor::wrap(&one, {}));
  std::vector<std::string_view> names;
  for (const TraceRecord& record : trace.records()) names.push_back(record.name);
  EXPECT_EQ(names,
            (std::vector<std::string_view>{"cross_entropy_forward", "cross_entropy_backward"}));
  EXPECT_EQ(x.grad().dtype(), DType::bf16);
}

TEST(CrossEntropy, Errors) {
  const auto invalid = ErrorCode::invalid_argument;
  const Tensor x = Tensor::zeros({2, 3}), labels = labels_of({0, 1});
  EXPECT_ERROR(cross_entropy(x, labels_of({0, 1, 2})), invalid, "expected labels [2]",
               "f32[2,3]@cpu", "i64[3]@cpu");
  EXPECT_ERROR(cross_entropy(x, Tensor::zeros({2})), invalid, "of u8, i32 or i64", "f32[2]@cpu");
  EXPECT_ERROR(cross_entropy(Tensor::zeros({2}), labels), invalid, "expected logits [n, c, ...]");
  EXPECT_ERROR(cross_entropy(labels_of({0, 1}).reshape({2, 1}), labels), invalid, "floating");
  EXPECT_ERROR(cross_entropy(Tensor::zeros({2, 0}), labels), invalid, "at least one class");
  EXPECT_ERROR(cross_entropy(x, labels, {.label_smoothing = 1.5}), invalid, "label_smoothing",
               "1.5");
  EXPECT_ERROR(cross_entropy(x, labels, {.weight = Tensor::ones({2})}), invalid,
               "expected class weights f32[3]", "f32[2]@cpu");
  EXPECT_ERROR(cross_entropy(x, labels, {.weight = Tensor::ones({3}, {.dtype = DType::f64})}),
               invalid, "expected class weights f32[3]", "f64[3]@cpu");
}

// Kernels read labels and weights one after another.
TEST(CrossEntropy, LabelsAndWeightsMayBeStrided) {
  const Tensor x = logits_of({1, 2, 4, 3, 1, 0.5}, {2, 3}),
               same = logits_of({1, 2, 4, 3, 1, 0.5}, {2, 3});
  const TensorOptions f64{.dtype = DType::f64};
  const Tensor weight = Tensor::from_vector<double>({2, 9, 3, 9, 5, 9}, {6}, f64).slice(0, 0, 6, 2);
  const Tensor labels = labels_of({2, 7, 0, 7}).slice(0, 0, 4, 2);
  const Tensor y = cross_entropy(x, labels, {.weight = weight});
  const Tensor want = cross_entropy(same, labels_of({2, 0}), {.weight = weight.contiguous()});
  EXPECT_EQ(y.item<double>(), want.item<double>());
  y.backward();
  want.backward();
  EXPECT_EQ(x.grad().to_vector<double>(), same.grad().to_vector<double>());
}

// Rows and gradients from any address on: the same as of an aligned copy.
TEST(CrossEntropyCuda, RowsMayBeginAnywhere) {
  GRADUS_SKIP_WITHOUT(kCuda);
  for (const auto& [rows, classes] : {std::pair<int64_t, int64_t>{70, 301}, {3, 8203}}) {
    const ref::Array values = draw_upstream({rows * classes + 8}, DType::f32, 1);
    const Tensor labels = randint(0, classes, {rows}).to(kCuda);
    for (const DType dtype : kDTypes) {
      const Tensor all = logits_of(values.data, values.shape, dtype, kCuda).detach();
      for (const int64_t first : {0, 1, 2, 3, 5, 8}) {
        SCOPED_TRACE(testing::Message()
                     << classes << " from " << first << ", " << to_string(dtype));
        const Tensor view = all.slice(0, first, first + rows * classes).reshape({rows, classes});
        const Tensor x = view.detach().set_requires_grad(true);
        const Tensor copy = view.clone().set_requires_grad(true);
        const Tensor loss = cross_entropy(x, labels, {.label_smoothing = 0.125});
        const Tensor want = cross_entropy(copy, labels, {.label_smoothing = 0.125});
        loss.backward();
        want.backward();
        EXPECT_TRUE(agrees(values_of(loss), values_of(want), loss.dtype(), classes));
        EXPECT_TRUE(agrees(values_of(x.grad()), values_of(copy.grad()), dtype, classes));
      }
    }
  }
}

// A few rows are worked on by fewer lanes.
TEST(CrossEntropy, ARowIsTheSameAmongMany) {
  constexpr int64_t kRows = 70, kClasses = 37;
  const ref::Array values = draw_upstream({kRows, kClasses}, DType::f32, 1);
  const Tensor labels = randint(0, kClasses, {kRows});
  for (const DType dtype : kDTypes) {
    const auto loss_of = [&](const Tensor& x, const Tensor& own_labels) {
      return cross_entropy(x, own_labels,
                           {.weight = Tensor::full({kClasses}, 0.75, {.dtype = acc_dtype(dtype)}),
                            .reduction = Reduction::none,
                            .label_smoothing = 0.125});
    };
    Tensor all = logits_of(values.data, values.shape, dtype);
    const Tensor loss = loss_of(all, labels);
    loss.backward(Tensor::full({kRows}, 0.5, loss.options()));
    for (const int64_t count : {1, 3, 9, 17}) {
      Tensor x = all.detach().slice(0, 0, count).clone().set_requires_grad(true);
      const Tensor own = loss_of(x, labels.slice(0, 0, count));
      own.backward(Tensor::full({count}, 0.5, own.options()));
      EXPECT_EQ(values_of(own), values_of(loss.detach().slice(0, 0, count))) << count;
      EXPECT_EQ(values_of(x.grad()), values_of(all.grad().slice(0, 0, count))) << count;
    }
  }
}

TEST(CrossEntropy, SavedLogitsChangedInPlace) {
  Tensor x = logits_of({1, 2, 3, 4}, {2, 2});
  const Tensor y = cross_entropy(x, labels_of({0, 1}));
  {
    const NoGradGuard no_grad;
    x.zero_();
  }
  EXPECT_ERROR(y.backward(), ErrorCode::autograd, "cross_entropy", "logits f64[2,2]", "version");
}

}  // namespace
}  // namespace gradus
