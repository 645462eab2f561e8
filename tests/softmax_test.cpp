#include "autograd/ops/softmax.h"

#include <cmath>

#include "autograd/grad_mode.h"
#include "autograd/ops/sum.h"
#include "core/trace.h"
#include "nn/softmax.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/gpu.h"
#include "tests/support/named_slip.h"
#include "tests/support/op_modes.h"
#include "tests/support/reference_softmax.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(softmax);

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

TEST(Softmax, AgreesWithPyTorch) {
  for (const ref::Json& golden : ref::golden_cases("softmax")) {
    const bool log = golden.at("name") == "log_softmax";
    const int axis = golden.at("args").at("axis");
    SCOPED_TRACE(concat(std::string(golden.at("name")), " over axis ", axis));
    const ref::Array x = ref::golden_array(golden.at("inputs"), "x");
    const ref::Array dy = ref::golden_array(golden.at("dy"));
    const Tensor leaf = Tensor::from_vector(x.data, x.shape).set_requires_grad(true);
    const Tensor y = log ? log_softmax(leaf, axis) : softmax(leaf, axis);
    y.backward(Tensor::from_vector(dy.data, dy.shape));
    const auto expect = [](const Tensor& got, const ref::Array& want) {
      EXPECT_EQ(got.shape(), want.shape);
      EXPECT_TRUE(agrees(got.to_vector<double>(), want.data, DType::f64, got.numel()));
    };
    expect(y, ref::golden_array(golden.at("outputs"), "y"));
    expect(leaf.grad(), ref::golden_array(golden.at("gradients"), "x"));
  }
}

// Wrong backward passes, from the exact y, that the comparison of the cases must reject: dx_k from
// y_k, dy_k and the sums over the set.
struct Set {
  ref::Real y, dy, c, sum_dy, sum_dy_y;
};

using explain::Slip;

struct Mutant {
  const char* name;
  Slip slip;  // as the diagnosis of softmax2d names it
  bool log;
  ref::Real (*gradient)(const Set&);
};

const Mutant kMutants[] = {
    {"sum term missing", Slip::sum_missing, false, [](const Set& s) { return s.y * s.dy; }},
    {"sum of dy instead of dy y", Slip::sum_unweighted, false,
     [](const Set& s) { return s.y * (s.dy - s.sum_dy); }},
    {"mean instead of sum", Slip::wrong_count, false,
     [](const Set& s) { return s.y * (s.dy - s.sum_dy_y / s.c); }},
    {"y left out", Slip::y_missing, false, [](const Set& s) { return s.dy - s.sum_dy_y; }},
    {"y on one term only", Slip::y_on_one_term, false,
     [](const Set& s) { return s.y * s.dy - s.sum_dy_y; }},
    {"log form", Slip::log_form, false, [](const Set& s) { return s.dy - s.y * s.sum_dy; }},
    {"sum term missing", Slip::unknown, true, [](const Set& s) { return s.dy; }},
    {"y instead of exp(y)", Slip::unknown, true,
     [](const Set& s) { return s.dy - s.y * s.sum_dy; }},
    {"exp(y) left out", Slip::unknown, true, [](const Set& s) { return s.dy - s.sum_dy; }},
    {"mean instead of sum", Slip::unknown, true,
     [](const Set& s) { return s.dy - std::exp(s.y) * s.sum_dy / s.c; }},
    {"sum of dy y instead of dy", Slip::unknown, true,
     [](const Set& s) { return s.dy - std::exp(s.y) * s.sum_dy_y; }},
    {"softmax form", Slip::unknown, true,
     [](const Set& s) { return std::exp(s.y) * (s.dy - s.sum_dy_y); }},
};

ref::Real right_gradient(const Set& s) { return s.y * (s.dy - s.sum_dy_y); }
ref::Real right_log_gradient(const Set& s) { return s.dy - std::exp(s.y) * s.sum_dy; }

