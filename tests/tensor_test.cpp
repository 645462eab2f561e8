// Tensor without gradients: creation, shapes, values in and out, in-place writes, refusals.
#include "core/tensor.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

using Values = std::vector<double>;
constexpr auto kInvalid = ErrorCode::invalid_argument;

class TensorOn : public test::EachDevice {
 protected:
  TensorOptions options(DType dtype = DType::f64) const {
    return {.dtype = dtype, .device = GetParam()};
  }
  Tensor iota(const Shape& shape) {
    Values values(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
    return Tensor::from_vector(values, shape, options());
  }
};
GRADUS_ON_EACH_DEVICE(TensorOn);

TEST_P(TensorOn, Creation) {
  EXPECT_EQ(Tensor::zeros({2, 2}, options()).to_vector<double>(), Values(4, 0.0));
  EXPECT_EQ(Tensor::ones({3}, options(DType::bf16)).to_vector<double>(), Values(3, 1.0));
  EXPECT_EQ(Tensor::full({}, 2.5, options()).item<double>(), 2.5);
  const Tensor x = Tensor::empty({2, 3}, options(DType::i32));
  EXPECT_EQ(x.dtype(), DType::i32);
  EXPECT_EQ(x.device(), GetParam());
  EXPECT_EQ(x.numel(), 6);
  EXPECT_EQ(x.nbytes(), 24);
  EXPECT_EQ(x.size(-1), 3);
  EXPECT_EQ(zeros_like(x).dtype(), DType::i32);
  EXPECT_EQ(to_string(x), concat("i32[2,3]@", GetParam()));
}

TEST_P(TensorOn, ItemGivesEveryTypeOfNumber) {
  const Tensor x = Tensor::full({1, 1}, 7, options(DType::i32));
  EXPECT_EQ(x.item<int32_t>(), 7);
  EXPECT_EQ(x.item<uint8_t>(), 7);
  EXPECT_EQ(x.item<int64_t>(), 7);
  EXPECT_EQ(x.item<float>(), 7.0f);
  EXPECT_EQ(Tensor::full({}, 200, options(DType::u8)).item<uint8_t>(), 200);
  EXPECT_EQ(Tensor::full({}, -2.5, options()).item<int32_t>(), -2);
}

TEST_P(TensorOn, FromVectorConvertsAndChecksTheCount) {
  const std::vector<float> values{1.5f, -2.25f, 300};
  EXPECT_EQ(Tensor::from_vector(values, {3}, options(DType::f16)).to_vector<float>(), values);
  EXPECT_EQ(Tensor::from_vector(values, {3}, options(DType::u8)).to_vector<int64_t>(),
            (std::vector<int64_t>{1, 0, 255}));
  EXPECT_ERROR(Tensor::from_vector(values, {2}), kInvalid, "shape [2] needs 2 values, got 3");
  EXPECT_ERROR(iota({2}).item<double>(), kInvalid, "item: expected a tensor of one element");
}

// Whole, in part, repeated or turned: the same elements, converted in the same way.
TEST_P(TensorOn, VectorsOfViews) {
  using Positions = std::vector<size_t>;
  const Tensor x = Tensor::from_vector(Values{NAN, -1, 255.9, 1e20, 4, 5, 6, 7}, {8}, options());
  const std::vector<uint8_t> bytes{0, 0, 255, 255, 4, 5, 6, 7};
  const std::vector<int64_t> integers{0, -1, 255, INT64_MAX, 4, 5, 6, 7};
  const std::pair<Tensor, Positions> views[] = {
      {x, {0, 1, 2, 3, 4, 5, 6, 7}},
      {x.slice(0, 2, 6), {2, 3, 4, 5}},
      {x.slice(0, 1, 8, 3), {1, 4, 7}},
      {x.as_strided({2, 1, 3}, {3, 99, 1}, 1), {1, 2, 3, 4, 5, 6}},  // an axis of 1 has any stride
      {x.as_strided({3, 2}, {0, 1}, 2), {2, 3, 2, 3, 2, 3}},
      {x.as_strided({2, 2}, {1, 2}, 0), {0, 2, 1, 3}},
      {x.as_strided({}, {}, 3), {3}},
      {x.as_strided({0, 2}, {2, 1}, 5), {}}};
  for (const auto& [view, positions] : views) {
    SCOPED_TRACE(to_string(view));
    const auto at = [&positions](const auto& all) {
      std::decay_t<decltype(all)> some;
      for (const size_t position : positions) some.push_back(all[position]);
      return some;
    };
    EXPECT_EQ(view.to_vector<uint8_t>(), at(bytes));
    EXPECT_EQ(view.to_vector<int64_t>(), at(integers));
    EXPECT_EQ(view.to(DType::i64).to_vector<int64_t>(), at(integers));
  }
  EXPECT_EQ(Tensor::from_vector(integers, {8}, options(DType::i64)).to_vector<int64_t>(), integers);
}

TEST_P(TensorOn, ChannelsLastIsALayoutNotAnOrder) {
  const TensorOptions nhwc{
      .dtype = DType::f64, .device = GetParam(), .format = MemoryFormat::channels_last};
  const Tensor x = iota({2, 3, 4, 5}), y = x.contiguous(MemoryFormat::channels_last);
  EXPECT_EQ(y.strides(), (Strides{60, 1, 15, 3}));
  EXPECT_EQ(y.to_vector<double>(), x.to_vector<double>());
  EXPECT_EQ(y.contiguous().to_vector<double>(), x.to_vector<double>());
  EXPECT_EQ(Tensor::from_vector(x.to_vector<double>(), {2, 3, 4, 5}, nhwc).strides(), y.strides());
  EXPECT_EQ(y.options().format, MemoryFormat::channels_last);
  EXPECT_EQ(empty_like(y).strides(), y.strides());
  EXPECT_EQ(y.clone().strides(), y.strides());
  EXPECT_EQ(y.to(DType::f16).strides(), y.strides());
  EXPECT_EQ(y.to(kCpu).strides(), y.strides());
  EXPECT_ERROR(Tensor::empty({2, 3}, nhwc), kInvalid, "channels_last: expected rank 4, got [2,3]");
}

// What is dense in both formats keeps the one its strides were made with.
TEST_P(TensorOn, OneChannelKeepsItsFormat) {
  const Tensor x = iota({2, 1, 4, 5});
  EXPECT_TRUE(x.is_contiguous(MemoryFormat::channels_last));
  EXPECT_EQ(x.options().format, MemoryFormat::contiguous);
  EXPECT_EQ(x.contiguous(MemoryFormat::channels_last).options().format,
            MemoryFormat::channels_last);
}

// Fault D106.
TEST_P(TensorOn, EmptyShapes) {
  for (const Shape& shape : {Shape{0}, Shape{0, 3}, Shape{3, 0}, Shape{2, 0, 4, 5}}) {
    const Tensor x = Tensor::zeros(shape, options());
    EXPECT_EQ(x.numel(), 0);
    EXPECT_TRUE(x.to_vector<double>().empty());
    EXPECT_TRUE(x.is_contiguous());
    EXPECT_EQ(x.clone().shape(), shape);
    EXPECT_EQ(x.to(DType::bf16).shape(), shape);
    EXPECT_EQ(x.reshape({-1}).shape(), Shape{0});
    Tensor y = x.clone();
    y.fill_(1).add_(x).mul_(2).copy_(x);
  }
  EXPECT_ERROR(Tensor::zeros({0, 3}, options()).reshape({-1, 0}), kInvalid, "cannot infer -1");
}

TEST_P(TensorOn, InPlaceWrites) {
  Tensor x = iota({2, 3});
  x.add_(Tensor::from_vector<double>({10, 20, 30}, {3}, options()), 2);
  EXPECT_EQ(x.to_vector<double>(), (Values{20, 41, 62, 23, 44, 65}));
  x.mul_(0.5);
  EXPECT_EQ(x.to_vector<double>(), (Values{10, 20.5, 31, 11.5, 22, 32.5}));
  x.slice(1, 1, 3).fill_(-1);
  EXPECT_EQ(x.to_vector<double>(), (Values{10, -1, -1, 11.5, -1, -1}));
  x.transpose(0, 1).slice(0, 0, 1).mul_(2);
  EXPECT_EQ(x.to_vector<double>(), (Values{20, -1, -1, 23, -1, -1}));
  x.copy_(Tensor::from_vector<float>({1, 2, 3}, {3}));  // broadcasts, converts, crosses devices
  EXPECT_EQ(x.to_vector<double>(), (Values{1, 2, 3, 1, 2, 3}));
  x.slice(1, 0, 3, 2).copy_(Tensor::full({}, 7, options()));
  EXPECT_EQ(x.to_vector<double>(), (Values{7, 2, 7, 7, 2, 7}));
  x.zero_();
  EXPECT_EQ(x.to_vector<double>(), Values(6, 0.0));
  EXPECT_ERROR(x.add_(iota({2})), kInvalid, "add_: shapes [2,3] and [2]");
  EXPECT_ERROR(x.add_(iota({4, 2, 3})), kInvalid, "add_: expected a tensor of this dtype");
  EXPECT_ERROR(x.add_(x.to(DType::f32)), kInvalid, "add_: expected a tensor of this dtype");
  EXPECT_ERROR(x.copy_(iota({4, 2, 3})), kInvalid, "copy_: a source f64[4,2,3]@");
}

TEST_P(TensorOn, SourcesMayShareMemory) {
  Tensor x = iota({3, 3});
  x.add_(x.transpose(0, 1));
  EXPECT_EQ(x.to_vector<double>(), (Values{0, 4, 8, 4, 8, 12, 8, 12, 16}));
  Tensor y = iota({5});
  y.slice(0, 1, 5).copy_(y.slice(0, 0, 4));
  EXPECT_EQ(y.to_vector<double>(), (Values{0, 0, 1, 2, 3}));
  y.add_(y);
  EXPECT_EQ(y.to_vector<double>(), (Values{0, 0, 2, 4, 6}));
}

// Two that wrap the same memory have storages of their own.
TEST(Tensor, SourceMayShareWrappedMemory) {
  std::vector<float> memory(6 * 6), turned(6 * 6);
  for (size_t i = 0; i < memory.size(); ++i) {
    memory[i] = static_cast<float>(i);
    turned[i] = static_cast<float>(i % 6 * 6 + i / 6);
  }
  const Tensor source = Tensor::wrap(memory.data(), {6, 6});
  Tensor::wrap(memory.data(), {6, 6}).copy_(source.transpose(0, 1));
  EXPECT_EQ(memory, turned);
  Tensor::wrap(memory.data() + 1, {35}).add_(Tensor::wrap(memory.data(), {35}));
  for (size_t i = 1; i < memory.size(); ++i) turned[memory.size() - i] += turned[35 - i];
  EXPECT_EQ(memory, turned);
  // At one address, but of another size: each write would hit what is read next.
  Values both(3);
  const Tensor narrow = Tensor::wrap(both.data(), {3});
  narrow.detach().copy_(Tensor::from_vector<float>({1, 2, 3}, {3}));
  Tensor::wrap(both.data(), {3}, {.dtype = DType::f64}).copy_(narrow);
  EXPECT_EQ(both, (Values{1, 2, 3}));
}

TEST_P(TensorOn, WritesToRepeatedElementsAreRefused) {
  Tensor x = iota({1, 3});
  Tensor repeated = x.expand({2, 3});
  EXPECT_ERROR(repeated.add_(iota({3})), kInvalid, "add_: ", "may store one element for several");
  EXPECT_ERROR(repeated.mul_(2), kInvalid, "mul_: ", "may store one element for several");
  EXPECT_ERROR(repeated.copy_(iota({2, 3})), kInvalid, "copy_: ");
  EXPECT_ERROR(iota({4}).as_strided({3, 2}, {1, 1}, 0).mul_(2), kInvalid, "mul_: ");
  EXPECT_EQ(x.to_vector<double>(), (Values{0, 1, 2}));
  repeated.fill_(4);  // the same value everywhere: allowed
  EXPECT_EQ(x.to_vector<double>(), Values(3, 4.0));
  Tensor once = x.squeeze(0).expand({1, 3});  // repeated once is not repeated
  EXPECT_EQ(once.strides()[0], 0);
  once.mul_(2);
  EXPECT_EQ(x.to_vector<double>(), Values(3, 8.0));
}

TEST_P(TensorOn, WritesRaiseTheSharedVersion) {
  const Tensor x = iota({2, 3});
  Tensor view = x.transpose(0, 1).slice(0, 1, 2);
  const uint64_t before = x.storage()->version();
  view.fill_(1).mul_(2).add_(view).copy_(view);
  EXPECT_EQ(x.storage()->version(), before + 4);
  EXPECT_ERROR(view.add_(iota({7})), kInvalid, "add_: ");
  EXPECT_EQ(x.storage()->version(), before + 4);
}

TEST_P(TensorOn, CopiesAreIndependent) {
  const Tensor x = iota({3});
  Tensor copy = x.clone(), handle = x;
  copy.zero_();
  EXPECT_EQ(x.to_vector<double>(), (Values{0, 1, 2}));
  handle.zero_();
  EXPECT_EQ(x.to_vector<double>(), Values(3, 0.0));
  EXPECT_EQ(x.to(DType::f64).storage(), x.storage()) << "no copy where nothing changes";
}

TEST(Tensor, RefusesShapesThatCannotBe) {
  EXPECT_ERROR((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), kInvalid, "rank must be at most 8, got 9");
  EXPECT_ERROR(Tensor::ones({1, 1, 1, 1, 1, 1, 1, 1}).unsqueeze(0), kInvalid, "rank");
  EXPECT_ERROR(Tensor::empty({2, -1}), kInvalid, "extents must not be negative, got [2,-1]");
  const int64_t huge = int64_t{1} << 40;
  EXPECT_ERROR(Tensor::empty({huge, huge}), kInvalid, "does not fit 63 bits");
  EXPECT_ERROR(Tensor::empty({huge, int64_t{1} << 22}), kInvalid, "size of f32", "63 bits");
  EXPECT_ERROR(Tensor::zeros({0, huge, huge}), kInvalid, "does not fit 63 bits");  // its strides
  EXPECT_ERROR(Tensor::ones({6}).reshape({huge, huge}), kInvalid, "reshape: ", "63 bits");
  EXPECT_ERROR(Tensor::empty({INT64_MAX}, {.dtype = DType::u8}), ErrorCode::out_of_memory,
               "asked for 9223372036854775807 bytes on cpu, holding ");
  EXPECT_ERROR(Tensor::empty({huge, 1 << 10}), ErrorCode::out_of_memory,
               "out of memory: asked for ", " bytes on cpu, holding ", " are free");
}

TEST(Tensor, VectorsLargerThanMemory) {
  const Tensor x = Tensor::ones({1}).expand({int64_t{1} << 62});
  EXPECT_ERROR(x.to_vector<float>(), ErrorCode::out_of_memory,
               "out of memory: asked for a vector of 4611686018427387904 values of 4 bytes");
}

TEST(Tensor, UndefinedTensors) {
  const Tensor x;
  EXPECT_FALSE(x.defined());
  EXPECT_FALSE(x.raw());
  EXPECT_ERROR(x.shape(), kInvalid, "tensor: expected a tensor, got an undefined one");
}

TEST(Tensor, ViewsStayInsideTheirStorage) {
  const Tensor x = Tensor::ones({6});
  EXPECT_EQ(x.as_strided({2, 2}, {3, 1}, 1).numel(), 4);
  EXPECT_ERROR(x.as_strided({2, 3}, {4, 1}, 0), kInvalid, "reaches outside a storage of 6");
  EXPECT_ERROR(x.as_strided({2}, {1}, -1), kInvalid, "reaches outside");
  EXPECT_ERROR(x.as_strided({2}, {-1}, 5), kInvalid, "strides must not be negative");
  EXPECT_ERROR(x.as_strided({2}, {1, 1}, 0), kInvalid, "a stride for each extent");
  EXPECT_ERROR(x.as_strided({5, 2}, {int64_t{1} << 62, 1}, 0), kInvalid, "reaches outside");
  EXPECT_ERROR(x.as_strided({2}, {INT64_MAX}, 5), kInvalid, "reaches outside");
  EXPECT_EQ(x.slice(0, 2, 6, INT64_MAX).to_vector<double>(), std::vector<double>{1});
  EXPECT_EQ(x.reshape({3, 2}).slice(0, 1, 3, INT64_MAX).shape(), (Shape{1, 2}));
}

TEST(Tensor, WrapsMemoryOfSomebodyElse) {
  std::vector<float> memory{1, 2, 3, 4};
  Tensor x = Tensor::wrap(memory.data(), {2, 2});
  x.mul_(2);
  EXPECT_EQ(memory, (std::vector<float>{2, 4, 6, 8}));
  EXPECT_ERROR(Tensor::wrap(nullptr, {2}), kInvalid, "wrap: expected memory for f32[2]");
  EXPECT_ERROR(Tensor::wrap(memory.data(), {int64_t{1} << 61}, {.dtype = DType::f64}), kInvalid,
               "tensor: the size of f64[2305843009213693952] does not fit 63 bits");
  EXPECT_EQ(Tensor::wrap(nullptr, {0, 3}).numel(), 0);
}

}  // namespace
}  // namespace gradus
