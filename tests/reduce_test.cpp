// max, min, prod, norm2, logsumexp, var, std: values, axes, gradients, wrong variants of them.
#include "autograd/ops/reduce.h"

#include <cmath>

#include "autograd/grad_mode.h"
#include "core/trace.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(reduce);

using Values = std::vector<double>;
using Axes = std::vector<int>;

class Reduce : public test::EachDevice {
 protected:
  Tensor make(const Values& values, const Shape& shape, DType dtype = DType::f64) {
    return Tensor::from_vector(values, shape, {.dtype = dtype, .device = GetParam()});
  }
  Tensor leaf(const Values& values, const Shape& shape, DType dtype = DType::f64) {
    return make(values, shape, dtype).set_requires_grad(true);
  }
};
GRADUS_ON_EACH_DEVICE(Reduce);

TEST_P(Reduce, ValuesOfASmallSet) {
  const Tensor x = make({1, -2, 4, 5}, {4});
  EXPECT_EQ(max(x).item<double>(), 5);
  EXPECT_EQ(min(x).item<double>(), -2);
  EXPECT_EQ(prod(x).item<double>(), -40);
  EXPECT_DOUBLE_EQ(norm2(x).item<double>(), std::sqrt(46.0));
  EXPECT_DOUBLE_EQ(logsumexp(x).item<double>(),
                   std::log(std::exp(1) + std::exp(-2) + std::exp(4) + std::exp(5)));
  EXPECT_DOUBLE_EQ(var(x).item<double>(), 10);
  EXPECT_DOUBLE_EQ(var(x, {}, 0).item<double>(), 7.5);
  EXPECT_DOUBLE_EQ(var(x, {}, 2.5).item<double>(), 20);
  EXPECT_DOUBLE_EQ(std(x, {}, 0).item<double>(), std::sqrt(7.5));
}

TEST_P(Reduce, RemovesOrKeepsAxes) {
  const Tensor x = Tensor::ones({2, 3, 4}, {.device = GetParam()});
  EXPECT_EQ(max(x).shape(), Shape{});
  EXPECT_EQ(var(x, {}, 0, true).shape(), (Shape{1, 1, 1}));
  EXPECT_EQ(prod(x, {-1}).shape(), (Shape{2, 3}));
  EXPECT_EQ(norm2(x, {0, 2}).shape(), (Shape{3}));
  EXPECT_EQ(logsumexp(x, {2, 0}, true).shape(), (Shape{1, 3, 1}));
  EXPECT_EQ(std(Tensor::full({}, 3, {.device = GetParam()}), {}, 0).item<float>(), 0);
}

TEST_P(Reduce, RefusesWhatCannotWork) {
  const Tensor x = Tensor::ones({2, 3}, {.device = GetParam()});
  EXPECT_ERROR(max(x, {2}), ErrorCode::invalid_argument, "max: axis 2");
  EXPECT_ERROR(min(x, {1, -1}), ErrorCode::invalid_argument, "min: axis -1 is named twice");
  EXPECT_ERROR(prod(x.to(DType::i32)), ErrorCode::invalid_argument,
               "prod: expected a floating dtype, got i32[2,3]@");
  EXPECT_ERROR(var(x, {0}, -1), ErrorCode::invalid_argument,
               "var: expected a correction of at least 0, got -1");
  EXPECT_ERROR(std(x, {0}, NAN), ErrorCode::invalid_argument,
               "std: expected a correction of at least 0, got nan");
}