// dx of sets of c values that are `inner` apart, by one of the above. `skip` leaves so many of the
// last values out of the sums.
std::vector<double> mutated(ref::Real (*gradient)(const Set&), const ref::Array& y,
                            const ref::Array& dy, int64_t c, int64_t inner, int64_t skip = 0) {
  std::vector<double> dx(y.data.size());
  for (int64_t set = 0; set < y.numel() / c; ++set) {
    const int64_t first = set / inner * c * inner + set % inner;
    ref::Real sum_dy = 0, sum_dy_y = 0;
    for (int64_t k = 0; k < c - skip; ++k) {
      sum_dy += dy[first + k * inner];
      sum_dy_y += ref::Real(dy[first + k * inner]) * y[first + k * inner];
    }
    for (int64_t k = 0; k < c; ++k) {
      const int64_t at = first + k * inner;
      dx[static_cast<size_t>(at)] =
          static_cast<double>(gradient({y[at], dy[at], ref::Real(c), sum_dy, sum_dy_y}));
    }
  }
  return dx;
}

TEST(SoftmaxMutants, AreRejectedAndNamed) {
  for (const OpCase& op_case : test_cases_of("softmax")) {
    const bool log = op_case.name.starts_with("log_");
    if (op_case.name.substr(log ? 4 : 0) != "channels") continue;
    constexpr int64_t c = 5, inner = 12;  // of {2, 5, 3, 4} over axis 1
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(concat(op_case.name, " in ", to_string(dtype)));
      const std::vector<ref::Array> in = draw_inputs(op_case, dtype, 1);
      const ref::Array dy = draw_upstream(in[0].shape, dtype, 2);
      const ref::Array y = op_case.reference(in);
      const std::vector<double> want = op_case.reference_backward(in, dy)[0].data;
      const Tolerance allowed = gradient_tolerance(op_case, dtype, y, dy);
      const auto judge = [&](const std::vector<double>& got) {
        return compare(got, want, dtype, allowed);
      };
      const auto right = log ? right_log_gradient : right_gradient;
      EXPECT_TRUE(assertion(judge(mutated(right, y, dy, c, inner))));
      EXPECT_FALSE(judge(mutated(right, y, dy, c, inner, 1))) << "last value left out";
      EXPECT_FALSE(judge(mutated(right, y, dy, 3, 4))) << "wrong axis";
      EXPECT_FALSE(judge(mutated(right, y, dy, 2 * c, inner))) << "sets run into each other";
      const auto expect = [&](const std::vector<double>& dx, Slip slip) {
        EXPECT_TRUE(test::names({.layer = explain::Layer::softmax2d},
                                {.x = test::as_f64(in[0]), .dy = test::as_f64(dy)},
                                {.dx = Tensor::from_vector(dx, dy.shape)}, slip));
      };
      if (!log && dtype == DType::f64) {
        expect(mutated(right, y, dy, c, inner), Slip::none);
        expect(mutated(right, y, dy, c, inner, 1), Slip::last_left_out);
        expect(mutated(right, y, dy, 3, 4), Slip::wrong_set);
        expect(mutated(right, y, dy, 2 * c, inner), Slip::wrong_set);
      }
      for (const Mutant& mutant : kMutants) {
        if (mutant.log != log) continue;
        EXPECT_FALSE(judge(mutated(mutant.gradient, y, dy, c, inner))) << mutant.name;
        if (!log && dtype == DType::f64)
          expect(mutated(mutant.gradient, y, dy, c, inner), mutant.slip);
      }
    }
  }
}

// The forward pass without the maximum taken away: right for small values, rejected for large ones.
TEST(SoftmaxMutants, MaximumNotTakenAway) {
  const auto without_max = [](const std::vector<float>& x) {
    std::vector<double> y;
    float total = 0;
    for (const float value : x) total += std::exp(value);
    for (const float value : x) y.push_back(static_cast<double>(std::exp(value) / total));
    return y;
  };
  for (const auto& [x, is_small] : {std::pair(std::vector<float>{0.5F, -1, 2}, true),
                                    std::pair(std::vector<float>{378, -250, -424}, false),
                                    std::pair(std::vector<float>{-300, -301, -302}, false)}) {
    const ref::Array array = ref::array({3}, {x.begin(), x.end()});
    EXPECT_EQ(
        static_cast<bool>(compare(without_max(x), ref::softmax(array, 0).data, DType::f32, 3)),
        is_small);
  }
}

