// Empty tensors through every op, forward and backward, on both devices: results of the right
// shape, gradients of 0, and no launch error, which would surface in the next operation.
#include <gtest/gtest.h>

#include "autograd/ops/activation.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/avg_pool2d.h"
#include "autograd/ops/batch_norm.h"
#include "autograd/ops/conv2d.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/group_norm.h"
#include "autograd/ops/instance_norm.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/local_response_norm.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/max_pool2d.h"
#include "autograd/ops/nll_loss.h"
#include "autograd/ops/pointwise_loss.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/sum.h"
#include "tests/support/each_device.h"

namespace gradus {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

class EmptyTensors : public test::EachDevice {
 protected:
  Tensor zeros(const Shape& shape, DType dtype) const {
    return Tensor::zeros(shape, {.dtype = dtype, .device = GetParam()});
  }
  Tensor leaf(const Shape& shape, DType dtype) const {
    return zeros(shape, dtype).set_requires_grad(true);
  }

  // f(x) for an empty x has the shape `y`; x's gradient is x's shape, and so empty too. The next
  // operation works.
  template <class F>
  void expect_empty(const std::string& what, const Shape& x_shape, const Shape& y_shape, F f) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(concat(what, " of ", to_string(dtype), to_string(x_shape)));
      const Tensor x = leaf(x_shape, dtype);
      const Tensor y = f(x);
      EXPECT_EQ(to_string(y.shape()), to_string(y_shape));
      ASSERT_TRUE(y.requires_grad());
      y.backward(Tensor::ones(y.shape(), {.dtype = y.dtype(), .device = GetParam()}));
      ASSERT_TRUE(x.grad().defined());
      EXPECT_EQ(x.grad().shape(), x_shape);
      const Tensor next = Tensor::from_vector(std::vector<double>{-1, 2}, {2},
                                              {.dtype = dtype, .device = GetParam()});
      EXPECT_EQ(relu(next).to_vector<double>(), (std::vector<double>{0, 2}));
    }
  }
};
GRADUS_ON_EACH_DEVICE(EmptyTensors);

const Shape kShapes[] = {{0}, {0, 3}, {3, 0}};

TEST_P(EmptyTensors, D106_Elementwise) {
  for (const Shape& shape : kShapes) {
    for (const std::string& name : activation_names()) {
      const Activation activation = parse_activation(name);
      expect_empty(name, shape, shape, [&](const Tensor& x) { return activate(x, activation); });
    }
    expect_empty("affine", shape, shape, [](const Tensor& x) { return x * 2.0 + 1.0; });
    expect_empty("add", shape, shape, [](const Tensor& x) { return x + x; });
    expect_empty("sub", shape, shape, [](const Tensor& x) { return x - x; });
    expect_empty("mul", shape, shape, [](const Tensor& x) { return x * x; });
    expect_empty("div", shape, shape, [](const Tensor& x) { return x / x; });
    expect_empty("copy", shape, shape, [](const Tensor& x) { return x.to(DType::f64); });
    expect_empty("softmax", shape, shape, [](const Tensor& x) { return softmax(x, -1); });
    expect_empty("log_softmax", shape, shape, [](const Tensor& x) { return log_softmax(x, 0); });
    expect_empty("broadcast", shape, shape,
                 [&](const Tensor& x) { return x + zeros({1}, x.dtype()); });
    Shape column = shape;
    column[shape.rank() - 1] = 1;
    expect_empty("broadcast of a column", shape, shape,
                 [&](const Tensor& x) { return x + zeros(column, x.dtype()); });
  }
}

TEST_P(EmptyTensors, D106_Reductions) {
  for (const Shape& shape : kShapes) {
    expect_empty("sum", shape, {}, [](const Tensor& x) { return sum(x); });
    expect_empty("mean", shape, {}, [](const Tensor& x) { return mean(x); });
  }
  using Reduction = Tensor (*)(const Tensor&, const std::vector<int>&);
  const std::pair<const char*, Reduction> reductions[] = {
      {"prod", [](const Tensor& x, const std::vector<int>& axes) { return prod(x, axes); }},
      {"norm2", [](const Tensor& x, const std::vector<int>& axes) { return norm2(x, axes); }},
      {"logsumexp",
       [](const Tensor& x, const std::vector<int>& axes) { return logsumexp(x, axes); }},
      {"var", [](const Tensor& x, const std::vector<int>& axes) { return var(x, axes); }},
      {"std", [](const Tensor& x, const std::vector<int>& axes) { return std(x, axes); }}};
  for (const auto& [name, reduce] : reductions) {
    const auto over = [f = reduce](std::vector<int> axes) {
      return [f, axes](const Tensor& x) { return f(x, axes); };
    };
    expect_empty(name, {0, 3}, {3}, over({0}));
    expect_empty(name, {0, 3}, {0}, over({1}));
    expect_empty(name, {3, 0}, {}, over({}));
  }
  expect_empty("max of rows", {0, 3}, {0}, [](const Tensor& x) { return max(x, {1}); });
  expect_empty("min of columns", {3, 0}, {0}, [](const Tensor& x) { return min(x, {0}); });
  expect_empty("sum of rows", {0, 3}, {0}, [](const Tensor& x) { return sum(x, {1}); });
  expect_empty("sum of columns", {0, 3}, {3}, [](const Tensor& x) { return sum(x, {0}); });
  expect_empty("mean of no values", {3, 0}, {3, 1},
               [](const Tensor& x) { return mean(x, {1}, true); });
}

