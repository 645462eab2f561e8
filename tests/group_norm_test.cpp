#include "nn/group_norm.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops/batch_norm.h"
#include "autograd/ops/group_norm.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(group_norm);

using Values = std::vector<double>;

void expect_near(const Tensor& got, const Values& want, double tolerance) {
  const Values values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values[i], want[i], tolerance) << "at " << i;
}

class GroupNorm : public test::EachDevice {
 protected:
  Tensor tensor(const Values& values, const Shape& shape, DType dtype = DType::f64) {
    return Tensor::from_vector(values, shape, {.dtype = dtype, .device = GetParam()});
  }
  Tensor random(const Shape& shape, uint64_t seed, DType dtype = DType::f64,
                MemoryFormat format = MemoryFormat::contiguous) {
    return Tensor::from_vector(draw_upstream(shape, dtype, seed).data, shape,
                               {.dtype = dtype, .device = GetParam(), .format = format});
  }
};
GRADUS_ON_EACH_DEVICE(GroupNorm);

TEST_P(GroupNorm, OneSampleOfOneGroupPerChannelIsBatchNorm) {
  const Tensor gamma = random({6}, 2), beta = random({6}, 3), dy = random({1, 6, 5, 7}, 4);
  Tensor a = random({1, 6, 5, 7}, 1).set_requires_grad(true);
  Tensor b = a.detach().clone().set_requires_grad(true);
  const Tensor y = group_norm(a, 6, gamma, beta), want = batch_norm(b, gamma, beta);
  expect_near(y, want.to_vector<double>(), 1e-12);
  y.backward(dy);
  want.backward(dy);
  expect_near(a.grad(), b.grad().to_vector<double>(), 1e-12);
}

TEST_P(GroupNorm, BothFormatsAgree) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Shape shape = {3, 24, 10, 9};
    const Tensor gamma = random({24}, 2, DType::f32), beta = random({24}, 3, DType::f32);
    const Tensor dy = random(shape, 4, dtype);
    Tensor results[2], grads[2];
    for (const int i : {0, 1}) {
      const auto format = i == 0 ? MemoryFormat::contiguous : MemoryFormat::channels_last;
      Tensor x = random(shape, 1, dtype, format).set_requires_grad(true);
      results[i] = group_norm(x, 4, gamma, beta);
      EXPECT_TRUE(results[i].is_contiguous(format));
      results[i].backward(dy);
      grads[i] = x.grad();
      EXPECT_TRUE(grads[i].is_contiguous(format));
    }
    EXPECT_TRUE(agrees(results[1].to_vector<double>(), results[0].to_vector<double>(), dtype, 540));
    EXPECT_TRUE(agrees(grads[1].to_vector<double>(), grads[0].to_vector<double>(), dtype, 540));
  }
}

// Images of which CUDA holds a tile of the channels in a cluster, the last block's rows fewer; one
// that it does not hold; one of which a row ends in the middle of a power of two; and small ones of
// many channels.
TEST_P(GroupNorm, BothFormatsAgreeOnLargeImages) {
  const std::pair<Shape, int64_t> cases[] = {
      {{1, 64, 57, 55}, 16}, {{1, 64, 56, 56}, 64},  {{2, 96, 20, 21}, 4},   {{2, 96, 14, 14}, 96},
      {{1, 40, 40, 40}, 8},  {{1, 16, 120, 120}, 2}, {{128, 512, 3, 3}, 32}, {{3, 512, 7, 7}, 1}};
  for (const auto& [shape, groups] : cases) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      SCOPED_TRACE(concat(to_string(shape), " ", groups, " ", dtype));
      const int64_t m = shape[1] / groups * shape[2] * shape[3];
      const Tensor gamma = random({shape[1]}, 2, acc_dtype(dtype));
      const Tensor beta = random({shape[1]}, 3, acc_dtype(dtype)), dy = random(shape, 4, dtype);
      Tensor results[2], grads[2], dgammas[2], dbetas[2];
      for (const int i : {0, 1}) {
        const auto format = i == 0 ? MemoryFormat::contiguous : MemoryFormat::channels_last;
        Tensor x = random(shape, 1, dtype, format).set_requires_grad(true);
        Tensor g = gamma.detach().clone().set_requires_grad(true);
        Tensor b = beta.detach().clone().set_requires_grad(true);
        results[i] = group_norm(x, groups, g, b);
        results[i].backward(dy);
        grads[i] = x.grad(), dgammas[i] = g.grad(), dbetas[i] = b.grad();
      }
      const auto agree = [&](const Tensor(&tensors)[2], DType of, int64_t terms) {
        EXPECT_TRUE(agrees(tensors[1].to_vector<double>(), tensors[0].to_vector<double>(), of,
                           static_cast<double>(terms)));
      };
      agree(results, dtype, m);
      agree(grads, dtype, m);
      agree(dgammas, acc_dtype(dtype), shape[0] * shape[2] * shape[3]);
      agree(dbetas, acc_dtype(dtype), shape[0] * shape[2] * shape[3]);
    }
  }
}

