// The tools that judge kernels are judged first: array, finite differences, tolerance, comparison.
#include "tests/support/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "core/half.h"
#include "tests/support/compare_gtest.h"

namespace gradus {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(ReferenceArray, Indexing) {
  ref::Array x = ref::array({2, 3}, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(x.at(1, 2), 5);
  x.at(0, 1) = 7;
  EXPECT_EQ(x[1], 7);
  EXPECT_THROW(x.at(0, 3), std::out_of_range);
  EXPECT_THROW(x.at(1), std::out_of_range);
  EXPECT_THROW(ref::array({2, 3}, {1}), std::invalid_argument);
}

TEST(ReferenceArray, NumericGradientOfCube) {
  const auto cube = [](const ref::Array& x) {
    ref::Array y = x;
    for (double& value : y.data) value = value * value * value;
    return y;
  };
  const ref::Array dx =
      ref::numeric_gradient(cube, ref::array({2}, {2, -3}), ref::array({2}, {1, 2}));
  EXPECT_NEAR(dx[0], 12, 1e-7);
  EXPECT_NEAR(dx[1], 54, 1e-7);
}

TEST(Compare, UlpAndRounding) {
  EXPECT_EQ(ulp(1.0, DType::f32), 0x1p-23);
  EXPECT_EQ(ulp(1.99, DType::bf16), 0x1p-7);
  EXPECT_EQ(ulp(0.0, DType::f16), 0x1p-24);
  EXPECT_EQ(ulp(0.0, DType::f32), 0x1p-149);
  EXPECT_EQ(ulp(kNaN, DType::f64), ulp(kInf, DType::f64));
  EXPECT_EQ(round_to(1.00390625, DType::bf16), 1.0);       // tie to even
  EXPECT_EQ(round_to(1.01171875, DType::bf16), 1.015625);  // tie to even
  EXPECT_EQ(round_to(65520.0, DType::f16), kInf);
  EXPECT_EQ(round_to(-65519.0, DType::f16), -65504.0);
}

// round_to and the library's 16-bit types are written independently; they agree.
TEST(Compare, RoundingAgreesWithHalfTypes) {
  for (double value = 1e-9; value < 1e6; value *= 1.0173) {
    EXPECT_EQ(round_to(value, DType::f16), static_cast<double>(Half(value))) << value;
    EXPECT_EQ(round_to(-value, DType::bf16), static_cast<double>(BFloat16(-value))) << value;
    EXPECT_EQ(round_to(value, DType::f32), static_cast<double>(static_cast<float>(value)));
  }
}

TEST(Compare, ToleranceGrowsWithLengthAndUnit) {
  EXPECT_LT(tolerance(DType::f32, 8).of_scale, tolerance(DType::f32, 800).of_scale);
  EXPECT_LT(tolerance(DType::f64, 8).of_scale, tolerance(DType::f32, 8).of_scale);
  EXPECT_EQ(tolerance(DType::bf16, 8).of_scale, tolerance(DType::f32, 8).of_scale);
  EXPECT_GT(tolerance(DType::bf16, 8).relative, tolerance(DType::f16, 8).relative);
  EXPECT_EQ(tolerance(DType::f32, 0).of_scale, 0);
  EXPECT_GT(tolerance(DType::f32, 8, Products::tf32).of_scale, 0x1p-11);
  EXPECT_EQ(tolerance(DType::i64, 8).absolute, 0);
}

// A serial f32 sum of 2^24 values fails its tolerance; one in blocks passes.
TEST(Compare, RejectsSerialSum) {
  constexpr int kCount = 1 << 24, kBlock = 1 << 12;
  float serial = 0, blocked = 0;
  for (int block = 0; block < kCount / kBlock; ++block) {
    float partial = 0;
    for (int i = 0; i < kBlock; ++i) {
      serial += 0.1f;
      partial += 0.1f;
    }
    blocked += partial;
  }
  const std::vector<double> want = {static_cast<double>(0.1f) * kCount};
  EXPECT_FALSE(compare(std::vector<double>{serial}, want, DType::f32, kCount));
  EXPECT_TRUE(agrees(std::vector<double>{blocked}, want, DType::f32, kCount));
}

TEST(Compare, ReportsTheWorst) {
  const std::vector<double> want = {1, 2, 4, 8};
  const std::vector<double> got = {1, 2 + 0x1p-22, 4.5, 8};
  const Comparison result = compare(got, want, DType::f32, 4);
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.violations, 1);
  EXPECT_EQ(result.worst, 2);
  EXPECT_EQ(result.got, 4.5);
  EXPECT_EQ(result.want, 4);
  EXPECT_EQ(result.ulps, 0.5 / 0x1p-21);
  EXPECT_EQ(result.relative, 0.125);
  EXPECT_NE(result.text().find("worst at 2: got 4.5, want 4"), std::string::npos) << result.text();
  EXPECT_FALSE(assertion(result));
}

TEST(Compare, SpecialValues) {
  const auto same = [](double got, double want, DType dtype = DType::f32) {
    return compare(std::vector<double>{got}, std::vector<double>{want}, dtype, 1).ok;
  };
  EXPECT_TRUE(same(kNaN, kNaN));
  EXPECT_FALSE(same(kNaN, 1));
  EXPECT_FALSE(same(1, kNaN));
  EXPECT_TRUE(same(kInf, kInf));
  EXPECT_FALSE(same(-kInf, kInf));
  EXPECT_FALSE(same(kInf, 1));
  EXPECT_FALSE(same(3e38, kInf));
  EXPECT_TRUE(same(kInf, 70000, DType::f16));
  EXPECT_FALSE(same(-kInf, 70000, DType::f16));
  EXPECT_FALSE(same(kInf, 60000, DType::f16));
  EXPECT_FALSE(same(0, 1e-30, DType::f32));
  EXPECT_TRUE(same(0, 1e-46, DType::f32));
}

TEST(Compare, SizesMustAgree) {
  EXPECT_FALSE(compare(std::vector<double>{1}, std::vector<double>{1, 1}, DType::f32, 1));
  EXPECT_TRUE(compare({}, {}, DType::f32, 1));
}

}  // namespace
}  // namespace gradus