// Every set of axes of several layouts: the same values as of a contiguous copy with the reduced
// axes moved to the back.
TEST_P(Reduce, AnyAxesOfAnyStrides) {
  Values values;
  for (int i = 0; i < 120; ++i) values.push_back(1 + std::sin(i) / 4);
  const Tensor x = make(values, {2, 3, 4, 5});
  const auto of_all = [](const Tensor& t, const Axes& axes) {
    return std::vector<Tensor>{max(t, axes),       min(t, axes), prod(t, axes), norm2(t, axes),
                               logsumexp(t, axes), var(t, axes), std(t, axes)};
  };
  for (int mask = 1; mask < 16; ++mask) {
    Axes axes, order, back;
    int64_t kept = 1;
    for (int axis = 0; axis < 4; ++axis) {
      (mask >> axis & 1 ? axes : order).push_back(axis);
      if (!(mask >> axis & 1)) kept *= x.size(axis);
    }
    order.insert(order.end(), axes.begin(), axes.end());
    const std::vector<Tensor> want = of_all(x.permute(order).contiguous().reshape({kept, -1}), {1});
    for (const Tensor& t : {x, x.contiguous(MemoryFormat::channels_last),
                            x.permute({3, 1, 0, 2}).clone().permute({2, 1, 3, 0}),
                            x.unsqueeze(4).expand({2, 3, 4, 5, 2}).slice(4, 1, 2).squeeze(4)}) {
      const std::vector<Tensor> got = of_all(t, axes);
      for (size_t r = 0; r < got.size(); ++r) {
        const Values a = got[r].to_vector<double>(), b = want[r].to_vector<double>();
        ASSERT_EQ(a.size(), b.size());
        for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-13) << mask << " " << r;
      }
    }
  }
}

// x that is no dense tensor: its gradient is dense, and right.
TEST_P(Reduce, GradientOfAStridedView) {
  Tensor x = leaf({1, 9, 2, 9, 3, 9, 4, 9, 5, 9, 6, 9}, {2, 6});
  norm2(x.slice(1, 0, 6, 2), {0}).backward(make({1, 2, 3}, {3}));
  const Values got = x.grad().to_vector<double>();
  const double n0 = std::sqrt(17.0), n1 = std::sqrt(29.0), n2 = std::sqrt(45.0);
  const Values want{1 / n0, 0, 4 / n1, 0, 9 / n2, 0, 4 / n0, 0, 10 / n1, 0, 18 / n2, 0};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-15) << i;
}

// Rows of several vectors, of which a view has every third element.
TEST_P(Reduce, GradientOfALongStridedView) {
  Values values;
  for (int i = 0; i < 300; ++i) values.push_back(1 + std::sin(i) / 4);
  for (const Axes& axes : {Axes{0}, Axes{1}, Axes{}}) {
    const auto gradient = [&](const Tensor& given) {
      Tensor x = given.detach().set_requires_grad(true);
      const Tensor y = std(x, axes);
      y.backward(make(Values(values.begin(), values.begin() + y.numel()), y.shape()));
      return x.grad().to_vector<double>();
    };
    const Tensor x = make(values, {2, 150}).slice(1, 1, 150, 3);
    const Values got = gradient(x), want = gradient(x.contiguous());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-14) << i;
  }
}

// Two launches and no other: nothing is copied on the way.
TEST_P(Reduce, ChannelsLastIsNotCopied) {
  Tensor x =
      Tensor::ones({2, 3, 4, 5}, {.device = GetParam(), .format = MemoryFormat::channels_last})
          .set_requires_grad(true);
  const Tensor dy = Tensor::ones({2, 4, 5}, {.device = GetParam()});
  Trace trace;
  var(x, {1}).backward(dy);
  std::vector<std::string> names;
  for (const TraceRecord& record : trace.records()) names.emplace_back(record.name);
  EXPECT_EQ(names, (std::vector<std::string>{"reduce_forward", "reduce_backward"}));
  EXPECT_TRUE(x.grad().is_contiguous(MemoryFormat::channels_last));
}

TEST_P(Reduce, AWrittenOutputStopsTheBackwardPass) {
  Tensor x = leaf({1, 2, 3}, {3});
  const Tensor y = max(x);
  {
    const NoGradGuard no_grad;
    Tensor(y).fill_(7);
  }
  EXPECT_ERROR(y.backward(), ErrorCode::autograd, "max");
}

}  // namespace
}  // namespace gradus
