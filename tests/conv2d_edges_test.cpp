// conv2d where there is nothing to add up, and windows of any width.
#include <gtest/gtest.h>

#include <thread>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/conv2d.h"
#include "cpu/context.h"
#include "cpu/host_allocator.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"

namespace gradus {
namespace {

using Values = std::vector<double>;
Values values(const Tensor& x) { return x.to_vector<double>(); }

class Conv2dEdges : public test::EachDevice {
 protected:
  Tensor ones(const Shape& shape, DType dtype) {
    return Tensor::ones(shape, {.dtype = dtype, .device = GetParam()});
  }
};
GRADUS_ON_EACH_DEVICE(Conv2dEdges);

// No images, no pixels but padding, no channels.
TEST_P(Conv2dEdges, D055_NothingToAddUp) {
  for (const Shape& shape : {Shape{0, 8, 4, 5}, Shape{2, 8, 0, 5}, Shape{2, 0, 4, 5}}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(concat(dtype, shape));
      const Tensor x = ones(shape, dtype).set_requires_grad(true);
      const Tensor w = ones({3, shape[1], 3, 2}, dtype).set_requires_grad(true);
      const Tensor bias = ones({3}, acc_dtype(dtype)).set_requires_grad(true);
      const Tensor y = conv2d(x, w, bias, {.padding = {2, 0}});
      EXPECT_EQ(y.shape(), (Shape{shape[0], 3, shape[2] + 2, 4}));
      EXPECT_EQ(values(y), Values(static_cast<size_t>(y.numel()), 1.0));
      EXPECT_EQ(values(conv2d(x, w, {}, {.padding = {2, 0}})), values(sub(y, y)));
      y.backward(ones(y.shape(), dtype));
      EXPECT_EQ(x.grad().shape(), x.shape());
      EXPECT_EQ(values(w.grad()), Values(static_cast<size_t>(w.numel()), 0.0));
      EXPECT_EQ(values(bias.grad()), Values(3, static_cast<double>(y.numel() / 3)));
    }
  }
}

// 2^40 groups of no channels take no time; as many channels as wrap to those of x are others.
TEST_P(Conv2dEdges, ManyGroupsOfNothing) {
  const Tensor x = ones({1, 0, 3, 3}, DType::f32), w = ones({0, 0, 1, 1}, DType::f32);
  EXPECT_EQ(conv2d(x, w, {}, {.groups = int64_t{1} << 40}).shape(), (Shape{1, 0, 3, 3}));
  EXPECT_ERROR(conv2d(x, ones({0, 4, 1, 1}, DType::f32), {}, {.groups = int64_t{1} << 62}),
               ErrorCode::invalid_argument, "reads 4");
}

// The CPU copies a window's whole input: where that has no size, no memory is taken for less.
TEST(Conv2dEdgesCpu, WindowsBeyondTheMemory) {
  const Tensor x = Tensor::ones({1, 1, 3, 3}), w = Tensor::ones({1, 1, 3, 3});
  for (const int64_t distance : {(int64_t{1} << 31) - 1, int64_t{1} << 30}) {
    EXPECT_ERROR(conv2d(x, w, {}, {.padding = distance, .dilation = distance}),
                 ErrorCode::out_of_memory, "out of memory: asked for ");
  }
}

// The weight gradient of one image is cut into slices, of which each copies the rows that it reads
// and no others: all of x and dy would be 11 MB at least.
TEST(Conv2dEdgesCpu, ASliceReadsItsOwnRows) {
  std::thread own([] {  // with a context of its own
    const auto allocator = std::make_shared<HostAllocator>();
    cpu().set_threads(1);
    cpu().set_allocator(allocator);
    const Tensor x = Tensor::ones({1, 3, 512, 512});
    const Tensor w = Tensor::ones({8, 3, 1, 1}).set_requires_grad(true);
    const Tensor y = conv2d(x, w), dy = Tensor::ones(y.shape());
    const int64_t before = allocator->stats().peak_bytes_in_use;
    y.backward(dy);
    EXPECT_LT(allocator->stats().peak_bytes_in_use, before + (4 << 20));
    EXPECT_EQ(values(w.grad()), Values(24, 512.0 * 512));
  });
  own.join();
}

// What the kernels count in 32 bits with the channels filled up to packs.
TEST(Conv2dEdgesCuda, FiltersTooLargeAreRefused) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const TensorOptions options{.dtype = DType::f16, .device = kCuda};
  const Tensor x = Tensor::ones({1, 1, 1, 1 << 27}, options);
  EXPECT_ERROR(conv2d(x, x, {}), ErrorCode::unsupported, "conv2d_forward: filters of 1x134217728");
}

