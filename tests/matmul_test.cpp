#include "autograd/ops/matmul.h"

#include <cmath>

#include "autograd/autocast.h"
#include "autograd/grad_mode.h"
#include "autograd/ops/sum.h"
#include "core/ops/matmul.h"
#include "core/trace.h"
#include "nn/precision.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(matmul);

Tensor leaf(const ref::Array& array, DType dtype = DType::f64) {
  return Tensor::from_vector(array.data, array.shape, {.dtype = dtype}).set_requires_grad(true);
}

Tensor leaf(const std::vector<double>& values, const Shape& shape, DType dtype = DType::f64) {
  return leaf(ref::array(shape, values), dtype);
}

std::vector<double> values_of(const Tensor& tensor) { return tensor.to_vector<double>(); }

TEST(Linear, Golden) {
  int cases = 0;
  for (const ref::Json& json : ref::golden_cases("linear")) {
    const std::string name = json.at("name");
    SCOPED_TRACE(name);
    const ref::Json &inputs = json.at("inputs"), &want = json.at("gradients");
    const bool is_linear = name.starts_with("linear");
    const Tensor a = leaf(ref::golden_array(inputs, is_linear ? "x" : "a"));
    const Tensor b = leaf(ref::golden_array(inputs, is_linear ? "w" : "b"));
    Tensor bias;
    if (is_linear && inputs.contains("b")) bias = leaf(ref::golden_array(inputs, "b"));
    const Tensor y = is_linear ? linear(a, b, bias) : matmul(a, b);
    const ref::Array dy = ref::golden_array(json.at("dy"));
    y.backward(Tensor::from_vector(dy.data, dy.shape));
    const auto same = [](const Tensor& got, const ref::Json& golden) {
      const ref::Array array = ref::golden_array(golden);
      EXPECT_EQ(got.shape(), array.shape);
      return agrees(values_of(got), array.data, DType::f64, 16);
    };
    EXPECT_TRUE(same(y, json.at("outputs").at("y")));
    EXPECT_TRUE(same(a.grad(), want.at(is_linear ? "x" : "a")));
    EXPECT_TRUE(same(b.grad(), want.at(is_linear ? "w" : "b")));
    if (bias) {
      EXPECT_TRUE(same(bias.grad(), want.at("b")));
    }
    ++cases;
  }
  EXPECT_EQ(cases, 6);
}

// Wrong backward passes that the comparison of the cases must reject, in every dtype.
struct Mutant {
  const char* name;
  std::function<void(std::span<const ref::Array> in, const ref::Array& dy, ref::LinearGradients&)>
      change;
};

const Mutant kMutants[] = {
    {"dw averages over the batch",
     [](auto in, const auto&, auto& g) {
       for (double& v : g.dw.data) v /= static_cast<double>(in[0].shape[0]);
     }},
    {"dw leaves out the last row",
     [](auto in, const auto& dy, auto& g) {
       const int64_t last = in[0].shape[0] - 1;
       for (int64_t o = 0; o < dy.shape[1]; ++o) {
         for (int64_t i = 0; i < in[0].shape[1]; ++i)
           g.dw.at(o, i) -= dy.at(last, o) * in[0].at(last, i);
       }
     }},
    {"dx leaves out the last output",
     [](auto in, const auto& dy, auto& g) {
       const int64_t last = dy.shape[1] - 1;
       for (int64_t n = 0; n < dy.shape[0]; ++n) {
         for (int64_t i = 0; i < in[0].shape[1]; ++i)
           g.dx.at(n, i) -= dy.at(n, last) * in[1].at(last, i);
       }
     }},
    {"dx ignores the sign of w",
     [](auto in, const auto& dy, auto& g) {
       ref::Array w = in[1];
       for (double& v : w.data) v = std::abs(v);
       g.dx = ref::linear_backward(in[0], w, dy).dx;
     }},
    {"dbias takes the first row only",
     [](auto, const auto& dy, auto& g) {
       for (int64_t o = 0; o < dy.shape[1]; ++o) g.db[o] = dy.at(0, o);
     }},
    {"dbias averages over the batch",
     [](auto in, const auto&, auto& g) {
       for (double& v : g.db.data) v /= static_cast<double>(in[0].shape[0]);
     }},
};