void expect_same_as_contiguous(Device device) {
  const ref::Array x = draw_upstream({2, 5, 3, 4}, DType::f32, 1);
  const ref::Array dy = draw_upstream({2, 5, 3, 4}, DType::f32, 2);
  for (int axis = 0; axis < 4; ++axis) {
    std::vector<double> first, first_dx;
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const Tensor tensor =
          Tensor::from_vector(x.data, x.shape, {.device = device, .format = format})
              .set_requires_grad(true);
      const Tensor y = softmax(tensor, axis);
      EXPECT_TRUE(y.is_contiguous(format));
      y.backward(Tensor::from_vector(dy.data, dy.shape, {.device = device}));
      EXPECT_TRUE(tensor.grad().is_contiguous(format));
      if (first.empty()) {
        first = y.to_vector<double>();
        first_dx = tensor.grad().to_vector<double>();
      }
      EXPECT_TRUE(agrees(y.to_vector<double>(), first, DType::f32, 5));
      EXPECT_TRUE(agrees(tensor.grad().to_vector<double>(), first_dx, DType::f32, 5));
    }
  }
}

TEST(Softmax, KeepsTheLayout) { expect_same_as_contiguous(kCpu); }
TEST(SoftmaxCuda, KeepsTheLayout) {
  GRADUS_SKIP_WITHOUT(kCuda);
  expect_same_as_contiguous(kCuda);
}

// Other strides are made dense by a launch of their own; dense ones take one launch each way.
TEST(Softmax, CopiesOnlyWhatIsNotDense) {
  const Tensor x = Tensor::from_vector<float>({1, 2, 3, 4, 5, 6}, {2, 3}).set_requires_grad(true);
  const auto launches = [&](const Tensor& input) {
    const Trace trace;
    softmax(input, 0).backward(Tensor::ones(input.shape()));
    std::vector<std::string_view> names;
    for (const TraceRecord& record : trace.records()) {
      if (record.name.starts_with("softmax") || record.name == "copy") names.push_back(record.name);
    }
    return names;
  };
  EXPECT_EQ(launches(x), (std::vector<std::string_view>{"softmax_forward", "softmax_backward"}));
  EXPECT_EQ(launches(x.transpose(0, 1)).front(), "copy");
}

// Views whose first element is not aligned to 16 bytes, and an upstream that repeats one element.
void expect_unaligned(Device device) {
  for (const DType dtype : kDTypes) {
    for (const int64_t c : {int64_t{8}, int64_t{64}, int64_t{1024}}) {
      const ref::Array flat = draw_upstream({3 * c + 1}, dtype, 1);
      const ref::Array part = ref::array({3, c}, {flat.data.begin() + 1, flat.data.end()});
      const Tensor base =
          Tensor::from_vector(flat.data, flat.shape, {.dtype = dtype, .device = device})
              .set_requires_grad(true);
      const Tensor y = softmax(base.slice(0, 1, 3 * c + 1).reshape({3, c}), 1);
      EXPECT_TRUE(agrees(y.to_vector<double>(), ref::softmax(part, 1).data, dtype, c));
      sum(log_softmax(base.slice(0, 1, 3 * c + 1).reshape({c, 3}), 0)).backward();
      const ref::Array columns = ref::array({c, 3}, part.data);
      const std::vector<double> want =
          ref::log_softmax_backward(columns, 0, ref::full({c, 3}, 1.0)).data;
      const std::vector<double> grad = base.grad().to_vector<double>();
      EXPECT_EQ(grad[0], 0);
      Tolerance allowed = tolerance(dtype, c);
      allowed.of_scale += ulp(1, dtype) * 4;  // y, stored rounded, is as large as log c
      EXPECT_TRUE(agrees(std::span(grad).subspan(1), want, dtype, allowed)) << to_string(dtype);
    }
  }
}