TEST_P(EmptyTensors, D106_Losses) {
  for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    for (const Shape& shape : kShapes) {
      const Shape y = reduction == Reduction::none ? shape : Shape{};
      const auto target = [&](const Tensor& x) { return zeros(x.shape(), x.dtype()); };
      expect_empty("mse", shape, y,
                   [&](const Tensor& x) { return mse_loss(x, target(x), reduction); });
      expect_empty("l1", shape, y,
                   [&](const Tensor& x) { return l1_loss(x, target(x), reduction); });
      expect_empty("smooth_l1", shape, y,
                   [&](const Tensor& x) { return smooth_l1_loss(x, target(x), reduction); });
      expect_empty("bce", shape, y, [&](const Tensor& x) {
        return binary_cross_entropy_with_logits(x, target(x), {.reduction = reduction});
      });
    }
    const Shape rows = reduction == Reduction::none ? Shape{0} : Shape{};
    const Tensor labels = zeros({0}, DType::i64);
    expect_empty("cross_entropy", {0, 3}, rows, [&](const Tensor& x) {
      return cross_entropy(x, labels, {.reduction = reduction});
    });
    expect_empty("nll", {0, 3}, rows,
                 [&](const Tensor& x) { return nll_loss(x, labels, {.reduction = reduction}); });
  }
}

// Parameters of an empty batch get gradients of 0.
TEST_P(EmptyTensors, D106_Normalizations) {
  for (const Shape& shape : {Shape{0, 4}, Shape{0, 4, 3}, Shape{0, 4, 2, 3}, Shape{2, 4, 0, 3}}) {
    for (const DType dtype : kDTypes) {
      const Tensor gamma = leaf({4}, acc_dtype(dtype)), beta = leaf({4}, acc_dtype(dtype));
      const Tensor x = zeros(shape, dtype);
      (batch_norm(x, gamma, beta) + group_norm(x, 2, gamma, beta) + instance_norm(x, gamma, beta))
          .backward(zeros(shape, dtype));
      EXPECT_EQ(gamma.grad().to_vector<double>(), std::vector<double>(4, 0.0));
      EXPECT_EQ(beta.grad().to_vector<double>(), std::vector<double>(4, 0.0));
    }
    expect_empty("batch_norm", shape, shape, [](const Tensor& x) { return batch_norm(x); });
    expect_empty("group_norm", shape, shape, [](const Tensor& x) { return group_norm(x, 2); });
    expect_empty("instance_norm", shape, shape, [](const Tensor& x) { return instance_norm(x); });
    expect_empty("local_response_norm", shape, shape,
                 [](const Tensor& x) { return local_response_norm(x, 3); });
  }
  for (const Shape& shape : {Shape{0, 4}, Shape{3, 0}, Shape{2, 0, 4}}) {
    const Shape suffix = {shape[shape.rank() - 1]};
    expect_empty("layer_norm", shape, shape,
                 [&](const Tensor& x) { return layer_norm(x, suffix); });
    expect_empty("rms_norm", shape, shape, [&](const Tensor& x) { return rms_norm(x, suffix); });
  }
}

// Sets without elements have mean and rstd 0, and not what was in memory.
TEST_P(EmptyTensors, D106_StatisticsOfEmptySets) {
  const std::vector<double> three(3, 0.0);
  for (const DType dtype : kDTypes) {
    const TensorOptions options{.dtype = acc_dtype(dtype), .device = GetParam()};
    Tensor::full({3}, 7, options);  // whose memory comes next
    NormStatistics saved;
    batch_norm(zeros({0, 3}, dtype), {}, {}, {}, {}, &saved);
    EXPECT_EQ(saved.mean.to_vector<double>(), three);
    EXPECT_EQ(saved.rstd.to_vector<double>(), three);
    layer_norm(zeros({3, 0}, dtype), {0}, {}, {}, 1e-5, &saved);
    EXPECT_EQ(saved.mean.to_vector<double>(), three);
    EXPECT_EQ(saved.rstd.to_vector<double>(), three);
    rms_norm(zeros({3, 0}, dtype), {0}, {}, {}, &saved);
    EXPECT_EQ(saved.rstd.to_vector<double>(), three);
  }
}

TEST_P(EmptyTensors, D106_ProductsAndWindows) {
  const auto ones = [&](const Shape& shape, const Tensor& like) {
    return Tensor::ones(shape, like.options());
  };
  expect_empty("matmul", {0, 3}, {0, 2}, [&](const Tensor& x) {
    return matmul(x, ones({3, 2}, x));
  });
  expect_empty("matmul", {3, 0}, {3, 2}, [&](const Tensor& x) {
    return matmul(x, ones({0, 2}, x));
  });
  expect_empty("linear", {0, 3}, {0, 2}, [&](const Tensor& x) {
    return linear(x, ones({2, 3}, x));
  });
  expect_empty("conv2d", {0, 3, 5, 5}, {0, 2, 3, 3}, [&](const Tensor& x) {
    return conv2d(x, ones({2, 3, 3, 3}, x));
  });
  expect_empty("max_pool2d", {0, 3, 4, 4}, {0, 3, 2, 2}, [](const Tensor& x) {
    return max_pool2d(x, Window{2, 2});
  });
  expect_empty("avg_pool2d", {0, 3, 4, 4}, {0, 3, 2, 2},
               [](const Tensor& x) { return avg_pool2d(x, {.kernel_size = 2}); });
  expect_empty("adaptive_avg_pool2d", {0, 3, 4, 4}, {0, 3, 3, 2}, [](const Tensor& x) {
    return adaptive_avg_pool2d(x, {3, 2});
  });
  constexpr int64_t kMany = int64_t{1} << 40;  // of which no table is made
  expect_empty("adaptive_avg_pool2d", {0, 3, 4, 4}, {0, 3, 1, kMany}, [](const Tensor& x) {
    return adaptive_avg_pool2d(x, {1, kMany});
  });
}

}  // namespace
}  // namespace gradus
