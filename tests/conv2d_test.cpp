// conv2d: PyTorch's goldens, cases known by hand, refusals, precision and repeatability.
#include <algorithm>

#include "autograd/ops/conv2d.h"

#include "autograd/autocast.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(conv2d);

using Values = std::vector<double>;
constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};
constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

Values values(const Tensor& x) { return x.to_vector<double>(); }

// A result known by hand. All numbers are exact in f16 and bf16, or rounded once.
struct Known {
  Shape x_shape;
  Values x;
  Shape w_shape;
  Values w;
  Conv2dOptions options;
  Values y;
  Values dy = {};
  Values dx = {};
  Values dw = {};
};

class Conv2d : public test::EachDevice {
 protected:
  Tensor tensor(const Shape& shape, const Values& values, DType dtype = DType::f64,
                MemoryFormat format = MemoryFormat::contiguous) {
    return Tensor::from_vector(values, shape,
                               {.dtype = dtype, .device = GetParam(), .format = format})
        .set_requires_grad(true);
  }
  Tensor ones(const Shape& shape, DType dtype = DType::f32) {
    return Tensor::ones(shape, {.dtype = dtype, .device = GetParam()});
  }
  // In every dtype and both formats.
  void expect_known(const Known& known) {
    for (const DType dtype : kDTypes) {
      for (const MemoryFormat format : kFormats) {
        SCOPED_TRACE(concat(dtype, " ", format));
        const Tensor x = tensor(known.x_shape, known.x, dtype, format);
        const Tensor w = tensor(known.w_shape, known.w, dtype);
        const Tensor y = conv2d(x, w, {}, known.options);
        if (!known.y.empty()) {
          EXPECT_TRUE(agrees(values(y), known.y, dtype, 0));
        }
        if (known.dy.empty()) continue;
        y.backward(tensor(y.shape(), known.dy, dtype).detach());
        EXPECT_TRUE(agrees(values(x.grad()), known.dx, dtype, 0));
        if (!known.dw.empty()) {
          EXPECT_TRUE(agrees(values(w.grad()), known.dw, dtype, 0));
        }
      }
    }
  }
};
class Conv2dFaults : public Conv2d {};

GRADUS_ON_EACH_DEVICE(Conv2d);
GRADUS_ON_EACH_DEVICE(Conv2dFaults);

TEST_P(Conv2d, AgreesWithPyTorch) {
  int cases = 0;
  for (const ref::Json& json : ref::golden_cases("conv2d")) {
    for (const MemoryFormat format : kFormats) {
      SCOPED_TRACE(concat(json.at("name").get<std::string>(), " ", format));
      ++cases;
      const auto input = [&](const char* key) {
        const ref::Array array = ref::golden_array(json.at("inputs"), key);
        if (array.empty()) return Tensor();
        return tensor(array.shape, array.data, DType::f64,
                      *key == 'x' ? format : MemoryFormat::contiguous);
      };
      const Tensor x = input("x"), w = input("w"), b = input("b");
      const ref::Json& args = json.at("args");
      const Tensor y = conv2d(x, w, b,
                              {.stride = ref::golden_pair(args, "stride"),
                               .padding = ref::golden_pair(args, "padding"),
                               .dilation = ref::golden_pair(args, "dilation"),
                               .groups = args.at("groups").get<int64_t>()});
      EXPECT_TRUE(y.is_contiguous(format));
      const auto expect = [&](const Tensor& got, const ref::Json& group, const char* key) {
        const ref::Array want = ref::golden_array(group, key);
        ASSERT_EQ(got.shape(), want.shape);
        EXPECT_TRUE(agrees(values(got), want.data, DType::f64, 64)) << key;
      };
      expect(y, json.at("outputs"), "y");
      y.backward(tensor(y.shape(), ref::golden_array(json.at("dy")).data).detach());
      expect(x.grad(), json.at("gradients"), "x");
      expect(w.grad(), json.at("gradients"), "w");
      if (b.defined()) expect(b.grad(), json.at("gradients"), "b");
    }
  }
  EXPECT_EQ(cases, 18);
}