TEST_P(GroupNorm, GivesItsSavedTensors) {
  NormStatistics saved;
  group_norm(tensor({1, 3, 5, 7, 2, 4, 6, 8}, {2, 4}), 2, {}, {}, 0, &saved);
  EXPECT_EQ(saved.mean.shape(), Shape({2, 2}));
  expect_near(saved.mean, {2, 6, 3, 7}, 0);
  expect_near(saved.rstd, {1, 1, 1, 1}, 0);
}

TEST_P(GroupNorm, OtherStridesAreCopiedFirst) {
  Tensor base = random({3, 2, 8}, 1).set_requires_grad(true);
  const Tensor x = base.transpose(0, 1).transpose(1, 2);  // [2, 8, 3], dense in neither format
  Tensor dense = x.detach().contiguous().set_requires_grad(true);
  const Tensor gamma = random({16}, 2).slice(0, 0, 16, 2), dy = random({2, 8, 3}, 3);
  const Tensor beta = random({24}, 4).slice(0, 0, 24, 3);
  const Tensor y = group_norm(x, 2, gamma, beta);
  const Tensor want = group_norm(dense, 2, gamma.contiguous(), beta.contiguous());
  expect_near(y, want.to_vector<double>(), 0);
  y.backward(dy);
  want.backward(dy);
  expect_near(base.grad().transpose(0, 1).transpose(1, 2), dense.grad().to_vector<double>(), 0);
}

TEST_P(GroupNorm, UnalignedViews) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const int64_t count = 2 * 8 * 64;
    const Tensor buffer = random({count + 1}, 1, dtype);
    Tensor x = buffer.slice(0, 1, count + 1).reshape({2, 8, 64}).set_requires_grad(true);
    Tensor dense = x.detach().clone().set_requires_grad(true);
    const Tensor dy = random({2, 8, 64}, 2, dtype);
    const Tensor y = group_norm(x, 2), want = group_norm(dense, 2);
    EXPECT_TRUE(agrees(y.to_vector<double>(), want.to_vector<double>(), dtype, 256));
    y.backward(dy);
    want.backward(dy);
    EXPECT_TRUE(agrees(x.grad().to_vector<double>(), dense.grad().to_vector<double>(), dtype, 256));
  }
}

TEST_P(GroupNorm, EmptyTensors) {
  const TensorOptions options{.dtype = DType::f32, .device = GetParam()};
  for (const Shape& shape : {Shape{0, 4, 3, 3}, Shape{2, 4, 0, 3}, Shape{2, 0, 3}, Shape{0, 4}}) {
    SCOPED_TRACE(to_string(shape));
    Tensor x = Tensor::empty(shape, options).set_requires_grad(true);
    Tensor gamma = Tensor::ones({shape[1]}, options).set_requires_grad(true);
    Tensor beta = Tensor::ones({shape[1]}, options).set_requires_grad(true);
    NormStatistics saved;
    const Tensor y = group_norm(x, 2, gamma, beta, 1e-5, &saved);
    EXPECT_EQ(y.shape(), shape);
    expect_near(saved.mean, Values(static_cast<size_t>(2 * shape[0]), 0.0), 0);
    expect_near(saved.rstd, Values(static_cast<size_t>(2 * shape[0]), 0.0), 0);
    y.backward(Tensor::empty(shape, options));
    EXPECT_EQ(x.grad().shape(), shape);
    expect_near(gamma.grad(), Values(static_cast<size_t>(shape[1]), 0.0), 0);
    expect_near(beta.grad(), Values(static_cast<size_t>(shape[1]), 0.0), 0);
  }
}

