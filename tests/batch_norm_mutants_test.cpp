// Variants of the backward of batch normalization that are wrong in one way: the comparison that
// the kernels pass must refuse each of them, and the diagnosis must name those of training.

#include <algorithm>
#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/named_slip.h"
#include "tests/support/op_modes.h"
#include "tests/support/reference_norm.h"

namespace gradus {
namespace {

using explain::Slip;

constexpr double kEps = 1e-5;

struct Geometry {
  int64_t n, c, s;
  int64_t m() const { return n * s; }
  int64_t at(int64_t i, int64_t k, int64_t j) const { return (i * c + k) * s + j; }
};

struct Mutant {
  const char* name;
  Slip slip;  // as the diagnosis names it
  bool m1 = true, m2 = true;
  int64_t count = 0;           // added to m
  bool samples_alone = false;  // n in place of m
  int gamma_power = 1;
  bool stale = false;          // statistics of other values
  bool plain_x = false;        // dgamma = Σ dy·(x - mean), without rstd
  bool first_sample = false;   // dgamma, dbeta of one sample
  bool mean_of_batch = false;  // dgamma, dbeta divided by n
};

const Mutant kOfTraining[] = {
    {.name = "no m1", .slip = Slip::mean_missing, .m1 = false},
    {.name = "no m2", .slip = Slip::projection_missing, .m2 = false},
    {.name = "neither", .slip = Slip::evaluation_formula, .m1 = false, .m2 = false},
    {.name = "count m - 1", .slip = Slip::wrong_count, .count = -1},
    {.name = "count n alone", .slip = Slip::wrong_count, .samples_alone = true},
    {.name = "gamma forgotten", .slip = Slip::gamma_missing, .gamma_power = 0},
    {.name = "gamma twice", .slip = Slip::gamma_twice, .gamma_power = 2},
    {.name = "stale statistics", .slip = Slip::stale_statistics, .stale = true},
    {.name = "batch sum forgotten", .slip = Slip::batch_sum_forgotten, .first_sample = true},
    {.name = "averaged over the batch", .slip = Slip::batch_mean, .mean_of_batch = true},
};
// m1 and m2 have no place there.
const Mutant kOfEvaluation[] = {
    {.name = "training formula", .slip = Slip::none},
    {.name = "m1", .slip = Slip::none, .m2 = false},
    {.name = "m2", .slip = Slip::none, .m1 = false},
    {.name = "gamma forgotten", .slip = Slip::none, .m1 = false, .m2 = false, .gamma_power = 0},
    {.name = "gamma twice", .slip = Slip::none, .m1 = false, .m2 = false, .gamma_power = 2},
    {.name = "stale statistics", .slip = Slip::none, .m1 = false, .m2 = false, .stale = true},
    {.name = "without rstd", .slip = Slip::none, .m1 = false, .m2 = false, .plain_x = true},
    {.name = "batch sum forgotten",
     .slip = Slip::none,
     .m1 = false,
     .m2 = false,
     .first_sample = true},
    {.name = "averaged over the batch",
     .slip = Slip::none,
     .m1 = false,
     .m2 = false,
     .mean_of_batch = true},
};

struct Data {
  Geometry g;
  ref::Array x, gamma, dy, mean, var;  // mean and var: of the batch, or running ones
  Data(const Geometry& geometry, DType dtype, bool training)
      : g(geometry),
        x(draw_upstream({g.n, g.c, g.s}, dtype, 7)),
        gamma(draw_upstream({g.c}, acc_dtype(dtype), 9)),
        dy(draw_upstream(x.shape, dtype, 8)) {
    const ref::BatchNormTrain batch = ref::batch_norm_train(x, {}, {}, kEps);
    mean = batch.mean, var = batch.var;
    if (training) return;
    for (double& value : mean.data) value += 0.25;
    for (double& value : var.data) value *= 1.5;
  }
};

ref::BatchNormGradients mutated(const Mutant& mutant, const Data& of) {
  const Geometry& g = of.g;
  ref::BatchNormGradients out{ref::zeros(of.x.shape), ref::zeros({g.c}), ref::zeros({g.c})};
  const double count =
      static_cast<double>(mutant.samples_alone ? g.n : g.m()) + static_cast<double>(mutant.count);
  for (int64_t k = 0; k < g.c; ++k) {
    const double mean = of.mean[k] + (mutant.stale ? 0.05 : 0);
    const double rstd = 1 / std::sqrt(of.var[k] + kEps);
    const auto xhat = [&](int64_t at) { return (of.x[at] - mean) * rstd; };
    double sum = 0, sum_xhat = 0;
    for (int64_t i = 0; i < g.n; ++i) {
      for (int64_t j = 0; j < g.s; ++j) {
        const int64_t at = g.at(i, k, j);
        sum += of.dy[at];
        sum_xhat += of.dy[at] * xhat(at);
        if (mutant.first_sample && i > 0) continue;
        const double share = mutant.mean_of_batch ? 1.0 / static_cast<double>(g.n) : 1.0;
        out.dgamma[k] += share * of.dy[at] * xhat(at) / (mutant.plain_x ? rstd : 1);
        out.dbeta[k] += share * of.dy[at];
      }
    }
    const double scale = std::pow(of.gamma[k], mutant.gamma_power) * rstd;
    const double m1 = mutant.m1 ? sum / count : 0, m2 = mutant.m2 ? sum_xhat / count : 0;
    for (int64_t i = 0; i < g.n; ++i) {
      for (int64_t j = 0; j < g.s; ++j) {
        const int64_t at = g.at(i, k, j);
        out.dx[at] = scale * (of.dy[at] - m1 - xhat(at) * m2);
      }
    }
  }
  return out;
}

bool accepts(const ref::BatchNormGradients& got, const ref::BatchNormGradients& want, DType dtype,
             const Geometry& g) {
  return compare(got.dx.data, want.dx.data, dtype, g.m()) &&
         compare(got.dgamma.data, want.dgamma.data, acc_dtype(dtype), g.m()) &&
         compare(got.dbeta.data, want.dbeta.data, acc_dtype(dtype), g.m());
}

// Few values per set: with thousands a missing term is too small to be seen.
constexpr Geometry kShapes[] = {{4, 3, 5}, {6, 2, 1}, {2, 4, 7}, {3, 1, 3}};

void expect_rejected(bool training, const Mutant& right, std::span<const Mutant> mutants) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (const Geometry& g : kShapes) {
      SCOPED_TRACE(concat(dtype, ", [", g.n, ",", g.c, ",", g.s, "]"));
      const Data data(g, dtype, training);
      const ref::BatchNormGradients want =
          training ? ref::batch_norm_train_backward(data.x, data.gamma, data.dy, kEps)
                   : ref::batch_norm_eval_backward(data.x, data.gamma, data.dy, kEps, data.mean,
                                                   data.var);
      EXPECT_TRUE(accepts(mutated(right, data), want, dtype, g));
      for (const Mutant& mutant : mutants) {
        if (mutant.samples_alone && g.s == 1) continue;  // right there
        EXPECT_FALSE(accepts(mutated(mutant, data), want, dtype, g)) << mutant.name;
      }
    }
  }
}