TEST_P(Conv2dFaults, D050_UncoveredColumns) {
  const Values x{1, 2, 3, 4, 5, 6};
  const Known along_w{.x_shape = {1, 1, 1, 6},
                      .x = x,
                      .w_shape = {1, 1, 1, 3},
                      .w = {1, 2, 3},
                      .options = {.stride = {1, 2}},
                      .y = {14, 26},
                      .dy = {1, 10},
                      .dx = {1, 2, 13, 20, 30, 0},
                      .dw = {31, 42, 53}};
  expect_known(along_w);
  Known along_h = along_w;
  along_h.x_shape = {1, 1, 6, 1};
  along_h.w_shape = {1, 1, 3, 1};
  along_h.options = {.stride = {2, 1}};
  expect_known(along_h);
  // Both axes: the outer product of the first dx with itself.
  Known both{.x_shape = {1, 1, 6, 6},
             .x = Values(36, 1.0),
             .w_shape = {1, 1, 3, 3},
             .w = {1, 2, 3, 2, 4, 6, 3, 6, 9},
             .options = {.stride = {2, 2}},
             .y = Values(4, 36.0),
             .dy = {1, 10, 10, 100}};
  for (const double a : along_w.dx) {
    for (const double b : along_w.dx) both.dx.push_back(a * b);
  }
  expect_known(both);
}

TEST_P(Conv2dFaults, D051_StrideBeyondKernel) {
  Known known{.x_shape = {1, 1, 1, 8},
              .x = {1, 2, 3, 4, 5, 6, 7, 8},
              .w_shape = {1, 1, 1, 2},
              .w = {1, 1},
              .options = {.stride = {1, 4}, .padding = {0, 1}},
              .y = {1, 9, 8}};
  expect_known(known);
  known.w = {2, 3};
  known.y = {};
  known.dy = {1, 10, 100};
  known.dx = {3, 0, 0, 20, 30, 0, 0, 200};
  known.dw = {840, 51};
  expect_known(known);
}

TEST_P(Conv2dFaults, D052_GroupOffsets) {
  Values want(16, 0.0);
  std::fill(want.begin() + 8, want.end(), 1.0);
  expect_known({.x_shape = {1, 4, 1, 1},
                .x = {0, 0, 0, 1},
                .w_shape = {16, 2, 1, 1},
                .w = Values(32, 1.0),
                .options = {.groups = 2},
                .y = want});
  // y[k] = sum over the group's channels of 2^c-like weights: every count against plain loops.
  const std::vector<int64_t> counts{1, 2, 3, 4, 6, 8, 12, 16};
  for (const int64_t c : counts) {
    for (const int64_t k : counts) {
      for (const int64_t g : counts) {
        if (c % g != 0 || k % g != 0) continue;
        Values x, w, y, dx(static_cast<size_t>(c), 0.0);
        for (int64_t i = 0; i < c; ++i) x.push_back(static_cast<double>(i + 1));
        for (int64_t o = 0; o < k; ++o) {
          double sum = 0;
          for (int64_t i = 0; i < c / g; ++i) {
            const int64_t channel = o / (k / g) * (c / g) + i;
            w.push_back(static_cast<double>((o + 2 * i) % 5 - 1));
            sum += x[static_cast<size_t>(channel)] * w.back();
            dx[static_cast<size_t>(channel)] += w.back();
          }
          y.push_back(sum);
        }
        SCOPED_TRACE(concat("c ", c, " k ", k, " groups ", g));
        expect_known({.x_shape = {1, c, 1, 1},
                      .x = x,
                      .w_shape = {k, c / g, 1, 1},
                      .w = w,
                      .options = {.groups = g},
                      .y = y,
                      .dy = Values(static_cast<size_t>(k), 1.0),
                      .dx = dx});
      }
    }
  }
}

TEST_P(Conv2dFaults, D053_StrideIsNotDilation) {
  Known known{.x_shape = {1, 1, 1, 7},
              .x = {1, 2, 3, 4, 5, 6, 7},
              .w_shape = {1, 1, 1, 3},
              .w = {1, 10, 100},
              .options = {.stride = {1, 2}},
              .y = {321, 543, 765}};
  expect_known(known);
  known.options = {.dilation = {1, 2}};
  known.y = {531, 642, 753};
  expect_known(known);
  // Along h: an exchange of the two axes would not fit.
  known.x_shape = {1, 1, 7, 1};
  known.w_shape = {1, 1, 3, 1};
  known.options = {.dilation = {2, 1}};
  expect_known(known);
}

TEST_P(Conv2dFaults, D054_PaddingBeyondKernel) {
  expect_known({.x_shape = {1, 1, 1, 2},
                .x = {1, 2},
                .w_shape = {1, 1, 1, 3},
                .w = {1, 1, 1},
                .options = {.padding = {0, 4}},
                .y = {0, 0, 1, 3, 3, 2, 0, 0},
                .dy = Values(8, 1.0),
                .dx = {3, 3},
                .dw = {3, 3, 3}});
}