TEST(Linear, MutantsAreRejected) {
  for (const OpCase& op_case : test_cases_of("matmul")) {
    if (op_case.name != "linear_tiny" && op_case.name != "linear_odd") continue;
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      const std::vector<ref::Array> in = draw_inputs(op_case, dtype, 1);
      const ref::Array dy = draw_upstream(op_case.reference(in).shape, dtype, 2);
      const std::vector<ref::Array> want = op_case.reference_backward(in, dy);
      for (const Mutant& mutant : kMutants) {
        ref::LinearGradients g = ref::linear_backward(in[0], in[1], dy);
        mutant.change(in, dy, g);
        const bool accepted = compare(g.dx.data, want[0].data, dtype, op_case.reduction) &&
                              compare(g.dw.data, want[1].data, dtype, op_case.reduction) &&
                              compare(g.db.data, want[2].data, acc_dtype(dtype), op_case.reduction);
        EXPECT_FALSE(accepted) << mutant.name << " in " << op_case.name << ", " << to_string(dtype);
      }
    }
  }
}

// Exactly the gradients that are asked for, the same whatever else is asked for.
TEST(Linear, EveryMaskOfWantedGradients) {
  for (int mask = 1; mask < 8; ++mask) {
    Tensor inputs[] = {leaf({1, 2, 3, 4}, {2, 2}), leaf({5, 6, 7, 8}, {2, 2}), leaf({1, 1}, {2})};
    const std::vector<double> want[] = {
        {5 - 14, 6 - 16, 15 + 0.5 * 7, 18 + 0.5 * 8}, {1 + 9, 2 + 12, -2 + 1.5, -4 + 2}, {4, -1.5}};
    for (int i = 0; i < 3; ++i) inputs[i].set_requires_grad((mask >> i & 1) != 0);
    linear(inputs[0], inputs[1], inputs[2])
        .backward(Tensor::from_vector<double>({1, -2, 3, 0.5}, {2, 2}));
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(inputs[i].grad().defined(), (mask >> i & 1) != 0) << mask;
      if (inputs[i].grad()) {
        EXPECT_EQ(values_of(inputs[i].grad()), want[i]) << mask;
      }
    }
  }
}

TEST(Matrices, AreToldByTheirStrides) {
  const Tensor x = Tensor::ones({4, 6});
  const auto is_matrix_of = [&](const Shape& shape, const Strides& strides) {
    return is_matrix(x.as_strided(shape, strides, 0).raw());
  };
  EXPECT_TRUE(is_matrix_of({4, 6}, {6, 1}));
  EXPECT_TRUE(is_matrix_of({6, 4}, {1, 6}));
  EXPECT_TRUE(is_matrix_of({2, 3}, {12, 1})) << "rows apart";
  EXPECT_TRUE(is_matrix_of({1, 3}, {0, 1})) << "one row";
  EXPECT_FALSE(is_matrix_of({4, 3}, {6, 2})) << "columns apart";
  EXPECT_FALSE(is_matrix_of({4, 3}, {0, 1})) << "one row for all";
  EXPECT_FALSE(is_matrix_of({4, 3}, {2, 1})) << "rows that overlap";
}

