// Pooling and activations of more than 2^31 elements, where 32-bit indices would wrap; up to 16 GB
// of the device.
#include "autograd/ops/activation.h"
#include "autograd/ops/avg_pool2d.h"
#include "autograd/ops/max_pool2d.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

constexpr int64_t kChannels = 64, kHeight = 8192, kWidth = 4104;  // 2.15e9 elements
using Values = std::vector<float>;

// Every 2 x 2 tile of every plane holds -1 2 / 4 -3.
Tensor tiles(MemoryFormat format) {
  const Tensor tile =
      Tensor::from_vector<float>({-1, 2, 4, -3}, {2, 2}, {.dtype = DType::bf16, .device = kCuda});
  if (format == MemoryFormat::contiguous) {
    const Tensor all =
        tile.reshape({1, 1, 2, 1, 2}).expand({kChannels, kHeight / 2, 2, kWidth / 2, 2}).clone();
    return all.reshape({1, kChannels, kHeight, kWidth}).detach();
  }
  const Tensor all =
      tile.reshape({1, 2, 1, 2, 1}).expand({kHeight / 2, 2, kWidth / 2, 2, kChannels}).clone();
  return all.reshape({1, kHeight, kWidth, kChannels}).permute({0, 3, 1, 2}).detach();
}

// The last rows of the first, a middle and the last plane of `result` repeat `want`, rows by rows.
void expect_repeats(const Tensor& result, int64_t rows, const Values& want) {
  const int64_t height = result.size(2), columns = static_cast<int64_t>(want.size()) / rows;
  for (const int64_t channel : {int64_t{0}, kChannels / 2, kChannels - 1}) {
    const Tensor last =
        result.detach().slice(1, channel, channel + 1).slice(2, height - rows, height).contiguous();
    const Values values = last.to_vector<float>();
    const int64_t width = result.size(3);
    for (int64_t i = 0; i < rows * width; ++i) {
      ASSERT_EQ(values[static_cast<size_t>(i)],
                want[static_cast<size_t>(i / width * columns + i % width % columns)])
          << "channel " << channel << " at " << i;
    }
  }
}

template <class F>
void expect_of_tiles(MemoryFormat format, F&& f, const Values& want, const Values& want_dx) {
  Tensor x = tiles(format).set_requires_grad(true);
  ASSERT_TRUE(x.is_contiguous(format));
  const Tensor y = f(x);
  const int64_t rows = y.size(2) == kHeight ? 2 : 1;
  expect_repeats(y, rows, want);
  y.backward(Tensor::full({}, 1.0, {.dtype = y.dtype(), .device = kCuda}).expand(y.shape()));
  expect_repeats(x.grad(), 2, want_dx);
}

constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

TEST(PoolCudaFaultsSlow, D104_MaxPool2dBeyondTwoToThe31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  for (const MemoryFormat format : kFormats) {
    expect_of_tiles(format,
                    [](const Tensor& x) {
                      return max_pool2d(x, {{2, 2}, {2, 2}});
                    },
                    {4}, {0, 0, 1, 0});
    expect_of_tiles(format,
                    [](const Tensor& x) {
                      return max_pool2d(x, {{2, 4}, {2, 4}});
                    },
                    {4}, {0, 0, 0, 0, 1, 0, 0, 0});
    expect_of_tiles(format,
                    [](const Tensor& x) {
                      return max_pool2d(x, {{3, 3}, {2, 2}}, true);
                    },
                    {4}, {0, 0, 1, 0});
  }
}

TEST(PoolCudaFaultsSlow, D104_AvgPool2dBeyondTwoToThe31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  for (const MemoryFormat format : kFormats) {
    expect_of_tiles(
        format, [](const Tensor& x) { return avg_pool2d(x, {.kernel_size = 2}); }, {0.5f},
        Values(4, 0.25f));
    expect_of_tiles(
        format,
        [](const Tensor& x) {
          return avg_pool2d(x, {.kernel_size = {2, 8}});
        },
        {0.5f}, Values(4, 0.0625f));
    // Every other column, with windows that do not touch: -1 and 4.
    expect_of_tiles(format,
                    [](const Tensor& x) {
                      return avg_pool2d(x, {.kernel_size = {2, 1}, .stride = Pair(2, 2)});
                    },
                    {1.5f}, {0.5f, 0, 0.5f, 0});
  }
}

TEST(PoolCudaFaultsSlow, D104_ActivationsBeyondTwoToThe31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  for (const MemoryFormat format : kFormats) {
    expect_of_tiles(format, [](const Tensor& x) { return relu(x); }, {0, 2, 4, 0}, {0, 1, 1, 0});
    expect_of_tiles(format, [](const Tensor& x) { return elu(x, 0); }, {0, 2, 4, 0}, {0, 1, 1, 0});
  }
}

}  // namespace
}  // namespace gradus