TEST_P(Conv2dFaults, D055_EmptyOutputs) {
  const auto run = [&](const Shape& x, const Conv2dOptions& options) {
    return conv2d(ones(x), ones({1, 1, 3, 3}), {}, options);
  };
  EXPECT_ERROR(run({1, 1, 2, 2}, {}), ErrorCode::invalid_argument,
               "conv2d: padded input 2x2 is smaller than the dilated kernel 3x3");
  EXPECT_ERROR(run({1, 1, 4, 4}, {.dilation = {2, 2}}), ErrorCode::invalid_argument,
               "conv2d: padded input 4x4 is smaller than the dilated kernel 5x5");
  const int64_t huge = int64_t{1} << 62;  // sums and products of it would overflow
  for (const Conv2dOptions& options :
       {Conv2dOptions{.stride = huge}, Conv2dOptions{.padding = huge},
        Conv2dOptions{.dilation = huge}}) {
    EXPECT_ERROR(run({1, 1, 4, 4}, options), ErrorCode::invalid_argument,
                 "conv2d: kernel, stride, dilation and padding must be at most 2147483647, got 46");
  }
}

TEST_P(Conv2dFaults, D056_DepthwiseStride) {
  expect_known({.x_shape = {1, 2, 1, 5},
                .x = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10},
                .w_shape = {2, 1, 1, 3},
                .w = {1, 2, 3, 4, 5, 6},
                .options = {.stride = {1, 2}, .padding = {0, 1}, .groups = 2},
                .y = {8, 20, 14, 72, 122, 86},
                .dy = Values(6, 1.0),
                .dx = {2, 4, 2, 4, 2, 5, 10, 5, 10, 5},
                .dw = {6, 9, 6, 16, 24, 16}});
}

TEST_P(Conv2d, DepthwiseDilation) {
  expect_known({.x_shape = {1, 2, 1, 5},
                .x = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10},
                .w_shape = {2, 1, 1, 3},
                .w = {1, 2, 3, 4, 5, 6},
                .options = {.dilation = {1, 2}, .groups = 2},
                .y = {22, 124},
                .dy = {1, 1},
                .dx = {1, 0, 2, 0, 3, 4, 0, 5, 0, 6},
                .dw = {1, 3, 5, 6, 8, 10}});
}

TEST_P(Conv2d, RefusesWhatDoesNotFit) {
  const Tensor x = ones({2, 6, 5, 5}), w = ones({4, 3, 3, 3});
  const auto code = ErrorCode::invalid_argument;
  EXPECT_ERROR(conv2d(x, w), code, "conv2d: x f32[2,6,5,5]@", "has 6 channels per group of 1",
               "but w f32[4,3,3,3]@", "reads 3");
  EXPECT_ERROR(conv2d(x, w, {}, {.groups = 4}), code, "groups 4 must divide the channels",
               "f32[2,6,5,5]", "f32[4,3,3,3]");
  EXPECT_ERROR(conv2d(x, w, {}, {.groups = 0}), code, "groups must be positive, got 0");
  EXPECT_ERROR(conv2d(x.reshape({12, 5, 5}), w), code, "expected x [n, c, h, w]", "f32[12,5,5]");
  EXPECT_ERROR(conv2d(x, w.reshape({4, 27})), code, "expected w [k, c/groups, r, s]", "f32[4,27]");
  EXPECT_ERROR(conv2d(x, w.to(DType::f64), {}, {.groups = 2}), code, "one dtype", "f64[4,3,3,3]");
  EXPECT_ERROR(conv2d(x, w, ones({3}), {.groups = 2}), code, "expected bias f32[4]", "got f32[3]");
  EXPECT_ERROR(conv2d(x.to(DType::f16), w.to(DType::f16), ones({4}, DType::f16), {.groups = 2}),
               code, "expected bias f32[4]", "got f16[4]");
  EXPECT_ERROR(conv2d(x, w, {}, {.stride = {0, 1}, .groups = 2}), code,
               "stride must be positive, got 0x1");
  EXPECT_ERROR(conv2d(x, w, {}, {.padding = {0, -1}, .groups = 2}), code,
               "padding must not be negative, got 0x-1");
}