// Sums that lie in the middle between two numbers of the dtype, in vectors and in what is left.
TEST(Matrices, SixteenBitResultsAreRoundedOnceAndToEven) {
  for (const auto& [dtype, step] : {std::pair{DType::bf16, 0x1p-7}, {DType::f16, 0x1p-10}}) {
    const Tensor a = Tensor::from_vector<double>({1, step, step / 2}, {1, 3}).to(dtype);
    std::vector<double> b(3 * 41, 1), want(41, 1 + 2 * step);
    for (size_t j = 0; j < 41; j += 2) b[41 + j] = 0, want[j] = 1;  // 1 + step/2 goes down
    b[2 * 41 + 7] = NAN, want[7] = NAN;
    const Tensor y = matmul(a, Tensor::from_vector(b, {3, 41}).to(dtype));
    const std::vector<double> got = values_of(y);
    for (size_t j = 0; j < 41; ++j) {
      EXPECT_TRUE(got[j] == want[j] || (std::isnan(got[j]) && j == 7)) << to_string(dtype) << j;
    }
    EXPECT_TRUE(std::isnan(got[7])) << to_string(dtype);
  }
}

TEST(Linear, GuardsOfThePrecisionNest) {
  EXPECT_EQ(autocast_dtype(DType::f32), DType::f32);
  {
    const AutocastGuard outer(DType::f16);
    const MatmulPrecisionGuard tf32(MatmulPrecision::tf32);
    {
      const AutocastGuard inner(DType::bf16);
      const MatmulPrecisionGuard strict(MatmulPrecision::strict);
      EXPECT_EQ(autocast_dtype(DType::f32), DType::bf16);
      EXPECT_EQ(matmul_precision(), MatmulPrecision::strict);
    }
    {
      const nn::PrecisionGuard f32(nn::Precision{});  // switches off what is around it
      EXPECT_EQ(autocast_dtype(DType::f32), DType::f32);
      EXPECT_EQ(matmul_precision(), MatmulPrecision::strict);
    }
    EXPECT_EQ(autocast_dtype(DType::f32), DType::f16);
    EXPECT_EQ(autocast_dtype(DType::f64), DType::f64);
    EXPECT_EQ(matmul_precision(), MatmulPrecision::tf32);
  }
  EXPECT_EQ(autocast_dtype(DType::f32), DType::f32);
  EXPECT_EQ(matmul_precision(), MatmulPrecision::strict);
  EXPECT_ERROR(AutocastGuard(DType::f64), ErrorCode::invalid_argument, "f16, bf16 or f32, got f64");
}

// Half operands, but parameter gradients in f32 that never pass through half.
TEST(Linear, AutocastKeepsParameterGradientsInF32) {
  for (const DType half : {DType::f16, DType::bf16}) {
    const auto rounded = [half](ref::Array array) {
      for (double& value : array.data) value = round_to(value, half);
      return array;
    };
    const ref::Array x = draw_upstream({37, 21}, DType::f32, 1);
    const ref::Array w = draw_upstream({11, 21}, DType::f32, 2);
    const ref::Array bias = draw_upstream({11}, DType::f32, 3);
    const ref::Array dy = draw_upstream({37, 11}, half, 4);
    const Tensor tx = leaf(x, DType::f32), tw = leaf(w, DType::f32), tb = leaf(bias, DType::f32);
    Tensor y;
    {
      const AutocastGuard autocast(half);
      y = linear(tx, tw, tb);
    }
    EXPECT_EQ(y.dtype(), half);
    EXPECT_TRUE(agrees(values_of(y), ref::linear(rounded(x), rounded(w), bias).data, half, 22));
    y.backward(Tensor::from_vector(dy.data, dy.shape, {.dtype = half}));
    const ref::LinearGradients want = ref::linear_backward(rounded(x), rounded(w), dy);
    EXPECT_EQ(tw.grad().dtype(), DType::f32);
    EXPECT_TRUE(agrees(values_of(tx.grad()), want.dx.data, DType::f32, 11));
    EXPECT_TRUE(agrees(values_of(tw.grad()), want.dw.data, DType::f32, 37));
    EXPECT_TRUE(agrees(values_of(tb.grad()), want.db.data, DType::f32, 37));
  }
}

