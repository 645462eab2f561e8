// conv2d in all its directions on the GPU, on values that are exact in every dtype.
#pragma once

#include <vector>

#include "autograd/ops/conv2d.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/conv_modes.h"
#include "tests/support/gpu.h"

namespace gradus {

struct ConvShapes {
  Shape x, w;
  Conv2dOptions options = {};
};
inline void PrintTo(const ConvShapes& shapes, std::ostream* out) {
  *out << concat(shapes.x, " ", shapes.w);
}

// The values in a view that begins `offset` elements into its buffer.
inline Tensor moved(const Tensor& dense, int64_t offset) {
  if (offset == 0) return dense;
  const TensorOptions options{.dtype = dense.dtype(), .device = dense.device()};
  Tensor view = Tensor::empty({dense.numel() + offset}, options)
                    .as_strided(dense.shape(), dense.strides(), offset);
  return view.copy_(dense);
}

// y, dx, dw, dbias in `dtype`, of x and dy that begin `offset` elements into their buffers, and w
// that begins `w_offset` into its own.
inline std::vector<Tensor> conv_results(const ConvShapes& shapes, DType dtype, MemoryFormat format,
                                        int64_t offset = 0, int64_t w_offset = 0) {
  const auto tensor = [&](const Shape& shape, uint32_t seed, DType type, MemoryFormat layout) {
    return Tensor::from_vector(draw_eighths(shape.numel(), seed), shape,
                               {.dtype = type, .device = kCuda, .format = layout});
  };
  const auto flat = MemoryFormat::contiguous;
  const Tensor x = moved(tensor(shapes.x, 1, dtype, format), offset).set_requires_grad(true);
  const Tensor w = moved(tensor(shapes.w, 2, dtype, flat), w_offset).set_requires_grad(true);
  const Tensor bias = tensor({shapes.w[0]}, 3, acc_dtype(dtype), flat).set_requires_grad(true);
  const Tensor y = conv2d(x, w, bias, shapes.options);
  y.backward(moved(tensor(y.shape(), 4, dtype, format), offset));
  return {y.detach(), x.grad(), w.grad(), bias.grad()};
}

// The wanted results, rounded once.
inline void expect_exactly(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted) {
  const char* const names[] = {"y", "dx", "dw", "dbias"};
  for (size_t i = 0; i < got.size(); ++i) {
    std::vector<double> rounded = wanted[i].to_vector<double>();
    for (double& value : rounded) value = round_to(value, got[i].dtype());
    EXPECT_TRUE(agrees(got[i].to_vector<double>(), rounded, got[i].dtype(), Tolerance{}))
        << names[i];
  }
}

}  // namespace gradus