TEST(Softmax, UnalignedViews) { expect_unaligned(kCpu); }
TEST(SoftmaxCuda, UnalignedViews) {
  GRADUS_SKIP_WITHOUT(kCuda);
  expect_unaligned(kCuda);
}

// More long rows than a card takes at a time, all the same: blocks go from row to row.
TEST(SoftmaxCuda, ManyLongRows) {
  GRADUS_SKIP_WITHOUT(kCuda);
  for (const Shape& shape : {Shape{300, 16400}, Shape{150, 70000}}) {
    std::vector<double> row(static_cast<size_t>(shape[1]));
    for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<double>(i * i * 7 % 101) / 16;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const bool log : {false, true}) {
        SCOPED_TRACE(concat(shape, " ", dtype, log ? " log" : ""));
        const Tensor one = Tensor::from_vector(row, {1, shape[1]}, {.dtype = dtype});
        const Tensor x = one.to(kCuda).expand(shape).contiguous();
        const auto got = (log ? log_softmax(x, 1) : softmax(x, 1)).to_vector<float>();
        const size_t c = row.size();
        const std::vector<double> first(got.begin(), got.begin() + shape[1]);
        const Tensor want = log ? log_softmax(one, 1) : softmax(one, 1);
        EXPECT_TRUE(agrees(first, want.to_vector<double>(), dtype, shape[1]));
        int64_t others = 0;
        for (size_t i = c; i < got.size(); ++i) others += got[i] != got[i % c];
        EXPECT_EQ(others, 0);
      }
    }
  }
}

TEST(Softmax, Modules) {
  const ref::Array array = draw_upstream({2, 3, 4, 5}, DType::f64, 1);
  const Tensor x = Tensor::from_vector(array.data, array.shape);
  nn::Softmax over_rows(-1);
  nn::LogSoftmax over_batch(0);
  nn::Softmax2d over_channels;
  EXPECT_TRUE(agrees(over_rows(x).to_vector<double>(), ref::softmax(array, 3).data, DType::f64, 5));
  EXPECT_TRUE(
      agrees(over_batch(x).to_vector<double>(), ref::log_softmax(array, 0).data, DType::f64, 2));
  EXPECT_TRUE(
      agrees(over_channels(x).to_vector<double>(), ref::softmax(array, 1).data, DType::f64, 3));
  const ref::Array image = ref::array({6, 4, 5}, array.data);
  EXPECT_TRUE(agrees(over_channels(x.reshape({6, 4, 5})).to_vector<double>(),
                     ref::softmax(image, 0).data, DType::f64, 6));
  EXPECT_ERROR(over_channels(x.reshape({6, 20})), ErrorCode::invalid_argument, "softmax2d",
               "[n, c, h, w]", "f64[6,20]@cpu");
  EXPECT_EQ(over_rows.kind(), "Softmax");
  EXPECT_EQ(over_batch.kind(), "LogSoftmax");
  EXPECT_EQ(over_channels.kind(), "Softmax2d");
}

TEST(Softmax, Errors) {
  const auto invalid = ErrorCode::invalid_argument;
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_ERROR(softmax(x, 2), invalid, "softmax", "2");
  EXPECT_ERROR(log_softmax(x, -3), invalid, "log_softmax", "-3");
  EXPECT_ERROR(softmax(Tensor::zeros({}), 0), invalid, "softmax", "at least one axis");
  EXPECT_ERROR(softmax(Tensor::zeros({2}, {.dtype = DType::i64}), 0), invalid, "floating",
               "i64[2]@cpu");
}

TEST(Softmax, SavedOutputChangedInPlace) {
  const Tensor x = Tensor::ones({2, 3}).set_requires_grad(true);
  Tensor y = softmax(x, 1);
  {
    const NoGradGuard no_grad;
    y.zero_();
  }
  EXPECT_ERROR(y.backward(Tensor::ones({2, 3})), ErrorCode::autograd, "softmax", "version");
}

}  // namespace
}  // namespace gradus
