// Conversions between dtypes, on both devices: roundings, ends of the range, NaN.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/tensor.h"
#include "tests/support/each_device.h"

namespace gradus {
namespace {

class CopyTest : public test::EachDevice {
 protected:
  // `values` as `from`, converted to `to` on the device.
  template <class T>
  std::vector<double> converted(const std::vector<T>& values, DType from, DType to) const {
    const Shape shape = {static_cast<int64_t>(values.size())};
    const Tensor x = Tensor::from_vector(values, shape, {.dtype = from, .device = GetParam()});
    return x.to(to).template to_vector<double>();
  }
};

void expect_equal(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << "element " << i;
    } else {
      EXPECT_EQ(got[i], expected[i]) << "element " << i;
      EXPECT_EQ(std::signbit(got[i]), std::signbit(expected[i])) << "element " << i;
    }
  }
}

TEST_P(CopyTest, D107_Bf16RoundsToNearestEvenAndKeepsNan) {
  const std::vector<float> values = {0.2691408770f, 3.14f,   1.00390625f, 1.01171875f,
                                     NAN,           3.4e38f, -0.0f,       1e-40f};
  expect_equal(converted(values, DType::f32, DType::bf16),
               {0.26953125, 3.140625, 1.0, 1.015625, NAN, INFINITY, -0.0, 0x1p-133});
}

TEST_P(CopyTest, F16RoundsToNearestEvenAndKeepsSubnormals) {
  const std::vector<float> values = {65519.0f, 65520.0f, -65520.0f,  2049.0f,  2051.0f,
                                     0x1p-24f, 0x1p-25f, 0x1.8p-24f, 0x1p-15f, NAN};
  expect_equal(converted(values, DType::f32, DType::f16),
               {65504.0, INFINITY, -INFINITY, 2048.0, 2052.0, 0x1p-24, 0.0, 0x1p-23, 0x1p-15, NAN});
}

// Through float first, the small last bits would be lost and the tie go to even, which is down.
TEST_P(CopyTest, F64ToSixteenBitsRoundsOnce) {
  expect_equal(converted<double>({1.0 + 0x1p-11 + 0x1p-40}, DType::f64, DType::f16),
               {1.0 + 0x1p-10});
  expect_equal(converted<double>({1.0 + 0x1p-8 + 0x1p-40}, DType::f64, DType::bf16),
               {1.0 + 0x1p-7});
  expect_equal(
      converted<int64_t>({(int64_t(1) << 40) + (int64_t(1) << 32) + 1}, DType::i64, DType::bf16),
      {0x1p40 + 0x1p33});
}

TEST_P(CopyTest, IntegersTruncateAndStopAtTheEnds) {
  const std::vector<double> values = {2.9, -2.9, 255.9, 256.0, -1.0, 3e9, -3e9, 1e19, -1e19, NAN};
  constexpr double lowest = -0x1p63;
  expect_equal(converted(values, DType::f64, DType::u8), {2, 0, 255, 255, 0, 255, 0, 255, 0, 0});
  expect_equal(converted(values, DType::f64, DType::i32),
               {2, -2, 255, 256, -1, 2147483647, -2147483648.0, 2147483647, -2147483648.0, 0});
  expect_equal(converted(values, DType::f64, DType::i64),
               {2, -2, 255, 256, -1, 3e9, -3e9, 0x1p63, lowest, 0});
  expect_equal(converted<float>({INFINITY, -INFINITY, NAN, 300.0f}, DType::bf16, DType::u8),
               {255, 0, 0, 255});
}

TEST_P(CopyTest, IntegersWrapAmongThemselves) {
  const std::vector<int64_t> values = {257, -1, (int64_t(1) << 32) + 5, int64_t(1) << 31};
  expect_equal(converted(values, DType::i64, DType::u8), {1, 255, 5, 0});
  expect_equal(converted(values, DType::i64, DType::i32), {257, -1, 5, -2147483648.0});
}

TEST_P(CopyTest, StridesOfEitherSide) {
  std::vector<int32_t> values(2 * 3 * 4 * 5);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i);
  const TensorOptions options{.dtype = DType::i32, .device = GetParam()};
  const Tensor x = Tensor::from_vector(values, {2, 3, 4, 5}, options);
  const Tensor last = x.contiguous(MemoryFormat::channels_last);
  EXPECT_EQ(last.strides(), strides_of(x.shape(), MemoryFormat::channels_last));
  EXPECT_EQ(last.to_vector<int32_t>(), values);
  const Tensor piece = x.permute({3, 1, 0, 2}).slice(0, 1, 5, 2).contiguous();
  const std::vector<int32_t> got = piece.to_vector<int32_t>();
  size_t i = 0;
  for (const int32_t w : {1, 3}) {
    for (int32_t c = 0; c < 3; ++c) {
      for (int32_t n = 0; n < 2; ++n) {
        for (int32_t h = 0; h < 4; ++h) EXPECT_EQ(got[i++], ((n * 3 + c) * 4 + h) * 5 + w);
      }
    }
  }
  EXPECT_EQ(x.slice(0, 0, 1).expand({3, 3, 4, 5}).contiguous().to_vector<int32_t>()[2 * 60 + 7], 7);
  EXPECT_EQ(Tensor::empty({0, 3}, options).contiguous().numel(), 0);
}

GRADUS_ON_EACH_DEVICE(CopyTest);

}  // namespace
}  // namespace gradus