TEST(Linear, TransposedOperandsAreNotCopied) {
  const Tensor a = leaf({1, 2, 3, 4, 5, 6}, {2, 3}), b = leaf({1, 0, 2, 1, 1, -1}, {2, 3});
  const Trace trace;
  const Tensor y = matmul(a.transpose(0, 1), b);
  EXPECT_EQ(values_of(y.detach()), (std::vector<double>{5, 4, -2, 7, 5, -1, 9, 6, 0}));
  y.backward(Tensor::from_vector<double>({1, 0, 0, 0, 1, 0, 0, 0, 1}, {3, 3}));
  EXPECT_EQ(values_of(a.grad()), (std::vector<double>{1, 0, 2, 1, 1, -1}));
  EXPECT_EQ(values_of(b.grad()), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  int products = 0;
  for (const TraceRecord& record : trace.records()) products += record.name == "matmul";
  EXPECT_EQ(products, 3);
}

// A leaf whose elements share memory gets a dense gradient, and its base the sum.
TEST(Matmul, ExpandedOperand) {
  const Tensor w = Tensor::from_vector<double>({1, 2, 3, 4}, {2, 2});
  const Tensor identity = Tensor::from_vector<double>({1, 0, 0, 1}, {2, 2});
  const Tensor base = leaf({1, 2}, {1, 2});
  const Tensor x = base.detach().expand({2, 2}).set_requires_grad(true);
  matmul(x, w).backward(identity);
  EXPECT_EQ(values_of(x.grad()), (std::vector<double>{1, 3, 2, 4}));
  matmul(base.expand({2, 2}), w).backward(identity);
  EXPECT_EQ(values_of(base.grad()), (std::vector<double>{3, 7}));
}

TEST(Linear, ExpandedUpstream) {
  const Tensor x = leaf({1, 2, 3, 4}, {2, 2}), w = leaf({1, 2, 3, 4, 5, 6}, {3, 2});
  sum(linear(x, w)).backward();
  EXPECT_EQ(values_of(x.grad()), (std::vector<double>{9, 12, 9, 12}));
  EXPECT_EQ(values_of(w.grad()), (std::vector<double>{4, 6, 4, 6, 4, 6}));
}

TEST(Matmul, BatchesThatLieApart) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Tensor a = leaf({1, 2, 9, 9, 3, 4, 9, 9}, {2, 2, 2}, dtype);
    const Tensor b = leaf({1, 0, 9, 9, 0, 2, 9, 9}, {2, 2, 2}, dtype);
    const Tensor y = matmul(a.slice(1, 0, 1), b.slice(1, 0, 1).transpose(1, 2));
    EXPECT_EQ(values_of(y), (std::vector<double>{1, 8})) << to_string(dtype);
  }
}

TEST(Linear, StridedBias) {
  const Tensor x = leaf({1, 2}, {1, 2}), w = leaf({1, 2, 3, 4}, {2, 2});
  const Tensor bias = leaf({100, 0, 200}, {3});
  const Tensor y = linear(x, w, bias.slice(0, 0, 3, 2));
  EXPECT_EQ(values_of(y), (std::vector<double>{105, 211}));
  sum(y).backward();
  EXPECT_EQ(values_of(bias.grad()), (std::vector<double>{1, 0, 1}));
}

