// Views: which of them share memory, what they read, what they refuse, and their gradients.
#include "autograd/gradcheck.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/sum.h"
#include "core/tensor.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

using Values = std::vector<double>;
constexpr auto kInvalid = ErrorCode::invalid_argument;

class Views : public test::EachDevice {
 protected:
  Tensor iota(const Shape& shape, DType dtype = DType::f64) {
    Values values(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
    return Tensor::from_vector(values, shape, {.dtype = dtype, .device = GetParam()});
  }
  // Weighted by different numbers, so that no two elements of the gradient are alike.
  void expect_right_gradient(const Shape& shape, const std::function<Tensor(const Tensor&)>& view) {
    Tensor x = (iota(shape) * 0.1 - 0.55).detach().set_requires_grad(true);
    const GradcheckResult result = gradcheck([&] { return view(x) * view(x); }, {x});
    EXPECT_TRUE(result && result.has_power) << result.text;
  }
};
GRADUS_ON_EACH_DEVICE(Views);

bool shares_memory(const Tensor& a, const Tensor& b) { return a.storage() == b.storage(); }

TEST_P(Views, ReshapeIsAViewWhereItCanBe) {
  const Tensor x = iota({2, 3, 4});
  for (const Shape& shape : {Shape{24}, Shape{6, 4}, Shape{2, 12}, Shape{2, 1, 3, 2, 2}}) {
    const Tensor y = x.reshape(shape);
    EXPECT_TRUE(shares_memory(x, y)) << to_string(shape);
    EXPECT_EQ(y.to_vector<double>(), x.to_vector<double>());
  }
  EXPECT_EQ(x.reshape({4, -1}).shape(), (Shape{4, 6}));
  EXPECT_EQ(iota({1, 1}).reshape({}).shape(), Shape{});
  EXPECT_EQ(iota({}).reshape({1, 1, 1}).shape(), (Shape{1, 1, 1}));
  // Splitting an axis of a strided tensor and merging axes that stay together need no copy.
  const Tensor columns = x.slice(2, 1, 3);
  EXPECT_TRUE(shares_memory(x, columns.reshape({6, 2})));
  EXPECT_TRUE(shares_memory(x, columns.reshape({2, 3, 1, 2})));
  EXPECT_EQ(columns.reshape({6, 2}).to_vector<double>(), columns.to_vector<double>());
  const Tensor repeated = iota({1, 3}).expand({4, 3});
  EXPECT_TRUE(shares_memory(repeated, repeated.reshape({2, 2, 3})));
  // The stride of an axis of 1 says nothing, and that of a new one is as in a fresh tensor.
  const Tensor odd = x.as_strided({2, 1, 3}, {3, 99, 1}, 0);
  EXPECT_TRUE(shares_memory(x, odd.reshape({6})));
  EXPECT_TRUE(shares_memory(x, odd.contiguous()));
  EXPECT_EQ(x.unsqueeze(0).strides(), (Strides{24, 12, 4, 1}));
}

TEST_P(Views, ReshapeCopiesWhereItMust) {
  const Tensor x = iota({2, 3, 4});
  const Tensor transposed = x.transpose(0, 1).reshape({6, 4});
  EXPECT_FALSE(shares_memory(x, transposed));
  EXPECT_EQ(transposed.to_vector<double>(), x.transpose(0, 1).to_vector<double>());
  const Tensor columns = x.slice(2, 1, 3).reshape({12});
  EXPECT_FALSE(shares_memory(x, columns));
  EXPECT_EQ(columns.to_vector<double>(), x.slice(2, 1, 3).to_vector<double>());
  const Tensor nhwc = iota({2, 3, 2, 2}).contiguous(MemoryFormat::channels_last);
  EXPECT_FALSE(shares_memory(nhwc, nhwc.flatten(1)));
  EXPECT_EQ(nhwc.flatten(1).to_vector<double>(), iota({2, 12}).to_vector<double>());
}

TEST_P(Views, ReshapeRefusals) {
  const Tensor x = iota({2, 3});
  EXPECT_ERROR(x.reshape({4, 2}), kInvalid, "reshape: cannot read f64[2,3]@", "as [4,2]");
  EXPECT_ERROR(x.reshape({4, -1}), kInvalid, "reshape: cannot infer -1 in [4,-1]");
  EXPECT_ERROR(x.reshape({-1, -1}), kInvalid, "0 or more, or -1 for one of them, got [-1,-1]");
  EXPECT_ERROR(x.reshape({-2, 3}), kInvalid,
               "an extent must be 0 or more, or -1 for one of them, got [-2,3]");
}

TEST_P(Views, FlattenSqueezeUnsqueeze) {
  const Tensor x = iota({2, 3, 4, 5});
  EXPECT_EQ(x.flatten().shape(), Shape{120});
  EXPECT_EQ(x.flatten(1).shape(), (Shape{2, 60}));
  EXPECT_EQ(x.flatten(1, 2).shape(), (Shape{2, 12, 5}));
  EXPECT_EQ(iota({}).flatten().shape(), Shape{1});
  EXPECT_ERROR(iota({}).flatten(1), kInvalid, "flatten: axis 1 ");
  EXPECT_EQ(x.unsqueeze(0).shape(), (Shape{1, 2, 3, 4, 5}));
  EXPECT_EQ(x.unsqueeze(-1).shape(), (Shape{2, 3, 4, 5, 1}));
  EXPECT_EQ(x.unsqueeze(2).squeeze(2).shape(), x.shape());
  EXPECT_ERROR(x.squeeze(1), kInvalid, "squeeze: axis 1 of f64[2,3,4,5]@", "is not 1");
  EXPECT_ERROR(x.flatten(2, 1), kInvalid, "flatten: expected start_axis <= end_axis");
  EXPECT_ERROR(x.unsqueeze(6), kInvalid, "unsqueeze: axis 6");
}

TEST_P(Views, PermuteAndTranspose) {
  const Tensor x = iota({2, 3, 4});
  const Tensor y = x.permute({2, 0, -2});
  EXPECT_TRUE(shares_memory(x, y));
  EXPECT_EQ(y.shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(y.permute({1, 2, 0}).to_vector<double>(), x.to_vector<double>());
  EXPECT_EQ(iota({2, 3}).transpose(0, -1).to_vector<double>(), (Values{0, 3, 1, 4, 2, 5}));
  EXPECT_ERROR(x.permute({0, 1}), kInvalid, "permute: expected 3 axes, got 2");
  EXPECT_ERROR(x.permute({0, 1, 1}), kInvalid, "permute: axis 1 is named twice");
  EXPECT_ERROR(x.transpose(0, 3), kInvalid, "transpose: axis 3 is outside a tensor of rank 3");
}

TEST_P(Views, Slice) {
  const Tensor x = iota({3, 4});
  EXPECT_TRUE(shares_memory(x, x.slice(0, 1, 2)));
  EXPECT_EQ(x.slice(0, 1, 3).to_vector<double>(), (Values{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(x.slice(1, 0, 4, 3).to_vector<double>(), (Values{0, 3, 4, 7, 8, 11}));
  EXPECT_EQ(x.slice(-1, -2, 100).to_vector<double>(), (Values{2, 3, 6, 7, 10, 11}));
  EXPECT_EQ(x.slice(1, 1, -1).to_vector<double>(), (Values{1, 2, 5, 6, 9, 10}));
  EXPECT_EQ(x.slice(0, 3, 3).shape(), (Shape{0, 4}));
  EXPECT_EQ(x.slice(0, 2, 1).shape(), (Shape{0, 4}));
  EXPECT_ERROR(x.slice(0, 4, 5), kInvalid, "slice: start 4 is outside axis 0 of f64[3,4]@");
  EXPECT_ERROR(x.slice(0, -4, 5), kInvalid, "slice: start -4 is outside axis 0 of f64[3,4]@");
  EXPECT_ERROR(x.slice(0, 0, 3, 0), kInvalid, "slice: step must be positive, got 0");
  EXPECT_ERROR(x.slice(2, 0, 1), kInvalid, "slice: axis 2");
}

TEST_P(Views, Expand) {
  const Tensor x = iota({2, 1});
  const Tensor y = x.expand({3, 2, 2});
  EXPECT_TRUE(shares_memory(x, y));
  EXPECT_EQ(y.strides()[0], 0);
  EXPECT_EQ(y.strides()[2], 0);
  EXPECT_EQ(y.to_vector<double>(), (Values{0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1}));
  EXPECT_EQ(y.clone().strides(), (Strides{4, 2, 1}));
  EXPECT_EQ(x.expand({2, 0}).numel(), 0);
  EXPECT_EQ(x.expand({3, -1, 2}).to_vector<double>(), y.to_vector<double>());
  EXPECT_EQ(x.expand({-1, -1}).shape(), x.shape());
  EXPECT_EQ(iota({0, 3}).expand({2, -1, -1}).shape(), (Shape{2, 0, 3}));
  EXPECT_ERROR(x.expand({-1, 2, 2}), kInvalid, "expand: ", "-1 for an axis of f64[2,1]@",
               "got [-1,2,2]");
  EXPECT_ERROR(x.expand({2, -2}), kInvalid, "expand: ", "got [2,-2]");
  EXPECT_ERROR(x.expand({3, 2}), kInvalid, "expand: shapes [2,1] and [3,2] do not broadcast");
  EXPECT_ERROR(x.expand({1}), kInvalid, "expand: f64[2,1]@", "does not broadcast to [1]");
}

TEST_P(Views, Broadcasting) {
  const auto both = [](const Shape& a, const Shape& b) { return broadcast_shapes(a, b, "op"); };
  EXPECT_EQ(both({2, 3}, {3}), (Shape{2, 3}));
  EXPECT_EQ(both({2, 1}, {1, 3}), (Shape{2, 3}));
  EXPECT_EQ(both({}, {4}), (Shape{4}));
  EXPECT_EQ(both({0}, {1}), (Shape{0}));
  EXPECT_ERROR(both({0}, {2}), kInvalid, "op: shapes [0] and [2] do not broadcast");
  EXPECT_ERROR(both({2, 3}, {2}), kInvalid, "op: shapes [2,3] and [2] do not broadcast");
}

TEST_P(Views, Gradients) {
  expect_right_gradient({2, 6}, [](const Tensor& x) { return x.reshape({3, 4}); });
  expect_right_gradient({2, 6}, [](const Tensor& x) { return x.transpose(0, 1).reshape({4, 3}); });
  expect_right_gradient({2, 2, 3}, [](const Tensor& x) { return x.permute({2, 0, 1}); });
  expect_right_gradient({3, 4}, [](const Tensor& x) { return x.slice(1, 1, 4, 2); });
  expect_right_gradient({3, 4}, [](const Tensor& x) { return x.slice(0, -1, 3).slice(1, 0, 2); });
  expect_right_gradient({2, 1, 3}, [](const Tensor& x) { return x.expand({2, 2, 4, 3}); });
  expect_right_gradient({2, 1, 3}, [](const Tensor& x) { return x.expand({-1, 4, -1}); });
  expect_right_gradient({2, 1, 3}, [](const Tensor& x) { return x.squeeze(1).unsqueeze(0); });
  expect_right_gradient({1, 2, 2, 3}, [](const Tensor& x) {
    return x.contiguous(MemoryFormat::channels_last).flatten(1);
  });
  expect_right_gradient({2, 3}, [](const Tensor& x) { return x.clone(); });
}

TEST_P(Views, GradientsPassThroughDTypesAndDevices) {
  Tensor x = iota({4}, DType::f32).set_requires_grad(true);
  const Tensor y = x.to(DType::bf16).to(kCpu).to(DType::f64).to(GetParam());
  EXPECT_EQ(y.dtype(), DType::f64);
  (y * y).backward(iota({4}));
  EXPECT_EQ(x.grad().dtype(), DType::f32);
  EXPECT_EQ(x.grad().device(), GetParam());
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{0, 2, 8, 18}));
  EXPECT_ERROR(x.to(DType::i64), kInvalid, "to: a gradient cannot pass through i64");
}

}  // namespace
}  // namespace gradus
