// Variants of layer and RMS normalization backward that are wrong in one way: the comparison that
// the kernels pass must refuse each of them in every case of the ops where it shows, and the
// diagnosis must name it.
#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/named_slip.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

using explain::Slip;

// What a faulty kernel would do, beside the right thing.
struct Mutant {
  const char* name;
  Slip slip = Slip::none;    // as the diagnosis names it
  double m1 = 1, m2 = 1;     // weights of the terms
  double count = 0;          // added to the count of the set
  bool counts_rows = false;  // divides by the number of rows instead
  int gamma_inside = 1;      // power of gamma within the sums
  int gamma_outside = 0;     // and outside of dx
  double stale_mean = 0;     // statistics of other data
  double stale_rstd = 0;
  int64_t rows_lost = 0;     // of dgamma and dbeta, at the end
  bool dgamma_of_x = false;  // dy·x instead of dy·xhat
  bool dgamma_of_d = false;  // gamma within dgamma and dbeta
};

struct Gradients3 {
  ref::Array dx, dgamma, dbeta;
};

Gradients3 mutate(const Mutant& mutant, const ref::Array& x, const ref::Array& gamma,
                  const ref::Array& dy, bool with_mean) {
  const int64_t m = gamma.numel(), rows = x.numel() / m;
  Gradients3 g{ref::zeros(x.shape), ref::zeros(gamma.shape), ref::zeros(gamma.shape)};
  for (int64_t row = 0; row < rows; ++row) {
    const auto at = [&](int64_t i) { return row * m + i; };
    double mean = 0, square = 0;
    for (int64_t i = 0; i < m && with_mean; ++i) mean += x[at(i)];
    mean /= double(m);
    for (int64_t i = 0; i < m; ++i) square += (x[at(i)] - mean) * (x[at(i)] - mean);
    const double rstd = (1 + mutant.stale_rstd) / std::sqrt(square / double(m) + 1e-5);
    mean += mutant.stale_mean;
    const auto xhat = [&](int64_t i) { return (x[at(i)] - mean) * rstd; };
    const auto d = [&](int64_t i) { return dy[at(i)] * std::pow(gamma[i], mutant.gamma_inside); };
    double m1 = 0, m2 = 0;
    const double count = mutant.counts_rows ? double(rows) : double(m) + mutant.count;
    for (int64_t i = 0; i < m; ++i) m1 += d(i), m2 += d(i) * xhat(i);
    m1 /= count, m2 /= count;
    if (!with_mean) m1 = 0;
    for (int64_t i = 0; i < m; ++i) {
      const double dx = rstd * (d(i) - mutant.m1 * m1 - mutant.m2 * xhat(i) * m2);
      g.dx[at(i)] = dx * std::pow(gamma[i], mutant.gamma_outside);
      if (row >= rows - mutant.rows_lost) continue;
      const double up = dy[at(i)] * (mutant.dgamma_of_d ? gamma[i] : 1.0);
      g.dgamma[i] += up * (mutant.dgamma_of_x ? x[at(i)] : xhat(i));
      g.dbeta[i] += up;
    }
  }
  return g;
}

testing::AssertionResult is_named(const char* op, const Mutant& mutant, const Gradients3& got,
                                  const std::vector<ref::Array>& in, const ref::Array& dy) {
  const bool with_mean = std::string(op) == "layer_norm";
  const explain::Setting setting{.layer = explain::parse_layer(op), .axes = in[1].shape.rank()};
  const bool only_direct = !with_mean && mutant.slip == Slip::evaluation_formula;
  return test::names(
      setting, {.x = test::as_f64(in[0]), .dy = test::as_f64(dy), .gamma = test::as_f64(in[1])},
      {test::as_f64(got.dx), test::as_f64(got.dgamma),
       with_mean ? test::as_f64(got.dbeta) : Tensor()},
      only_direct ? Slip::projection_missing : mutant.slip);
}

// Whether the comparison can tell a mutant from the right formula where dx has 8 to 11 bits: not by
// a count that changes less than their rounding; dgamma and dbeta, which have 24, do not show it.
bool shows(const Mutant& mutant, DType dtype, int64_t m) {
  return size_of(dtype) > 2 || mutant.count == 0 || m <= 12;
}