// Equal terms show what is lost of each.
TEST_P(Conv2dEdges, D004_LongSumsKeepTheirDigits) {
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const TensorOptions options{.device = GetParam(), .format = format};
    const Tensor x = Tensor::ones({1, 1, 512, 512}, options);
    const Tensor w = ones({8, 1, 1, 1}, DType::f32).set_requires_grad(true);
    const Tensor bias = ones({8}, DType::f32).set_requires_grad(true);
    Tensor dy = Tensor::empty({1, 8, 512, 512}, options);
    dy.fill_(0.1);
    conv2d(x, w, bias).backward(dy);
    const double want = 512 * 512 * static_cast<double>(0.1f);
    for (const Tensor& grad : {w.grad(), bias.grad()}) {
      for (const double sum : values(grad)) EXPECT_NEAR(sum / want, 1, 5e-6) << to_string(format);
    }
  }
}

// On the CPU a register takes the terms one by one: of many channels, of a wide window, of long
// rows of outputs or of many images.
TEST(Conv2dEdgesCpu, D004_LongSumsKeepTheirDigits) {
  struct Long {
    Shape x, w;
    Conv2dOptions options = {};
  };
  const double tenth = static_cast<double>(0.1f);
  const auto expect_all = [](const Tensor& sums, double want) {
    for (const double sum : values(sums)) ASSERT_NEAR(sum / want, 1, 1e-5) << want;
  };
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const auto filled = [&](const Shape& shape, double value) {
      Tensor tensor = Tensor::empty(shape, {.format = format});
      tensor.fill_(value);
      return tensor;
    };
    for (const Long& of_y :
         {Long{{1, 512, 3, 3}, {3, 512, 3, 3}}, Long{{1, 16384, 1, 1}, {3, 16384, 1, 1}},
          Long{{1, 1, 128, 128}, {3, 1, 128, 128}},
          Long{{1, 16, 128, 128}, {16, 1, 128, 128}, {.groups = 16}}}) {
      SCOPED_TRACE(concat("y ", of_y.w, " ", format));
      const Tensor y = conv2d(filled(of_y.x, 0.1), Tensor::ones(of_y.w), {}, of_y.options);
      expect_all(y, tenth * static_cast<double>(of_y.w[1] * of_y.w[2] * of_y.w[3]));
    }
    for (const Long& of_dx : {Long{{1, 3, 1, 1}, {512, 3, 3, 3}, {.padding = 2}},
                              Long{{1, 3, 1, 1}, {16384, 3, 1, 1}}}) {
      SCOPED_TRACE(concat("dx ", of_dx.w, " ", format));
      const Tensor x = Tensor::ones(of_dx.x).set_requires_grad(true);
      const Tensor y = conv2d(x, Tensor::ones(of_dx.w), {}, of_dx.options);
      y.backward(filled(y.shape(), 0.1));
      expect_all(x.grad(), tenth * static_cast<double>(y.numel()));
    }
    for (const Long& of_dw : {Long{{1, 1, 1, 1 << 20}, {2, 1, 1, 1}},
                              Long{{1, 16, 1, 1 << 18}, {16, 1, 1, 1}, {.groups = 16}},
                              Long{{1 << 18, 1, 1, 1}, {2, 1, 1, 1}}}) {
      SCOPED_TRACE(concat("dw ", of_dw.x, " ", format));
      const Tensor w = Tensor::ones(of_dw.w).set_requires_grad(true);
      const Tensor y = conv2d(filled(of_dw.x, 1), w, {}, of_dw.options);
      y.backward(filled(y.shape(), 0.1));
      expect_all(w.grad(), tenth * static_cast<double>(y.numel() / of_dw.w[0]));
    }
  }
}

// Taps so far apart that only the middle one meets x. The CPU has memory for the padding.
TEST_P(Conv2dEdges, D054_WindowsOfAnyWidth) {
  const bool on_gpu = GetParam() == kCuda;
  for (const int shift : on_gpu ? std::vector{12, 20, 28, 29} : std::vector{12}) {
    for (const size_t axis : {0, 1}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const int64_t channels : {1, 8, 64}) {
          SCOPED_TRACE(concat(dtype, " 2^", shift, " axis ", axis, " of ", channels));
          Conv2dOptions options;
          options.padding[axis] = options.dilation[axis] = int64_t{1} << shift;
          const Tensor x = ones({1, channels, 4, 4}, dtype).set_requires_grad(true);
          const Tensor w =
              ones(axis == 0 ? Shape{8, channels, 3, 1} : Shape{8, channels, 1, 3}, dtype)
                  .set_requires_grad(true);
          if (shift >= 29) {
            EXPECT_ERROR(conv2d(x, w, {}, options), ErrorCode::unsupported,
                         "is too large for CUDA: extents must be below 1073741824");
            continue;
          }
          const Tensor y = conv2d(x, w, {}, options);
          EXPECT_EQ(values(y), Values(128, static_cast<double>(channels)));
          y.backward(ones(y.shape(), dtype));
          EXPECT_EQ(values(x.grad()), Values(static_cast<size_t>(x.numel()), 8.0));
          Values dw(static_cast<size_t>(w.numel()), 0.0);
          for (size_t i = 1; i < dw.size(); i += 3) dw[i] = 16;
          EXPECT_EQ(values(w.grad()), dw);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradus
