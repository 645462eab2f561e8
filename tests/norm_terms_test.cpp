// The terms of a normalization's backward: their sum is dx, and each is what its name says.
#include "autograd/ops/norm_terms.h"

#include <cmath>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/batch_norm.h"
#include "autograd/ops/group_norm.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/sum.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/reference_norm.h"

namespace gradus {
namespace {

class NormTerms : public test::EachDevice {
 protected:
  Tensor tensor(const ref::Array& array, DType dtype) {
    if (array.empty()) return {};
    return Tensor::from_vector(array.data, array.shape, {.dtype = dtype, .device = GetParam()});
  }
  // The three terms, of which `mean` may be missing, add up to dx.
  void expect_sum(const gradus::NormTerms& terms, const ref::Array& dx, DType dtype, int64_t m) {
    const Tensor projected = terms.direct + terms.projection;
    const Tensor total = terms.mean.defined() ? projected + terms.mean : projected;
    EXPECT_EQ(total.dtype(), acc_dtype(dtype));
    EXPECT_EQ(total.shape(), dx.shape);
    EXPECT_FALSE(total.requires_grad());
    double scale = 0;
    for (const double value : terms.direct.to_vector<double>())
      scale = std::max(scale, std::abs(value));
    EXPECT_TRUE(agrees(total.to_vector<double>(), dx.data, acc_dtype(dtype), m, scale));
  }
};
GRADUS_ON_EACH_DEVICE(NormTerms);

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};
constexpr double kEps = 1e-5;

TEST_P(NormTerms, OfBatchNormAddUp) {
  const Shape shape = {4, 3, 2, 5};
  for (const DType dtype : kDTypes) {
    const ref::Array x = draw_upstream(shape, dtype, 1), dy = draw_upstream(shape, dtype, 2);
    const ref::Array gamma = draw_upstream({3}, acc_dtype(dtype), 3);
    const Tensor scale = tensor(gamma, acc_dtype(dtype));
    NormStatistics saved;
    batch_norm(tensor(x, dtype), scale, {}, {}, {.eps = kEps}, &saved);
    const auto terms =
        batch_norm_terms(tensor(x, dtype), tensor(dy, dtype), scale, saved.mean, saved.rstd);
    expect_sum(terms, ref::batch_norm_train_backward(x, gamma, dy, kEps).dx, dtype, 40);
  }
}

TEST_P(NormTerms, OfGroupNormAddUp) {
  const Shape shape = {3, 6, 2, 3};
  for (const DType dtype : kDTypes) {
    for (const int64_t groups : {1, 2, 6}) {
      for (const bool affine : {true, false}) {
        const ref::Array x = draw_upstream(shape, dtype, 1), dy = draw_upstream(shape, dtype, 2);
        const ref::Array gamma = affine ? draw_upstream({6}, acc_dtype(dtype), 3) : ref::Array();
        NormStatistics saved;
        const Tensor in = tensor(x, dtype).set_requires_grad(true);
        group_norm(in, groups, {}, {}, kEps, &saved);
        const auto terms = group_norm_terms(in, tensor(dy, dtype), tensor(gamma, acc_dtype(dtype)),
                                            saved.mean, saved.rstd, groups);
        expect_sum(terms, ref::group_norm_backward(x, groups, gamma, dy, kEps).dx, dtype, 36);
      }
    }
  }
}

TEST_P(NormTerms, OfLayerNormAddUp) {
  const Shape shape = {4, 3, 2, 5};
  for (const DType dtype : kDTypes) {
    const ref::Array x = draw_upstream(shape, dtype, 1), dy = draw_upstream(shape, dtype, 2);
    const ref::Array gamma = draw_upstream({2, 5}, acc_dtype(dtype), 3);
    const Tensor scale = tensor(gamma, acc_dtype(dtype));
    NormStatistics saved;
    layer_norm(tensor(x, dtype), {2, 5}, scale, {}, kEps, &saved);
    const auto terms =
        layer_norm_terms(tensor(x, dtype), tensor(dy, dtype), scale, saved.mean, saved.rstd);
    expect_sum(terms, ref::layer_norm_backward(x, 2, gamma, dy, kEps).dx, dtype, 10);
    const Tensor none = tensor(x, dtype).slice(0, 0, 0), no_rows = saved.rstd.slice(0, 0, 0);
    EXPECT_EQ(layer_norm_terms(none, none, scale, no_rows, no_rows).direct.shape(), none.shape());
  }
}

TEST_P(NormTerms, OfRmsNormAddUp) {
  const Shape shape = {4, 3, 7};
  for (const DType dtype : kDTypes) {
    const ref::Array x = draw_upstream(shape, dtype, 1), dy = draw_upstream(shape, dtype, 2);
    const ref::Array gamma = draw_upstream({7}, acc_dtype(dtype), 3);
    const Tensor scale = tensor(gamma, acc_dtype(dtype));
    NormStatistics saved;
    rms_norm(tensor(x, dtype), {7}, scale, kEps, &saved);
    const auto terms = rms_norm_terms(tensor(x, dtype), tensor(dy, dtype), scale, saved.rstd);
    EXPECT_FALSE(saved.mean.defined());
    EXPECT_FALSE(terms.mean.defined());
    expect_sum(terms, ref::rms_norm_backward(x, 1, gamma, dy, kEps).dx, dtype, 7);
  }
}

TEST_P(NormTerms, AreWhatTheirNamesSay) {
  const ref::Array x = draw_upstream({2, 4, 5}, DType::f64, 1);
  const ref::Array dy = draw_upstream({2, 4, 5}, DType::f64, 2);
  NormStatistics saved;
  const Tensor xhat = group_norm(tensor(x, DType::f64), 2, {}, {}, 0, &saved);
  const auto terms =
      group_norm_terms(tensor(x, DType::f64), tensor(dy, DType::f64),
                       Tensor::full({4}, 3, xhat.options()), saved.mean, saved.rstd, 2);
  const std::vector<double> direct = terms.direct.to_vector<double>();
  const std::vector<double> mean = terms.mean.to_vector<double>();
  const std::vector<double> projection = terms.projection.to_vector<double>();
  const std::vector<double> rstd = saved.rstd.to_vector<double>(), z = xhat.to_vector<double>();
  for (size_t set = 0; set < 4; ++set) {
    double total = 0, along = 0;
    for (size_t i = 10 * set; i < 10 * set + 10; ++i) {
      EXPECT_NEAR(direct[i], 3 * rstd[set] * dy.data[i], 1e-12);
      EXPECT_EQ(mean[i], mean[10 * set]);  // one value per set
      EXPECT_NEAR(projection[i] * z[10 * set], projection[10 * set] * z[i], 1e-12);  // along xhat
      const double dx = direct[i] + mean[i] + projection[i];
      total += dx;
      along += dx * z[i];
    }
    EXPECT_NEAR(total, 0, 1e-12);  // what the terms are for: dx moves neither mean nor variance
    EXPECT_NEAR(along, 0, 1e-12);
  }
}

TEST_P(NormTerms, WrongSizesAreNamed) {
  const TensorOptions options{.dtype = DType::f32, .device = GetParam()};
  const Tensor x = Tensor::ones({2, 4, 5}, options), four = Tensor::ones({4}, options);
  EXPECT_ERROR(group_norm_terms(x, x, four, four, Tensor::ones({3}, options), 2),
               ErrorCode::invalid_argument, "rstd must have 4 values");
  EXPECT_ERROR(group_norm_terms(x, x, four, four, four, 3), ErrorCode::invalid_argument,
               "do not fall into 3 groups");
  EXPECT_ERROR(batch_norm_terms(x, four, four, four, four), ErrorCode::invalid_argument,
               "dy must have the shape");
  EXPECT_ERROR(batch_norm_terms(x, x, four, {}, four), ErrorCode::invalid_argument,
               "batch_norm_terms: needs the mean");
  EXPECT_ERROR(group_norm_terms(x, x, four, {}, four, 2), ErrorCode::invalid_argument,
               "group_norm_terms: needs the mean");
  EXPECT_ERROR(layer_norm_terms(x, x, {}, {}, four), ErrorCode::invalid_argument,
               "layer_norm_terms: needs the mean");
  EXPECT_ERROR(rms_norm_terms(x, x, four, Tensor::ones({8}, options)), ErrorCode::invalid_argument,
               "gamma must have 5 values");
}

}  // namespace
}  // namespace gradus