// A slice is dense in neither format: it is copied first, and its gradient reaches x.
TEST_P(Conv2d, ReadsStridedInput) {
  const Tensor x = tensor({1, 1, 2, 6}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const Tensor w = tensor({1, 1, 1, 2}, {1, 10});
  const Tensor y = conv2d(x.slice(3, 0, 6, 2), w);
  EXPECT_EQ(values(y), (Values{31, 53, 97, 119}));
  y.backward(tensor(y.shape(), {1, 2, 3, 4}).detach());
  EXPECT_EQ(values(x.grad()), (Values{1, 0, 12, 0, 20, 0, 3, 0, 34, 0, 40, 0}));
}

TEST_P(Conv2d, ReadsStridedParameters) {
  const Tensor x = tensor({1, 1, 1, 3}, {1, 2, 3});
  const Tensor w = tensor({1, 1, 2, 2}, {1, 2, 3, 4}), bias = tensor({3}, {100, 0, 200});
  const Tensor y = conv2d(x, w.permute({3, 1, 0, 2}), bias.slice(0, 0, 3, 2));
  EXPECT_EQ(values(y), (Values{107, 111, 210, 216}));
  y.backward(tensor(y.shape(), {1, 2, 3, 4}).detach());
  EXPECT_EQ(values(w.grad()), (Values{5, 11, 8, 18}));
  EXPECT_EQ(values(bias.grad()), (Values{3, 0, 7}));
}

TEST_P(Conv2d, AutocastKeepsParameterGradientsInF32) {
  const Tensor x = tensor({1, 1, 1, 3}, {1, 2, 3}, DType::f32);
  const Tensor w = tensor({1, 1, 1, 2}, {1, 1.0 / 3}, DType::f32);
  const Tensor bias = tensor({1}, {0.5}, DType::f32);
  Tensor y;
  {
    const AutocastGuard autocast(DType::bf16);
    y = conv2d(x, w, bias);
  }
  EXPECT_EQ(y.dtype(), DType::bf16);
  // 1/3 in bf16 is 0.333984375; the sums are rounded once.
  EXPECT_EQ(values(y), (Values{round_to(1.5 + 2 * 0.333984375, DType::bf16),
                               round_to(2.5 + 3 * 0.333984375, DType::bf16)}));
  y.backward(tensor(y.shape(), {1, 1.0 / 128}, DType::bf16).detach());
  EXPECT_EQ(x.grad().dtype(), DType::f32);
  EXPECT_EQ(w.grad().dtype(), DType::f32);
  EXPECT_EQ(bias.grad().dtype(), DType::f32);
  // 1 + 2/128 and 2 + 3/128 need more bits than bf16 has.
  EXPECT_EQ(values(w.grad()), (Values{1.015625, 2.0234375}));
  EXPECT_EQ(values(bias.grad()), (Values{1.0078125}));
}

TEST_P(Conv2d, EveryMaskOfWantedGradients) {
  const Values x_values{1, 2, 3, 4, 5, 6}, w_values{1, -1, 2, 3}, b_values{1, 2};
  const auto run = [&](int mask) {
    const Tensor x = tensor({1, 1, 2, 3}, x_values).set_requires_grad(mask & 1);
    const Tensor w = tensor({2, 1, 1, 2}, w_values).set_requires_grad(mask & 2);
    const Tensor b = tensor({2}, b_values).set_requires_grad(mask & 4);
    const Tensor y = conv2d(x, w, b);
    if (mask != 0) y.backward(tensor(y.shape(), {1, 2, 3, 4, 5, 6, 7, 8}).detach());
    return std::vector<Tensor>{x.grad(), w.grad(), b.grad()};
  };
  const std::vector<Tensor> all = run(7);
  for (int mask = 0; mask < 7; ++mask) {
    const std::vector<Tensor> some = run(mask);
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(some[i].defined(), ((mask >> i) & 1) != 0) << "mask " << mask << ", input " << i;
      if (some[i].defined()) {
        EXPECT_EQ(values(some[i]), values(all[i]));
      }
    }
  }
}

// w is only kept for dx, x only for dw: writing to what is not needed is allowed, else refused.
TEST_P(Conv2d, KeepsOnlyWhatBackwardReads) {
  const auto run = [&](bool x_wanted, bool w_wanted, bool writes_x) {
    const Tensor x = tensor({1, 1, 1, 2}, {1, 2}).set_requires_grad(x_wanted);
    const Tensor w = tensor({1, 1, 1, 2}, {3, 4}).set_requires_grad(w_wanted);
    const Tensor y = conv2d(x, w);
    (writes_x ? x : w).detach().fill_(7.0);
    y.backward();
    return values(x_wanted ? x.grad() : w.grad());
  };
  EXPECT_EQ(run(false, true, false), (Values{1, 2}));
  EXPECT_EQ(run(true, false, true), (Values{3, 4}));
  EXPECT_ERROR(run(false, true, true), ErrorCode::autograd, "conv2d: its saved x f64[1,1,1,2]");
  EXPECT_ERROR(run(true, false, false), ErrorCode::autograd, "conv2d: its saved w f64[1,1,1,2]");
}

}  // namespace
}  // namespace gradus