TEST(Linear, EmptyExtents) {
  for (const Shape& extents : {Shape{0, 3, 2}, Shape{4, 0, 2}, Shape{4, 3, 0}}) {
    const int64_t m = extents[0], in = extents[1], out = extents[2];
    const Tensor x = Tensor::ones({m, in}, {.dtype = DType::f64}).set_requires_grad(true);
    const Tensor w = Tensor::ones({out, in}, {.dtype = DType::f64}).set_requires_grad(true);
    const Tensor bias = Tensor::full({out}, 2.0, {.dtype = DType::f64}).set_requires_grad(true);
    const Tensor y = linear(x, w, bias);
    EXPECT_EQ(y.shape(), (Shape{m, out}));
    const auto count = static_cast<size_t>(m * out);
    EXPECT_EQ(values_of(y), std::vector<double>(count, 2.0 + static_cast<double>(in)));
    y.backward(Tensor::ones(y.shape(), {.dtype = DType::f64}));
    EXPECT_EQ(values_of(x.grad()),
              std::vector<double>(static_cast<size_t>(m * in), static_cast<double>(out)));
    EXPECT_EQ(values_of(w.grad()),
              std::vector<double>(static_cast<size_t>(out * in), static_cast<double>(m)));
    EXPECT_EQ(values_of(bias.grad()),
              std::vector<double>(static_cast<size_t>(out), static_cast<double>(m)));
  }
}

TEST(Linear, NonFiniteValuesStayInTheirRow) {
  const double inf = INFINITY;
  const Tensor x = Tensor::from_vector<double>({1, 1, NAN, 1, inf, 1, 2, 0}, {4, 2});
  const std::vector<double> y =
      values_of(linear(x, Tensor::from_vector<double>({1, -1, 0.5, 2}, {2, 2})));
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 2.5);
  EXPECT_TRUE(std::isnan(y[2]) && std::isnan(y[3]));
  EXPECT_EQ(y[4], inf);
  EXPECT_EQ(y[5], inf);
  EXPECT_EQ(y[6], 2);
}

TEST(Linear, SavedWeightChangedInPlace) {
  const Tensor x = leaf({1, 2}, {1, 2});
  Tensor w = leaf({1, 2, 3, 4}, {2, 2});
  const Tensor y = linear(x, w);
  {
    const NoGradGuard no_grad;
    w.mul_(2.0);
  }
  EXPECT_ERROR(y.backward(Tensor::ones({1, 2}, {.dtype = DType::f64})), ErrorCode::autograd,
               "linear", "w f64[2,2]", "version");
}

TEST(Linear, Errors) {
  const auto f32 = [](const Shape& shape) { return Tensor::zeros(shape); };
  const auto invalid = ErrorCode::invalid_argument;
  EXPECT_ERROR(linear(f32({2, 3}), f32({4, 5})), invalid, "linear: expected an input [..., 5]",
               "f32[4,5]@cpu", "f32[2,3]@cpu");
  EXPECT_ERROR(linear(f32({2, 3}), f32({3})), invalid, "weight [out, in]", "f32[3]@cpu");
  EXPECT_ERROR(linear(f32({}), f32({4, 1})), invalid, "expected an input [..., 1]", "f32[]@cpu");
  EXPECT_ERROR(linear(f32({2, 3}), f32({4, 3}), f32({3})), invalid, "expected a bias f32[4]@cpu",
               "f32[3]@cpu");
  EXPECT_ERROR(linear(f32({2, 3}), f32({4, 3}), Tensor::zeros({4}, {.dtype = DType::f64})), invalid,
               "expected a bias f32[4]@cpu", "f64[4]@cpu");
  EXPECT_ERROR(linear(f32({2, 3}), Tensor::zeros({4, 3}, {.dtype = DType::f64})), invalid,
               "one floating dtype", "f64[4,3]@cpu");
  EXPECT_ERROR(matmul(f32({2, 3}), f32({2, 3})), invalid, "matmul: expected [..., m, k]",
               "f32[2,3]@cpu");
  EXPECT_ERROR(matmul(f32({3}), f32({3, 2})), invalid, "matmul", "f32[3]@cpu");
  EXPECT_ERROR(matmul(f32({2, 3, 4}), f32({3, 4, 5})), invalid, "matmul", "do not broadcast");
  const Tensor labels = Tensor::zeros({2, 2}, {.dtype = DType::i64});
  EXPECT_ERROR(matmul(labels, labels), invalid, "floating dtype", "i64[2,2]@cpu");
}

}  // namespace
}  // namespace gradus
