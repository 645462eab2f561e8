// Conversions between dtypes on both devices: 16-bit rounding at every boundary, NaN, infinities,
// signed zeros, and the integer dtypes.
#include <cmath>
#include <cstring>
#include <limits>

#include "core/tensor.h"
#include "tests/support/compare.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

class Conversion : public test::EachDevice {
 protected:
  template <class T>
  Tensor tensor(const std::vector<T>& values) {
    return Tensor::from_vector(values, {static_cast<int64_t>(values.size())},
                               {.dtype = dtype_of<T>, .device = GetParam()});
  }
  // The values of every bit pattern of a 16-bit dtype, converted to `to` by a kernel.
  Tensor all_patterns(DType dtype) {
    Tensor host = Tensor::empty({65536}, {.dtype = dtype});
    for (int i = 0; i < 65536; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      std::memcpy(static_cast<char*>(host.raw().data) + 2 * i, &bits, 2);
    }
    return host.to(GetParam());
  }
};
GRADUS_ON_EACH_DEVICE(Conversion);

std::vector<uint16_t> bits_of(const Tensor& tensor) {
  const Tensor host = tensor.to(kCpu);
  std::vector<uint16_t> bits(static_cast<size_t>(host.numel()));
  std::memcpy(bits.data(), host.raw().data, 2 * bits.size());
  return bits;
}

// Independent of core/half.h: built from the fields of the format.
double value_of(int bits, DType dtype) {
  const int mantissa_bits = dtype == DType::f16 ? 10 : 7;
  const int bias = dtype == DType::f16 ? 15 : 127;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits & 0x7FFF) >> mantissa_bits;
  const bool special = exponent == 2 * bias + 1;
  double value = special ? (mantissa == 0 ? INFINITY : NAN)
                 : exponent == 0
                     ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                     : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return bits & 0x8000 ? -value : value;
}

TEST_P(Conversion, EveryPatternWidensExactlyAndComesBack) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor patterns = all_patterns(dtype);
    const std::vector<uint16_t> bits = bits_of(patterns);
    for (const DType wide : {DType::f32, DType::f64}) {
      const std::vector<double> values = patterns.to(wide).to_vector<double>();
      const std::vector<uint16_t> back = bits_of(patterns.to(wide).to(dtype));
      for (int i = 0; i < 65536; ++i) {
        const auto k = static_cast<size_t>(i);
        const double want = value_of(i, dtype);
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(values[k])) << i;
          ASSERT_TRUE(std::isnan(value_of(back[k], dtype))) << i;
        } else {
          ASSERT_EQ(values[k], want) << i;
          ASSERT_EQ(std::signbit(values[k]), std::signbit(want)) << i;
          ASSERT_EQ(back[k], bits[k]) << i;
        }
      }
    }
  }
}

// Rounding changes only at the midpoints of neighbours: each of them, and the values next to it.
template <class T>
void check_boundaries(DType dtype, const std::function<Tensor(const std::vector<T>&)>& make) {
  std::vector<T> values;
  const int infinity = dtype == DType::f16 ? 0x7C00 : 0x7F80;
  for (int i = 0; i < infinity; ++i) {
    const double below = value_of(i, dtype);
    // Beyond the largest value lies what would be the next one.
    const double above =
        i + 1 < infinity ? value_of(i + 1, dtype) : below + (below - value_of(i - 1, dtype));
    const T middle = static_cast<T>((below + above) / 2);
    for (const T value :
         {middle, std::nextafter(middle, T(0)), std::nextafter(middle, T(INFINITY))}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  const std::vector<double> got = make(values).to(dtype).template to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(got[i], round_to(static_cast<double>(values[i]), dtype)) << values[i];
  }
}

TEST_P(Conversion, D107_RoundsToNearestEvenAtEveryBoundary) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    check_boundaries<float>(dtype, [&](const auto& values) { return tensor(values); });
  }
}

// From f64 in one rounding: by way of f32 a value just off a midpoint would round twice.
TEST_P(Conversion, RoundsF64Once) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    check_boundaries<double>(dtype, [&](const auto& values) { return tensor(values); });
  }
  EXPECT_EQ(tensor<double>({1 + 0x1p-11 + 0x1p-40}).to(DType::f16).item<double>(), 1 + 0x1p-10);
}

// Fault D107.
TEST_P(Conversion, D107_Bfloat16Examples) {
  const uint32_t nan_bits = 0x7F800001u;
  float nan;
  std::memcpy(&nan, &nan_bits, 4);
  const std::vector<float> values{0.2691408770f, 3.14f,   1.00390625f, 1.01171875f,
                                  nan,           3.4e38f, -0.0f};
  const Tensor rounded = tensor(values).to(DType::bf16);
  const std::vector<double> got = rounded.to_vector<double>();
  EXPECT_EQ(got[0], 0.26953125);
  EXPECT_EQ(got[1], 3.140625);
  EXPECT_EQ(got[2], 1.0);
  EXPECT_EQ(got[3], 1.015625);
  EXPECT_TRUE(std::isnan(got[4]));
  EXPECT_EQ(got[5], INFINITY);
  EXPECT_EQ(bits_of(rounded)[6], 0x8000);
}

TEST_P(Conversion, F64ToF32) {
  const std::vector<double> values{1e300, -1e300, 1e-300, 0.1, -0.0, 3.4028235677973366e38};
  const std::vector<float> got = tensor(values).to(DType::f32).to_vector<float>();
  EXPECT_EQ(got, (std::vector<float>{INFINITY, -INFINITY, 0, 0.1f, -0.0f, INFINITY}));
}

TEST_P(Conversion, FloatingToIntegerTruncatesAndSaturates) {
  const std::vector<double> values{2.9, -2.9, 300, -1, 1e20, -1e20, NAN, INFINITY};
  const auto as = [&](DType dtype) { return tensor(values).to(dtype).to_vector<int64_t>(); };
  constexpr int64_t big = std::numeric_limits<int64_t>::max();
  constexpr int64_t low = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(as(DType::u8), (std::vector<int64_t>{2, 0, 255, 0, 255, 0, 0, 255}));
  EXPECT_EQ(as(DType::i32),
            (std::vector<int64_t>{2, -2, 300, -1, 2147483647, -2147483648, 0, 2147483647}));
  EXPECT_EQ(as(DType::i64), (std::vector<int64_t>{2, -2, 300, -1, big, low, 0, big}));
}

TEST_P(Conversion, EveryPairOfDTypesKeepsSmallNumbers) {
  constexpr DType all[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                           DType::u8,  DType::i32, DType::i64};
  const std::vector<double> values{0, 1, 2, 100, 127};
  for (const DType from : all) {
    for (const DType to : all) {
      const Tensor x = tensor(values).to(from).to(to);
      EXPECT_EQ(x.dtype(), to);
      EXPECT_EQ(x.to_vector<double>(), values) << to_string(from) << " " << to_string(to);
    }
  }
}

TEST(DTypes, NamesAndSizes) {
  constexpr DType all[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                           DType::u8,  DType::i32, DType::i64};
  for (const DType dtype : all) EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(acc_dtype(DType::f16), DType::f32);
  EXPECT_EQ(acc_dtype(DType::f64), DType::f64);
  EXPECT_ERROR(parse_dtype("float"), ErrorCode::invalid_argument, "expected f32, f64, f16",
               "float");
}

}  // namespace
}  // namespace gradus