const Mutant kRight{.name = "right", .slip = Slip::none};

TEST(BatchNormMutants, OfTrainingAreAllRejected) { expect_rejected(true, kRight, kOfTraining); }

TEST(BatchNormMutants, OfEvaluationAreAllRejected) {
  expect_rejected(false, {.name = "right", .slip = Slip::none, .m1 = false, .m2 = false},
                  kOfEvaluation);
}

// The diagnosis says what is wrong with each of them, and that the right one is right.
TEST(BatchNormMutants, OfTrainingAreAllNamed) {
  for (const Geometry& g : kShapes) {
    SCOPED_TRACE(concat("[", g.n, ",", g.c, ",", g.s, "]"));
    const Data data(g, DType::f64, true);
    const auto expect = [&](const Mutant& mutant) {
      const ref::BatchNormGradients got = mutated(mutant, data);
      EXPECT_TRUE(test::names(
          {.layer = explain::Layer::batch_norm},
          {.x = test::as_f64(data.x),
           .dy = test::as_f64(data.dy),
           .gamma = test::as_f64(data.gamma)},
          {test::as_f64(got.dx), test::as_f64(got.dgamma), test::as_f64(got.dbeta)}, mutant.slip))
          << mutant.name;
    };
    expect(kRight);
    for (const Mutant& mutant : kOfTraining)
      if (!mutant.samples_alone || g.s > 1) expect(mutant);
  }
}

}  // namespace
}  // namespace gradus