void expect_rejected(const char* op, DType dtype, bool with_mean,
                     const std::vector<Mutant>& mutants) {
  int cases = 0;
  for (const OpCase& op_case : test_cases_of(op)) {
    // The naive walk above knows row-major rows with a gamma, and more than one of each.
    const bool has_gamma = op_case.inputs.size() > 1 && op_case.inputs[1].name == "gamma";
    if (!has_gamma || op_case.inputs[0].mean > 100) continue;
    const auto in = draw_inputs(op_case, dtype, 7);
    const int64_t m = in[1].numel(), rows = in[0].numel() / m;
    if (rows < 2 || in[0].numel() > 10000) continue;
    SCOPED_TRACE(op_case.name);
    ++cases;
    const ref::Array dy = draw_upstream(in[0].shape, dtype, 8);
    const std::vector<ref::Array> want = op_case.reference_backward(in, dy);
    const auto agree = [&](const ref::Array& got, size_t i) {
      return i >= want.size() ||
             static_cast<bool>(compare(got.data, want[i].data, i == 0 ? dtype : acc_dtype(dtype),
                                       op_case.reduction, op_case.scale));
    };
    for (const Mutant& mutant : mutants) {
      if ((mutant.counts_rows && rows == m) || !shows(mutant, dtype, m)) continue;
      const Gradients3 got = mutate(mutant, in[0], in[1], dy, with_mean);
      const bool accepted = agree(got.dx, 0) && agree(got.dgamma, 1) && agree(got.dbeta, 2);
      EXPECT_EQ(accepted, std::string(mutant.name) == "right") << mutant.name;
      if (dtype != DType::f64) continue;
      EXPECT_TRUE(is_named(op, mutant, got, in, dy)) << mutant.name;
    }
  }
  EXPECT_GE(cases, 8);
}

const std::vector<Mutant> kOfBoth = {
    {.name = "right"},
    {.name = "no m2", .slip = Slip::projection_missing, .m2 = 0},
    {.name = "direct term only", .slip = Slip::evaluation_formula, .m1 = 0, .m2 = 0},
    {.name = "sign of m2", .slip = Slip::wrong_sign, .m2 = -1},
    {.name = "count m - 1", .slip = Slip::wrong_count, .count = -1},
    {.name = "count of rows", .slip = Slip::wrong_count, .counts_rows = true},
    {.name = "gamma outside the sums",
     .slip = Slip::gamma_outside,
     .gamma_inside = 0,
     .gamma_outside = 1},
    {.name = "gamma forgotten", .slip = Slip::gamma_missing, .gamma_inside = 0},
    {.name = "gamma twice", .slip = Slip::gamma_twice, .gamma_inside = 2},
    {.name = "stale rstd", .slip = Slip::stale_statistics, .stale_rstd = 1e-3},
    {.name = "last row lost", .slip = Slip::batch_sum_forgotten, .rows_lost = 1},
    {.name = "last block of rows lost", .slip = Slip::batch_sum_forgotten, .rows_lost = 2},
    {.name = "dgamma of x", .slip = Slip::x_for_xhat, .dgamma_of_x = true},
    {.name = "dgamma of dy·gamma", .slip = Slip::gamma_in_dgamma, .dgamma_of_d = true},
};

class RowNormMutants : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Of, RowNormMutants,
                         testing::Values(DType::f32, DType::f64, DType::f16, DType::bf16),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(RowNormMutants, OfLayerNormAreRejectedAndNamed) {
  std::vector<Mutant> mutants = kOfBoth;
  mutants.push_back({.name = "no m1 (RMS norm's formula)", .slip = Slip::mean_missing, .m1 = 0});
  mutants.push_back({.name = "sign of m1", .slip = Slip::wrong_sign, .m1 = -1});
  mutants.push_back({.name = "stale mean", .slip = Slip::stale_statistics, .stale_mean = 0.05});
  expect_rejected("layer_norm", GetParam(), true, mutants);
}

TEST_P(RowNormMutants, OfRmsNormAreRejectedAndNamed) {
  std::vector<Mutant> mutants = kOfBoth;
  mutants.push_back(
      {.name = "a mean is taken away", .slip = Slip::stale_statistics, .stale_mean = 0.05});
  expect_rejected("rms_norm", GetParam(), false, mutants);
}

// Layer norm's formula in place of RMS norm's and the other way round.
TEST_P(RowNormMutants, TheTwoAreToldApart) {
  for (const char* op : {"layer_norm", "rms_norm"}) {
    for (const OpCase& op_case : test_cases_of(op)) {
      if (op_case.name != "tiny" && op_case.name != "wide") continue;
      const auto in = draw_inputs(op_case, GetParam(), 7);
      const ref::Array dy = draw_upstream(in[0].shape, GetParam(), 8);
      const ref::Array want = op_case.reference_backward(in, dy)[0];
      const bool with_mean = std::string(op) == "layer_norm";
      for (const bool mutant_mean : {true, false}) {
        const ref::Array got = mutate({.name = "other"}, in[0], in[1], dy, mutant_mean).dx;
        EXPECT_EQ(static_cast<bool>(compare(got.data, want.data, GetParam(), op_case.reduction)),
                  mutant_mean == with_mean)
            << op << " " << op_case.name;
      }
    }
  }
}

}  // namespace
}  // namespace gradus