// The others' bits stay, too, where several groups share a warp.
TEST_P(GroupNorm, NanStaysInItsSetOfALargeImage) {
  const Shape shape = {1, 64, 60, 60};
  Values values = draw_upstream(shape, DType::f32, 1).data;
  const auto normalize = [&] {
    const Tensor x = Tensor::from_vector(
        values, shape,
        {.dtype = DType::f32, .device = GetParam(), .format = MemoryFormat::channels_last});
    return group_norm(x, 32).contiguous(MemoryFormat::contiguous).to_vector<double>();
  };
  const Values clean = normalize();
  const size_t set = 2 * 3600;
  values[5 * set + 77] = NAN;
  const Values y = normalize();
  for (size_t i = 0; i < y.size(); ++i) {
    if (i / set == 5) {
      ASSERT_TRUE(std::isnan(y[i])) << i;
    } else {
      ASSERT_EQ(y[i], clean[i]) << i;
    }
  }
}

TEST_P(GroupNorm, NanAndInfStayInTheirSet) {
  Values values(2 * 4 * 6);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i));
  const Tensor clean = group_norm(tensor(values, {2, 4, 6}, DType::f32), 2);
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    values[3] = bad;  // in the first group of the first sample
    const Values y = group_norm(tensor(values, {2, 4, 6}, DType::f32), 2).to_vector<double>();
    const Values want = clean.to_vector<double>();
    for (size_t i = 0; i < y.size(); ++i) {
      if (i < 12) {
        EXPECT_TRUE(std::isnan(y[i])) << i;
      } else {
        EXPECT_EQ(y[i], want[i]) << i;
      }
    }
  }
}

TEST_P(GroupNorm, AgreesWithPyTorch) {
  for (const auto& golden : ref::golden_cases("group_norm")) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    Tensor leaves[3];
    const char* keys[] = {"x", "gamma", "beta"};
    for (int i = 0; i < 3; ++i) {
      const ref::Array array = ref::golden_array(golden.at("inputs"), keys[i]);
      if (!array.empty()) leaves[i] = tensor(array.data, array.shape).set_requires_grad(true);
    }
    const Tensor y = group_norm(leaves[0], golden.at("args").at("groups"), leaves[1], leaves[2],
                                golden.at("args").at("eps"));
    const ref::Array dy = ref::golden_array(golden.at("dy"));
    y.backward(tensor(dy.data, dy.shape));
    const auto expect = [&](const Tensor& got, const char* group, const char* key) {
      const ref::Array want = ref::golden_array(golden.at(group), key);
      EXPECT_TRUE(agrees(got.to_vector<double>(), want.data, DType::f64, got.numel())) << key;
    };
    expect(y, "outputs", "y");
    for (int i = 0; i < 3; ++i) {
      if (leaves[i].defined()) expect(leaves[i].grad(), "gradients", keys[i]);
    }
  }
}

TEST_P(GroupNorm, ErrorsNameTheSizes) {
  const Tensor x = random({2, 6, 3}, 1);
  EXPECT_ERROR(group_norm(x, 4), ErrorCode::invalid_argument, "group_norm: the 6 channels of",
               "do not fall into 4 groups");
  EXPECT_ERROR(group_norm(x, 0), ErrorCode::invalid_argument, "groups must be positive, got 0");
  EXPECT_ERROR(group_norm(x, 2, tensor({1, 2}, {2})), ErrorCode::invalid_argument,
               "gamma must have one entry for each of the 6 channels", "[2]");
  EXPECT_ERROR(group_norm(x, 2, {}, random({6}, 1, DType::f32)), ErrorCode::invalid_argument,
               "beta must be f64");
  EXPECT_ERROR(group_norm(random({6}, 1), 2), ErrorCode::invalid_argument, "rank 2 to 5");
  EXPECT_ERROR(group_norm(x, 2, {}, {}, -1), ErrorCode::invalid_argument, "eps");
}

TEST(GroupNormLayer, IsPyTorchs) {
  nn::GroupNorm layer(2, 4);
  EXPECT_EQ(layer.parameter_count(), 8);
  EXPECT_EQ(layer.state_dict()[0].name, "weight");
  EXPECT_EQ(layer.state_dict()[1].name, "bias");
  const Tensor x = Tensor::from_vector<float>({1, 3, 5, 7, 2, 4, 6, 8}, {1, 4, 2});
  const Values y = layer(x).to_vector<double>();
  EXPECT_NEAR(y[0], -1.34164, 1e-5);
  EXPECT_TRUE(nn::GroupNorm(2, 4, 1e-5, false).state_dict().empty());
  EXPECT_ERROR(nn::GroupNorm(3, 4), ErrorCode::invalid_argument, "num_channels = 4",
               "num_groups = 3");
  EXPECT_ERROR(layer(Tensor::ones({1, 6, 2})), ErrorCode::invalid_argument, "[n, 4, ...]");
}

}  // namespace
}  // namespace gradus
