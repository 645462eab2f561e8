// Variants of the backward of group and instance normalization that are wrong in one way: the
// comparison that the kernels pass must refuse each of them.

#include <algorithm>
#include <string>

#include "tests/support/compare.h"
#include "tests/support/named_slip.h"
#include "tests/support/op_modes.h"
#include "tests/support/reference_norm.h"

namespace gradus {
namespace {

using explain::Slip;

struct Mutant {
  const char* name;
  Slip slip;  // as the diagnosis names it
  bool m1 = true, m2 = true;
  bool gamma_outside = false;    // dx = gamma·rstd·(dy - mean(dy) - xhat·mean(dy·xhat))
  bool gamma_forgotten = false;  // in m1 and m2
  int64_t count = 0;             // added to m
  bool whole_sample = false;     // sums over all groups
  bool one_channel = false;      // m without c/g
  bool stale = false;            // statistics of the sample after
  bool first_sample = false;     // dgamma, dbeta of one sample
  bool mean_of_batch = false;    // dgamma, dbeta divided by n
};

const Mutant kMutants[] = {
    {.name = "m1 missing", .slip = Slip::mean_missing, .m1 = false},
    {.name = "m2 missing", .slip = Slip::projection_missing, .m2 = false},
    {.name = "both missing", .slip = Slip::evaluation_formula, .m1 = false, .m2 = false},
    {.name = "gamma outside the sum", .slip = Slip::gamma_outside, .gamma_outside = true},
    {.name = "gamma forgotten in the sums",
     .slip = Slip::gamma_not_in_sums,
     .gamma_forgotten = true},
    {.name = "count m - 1", .slip = Slip::wrong_count, .count = -1},
    {.name = "count s alone", .slip = Slip::wrong_count, .one_channel = true},
    {.name = "group size lost", .slip = Slip::wrong_set, .whole_sample = true},
    {.name = "stale statistics", .slip = Slip::stale_statistics, .stale = true},
    {.name = "batch sum of dgamma forgotten",
     .slip = Slip::batch_sum_forgotten,
     .first_sample = true},
    {.name = "dgamma averaged over the batch", .slip = Slip::batch_mean, .mean_of_batch = true},
};

struct Geometry {
  int64_t n, c, s, groups;
  int64_t channels() const { return c / groups; }
  int64_t at(int64_t i, int64_t k, int64_t j) const { return (i * c + k) * s + j; }
};

struct Sums {
  double d = 0, d_xhat = 0;
};

ref::NormGradients mutated(const Mutant& mutant, const Geometry& g, const ref::Array& x,
                           const ref::Array& gamma, const ref::Array& dy) {
  const ref::NormForward forward = ref::group_norm(x, g.groups, {}, {}, 1e-5);
  const auto weight = [&](int64_t k) { return gamma.data.empty() ? 1.0 : gamma[k]; };
  const auto set_of = [&](int64_t i, int64_t k) {
    const int64_t sample = mutant.stale ? (i + 1) % g.n : i;
    return sample * g.groups + k / g.channels();
  };
  const auto xhat = [&](int64_t i, int64_t k, int64_t j) {
    return (x[g.at(i, k, j)] - forward.mean[set_of(i, k)]) * forward.rstd[set_of(i, k)];
  };
  ref::NormGradients out{ref::zeros(x.shape), ref::zeros({g.c}), ref::zeros({g.c})};
  for (int64_t i = 0; i < g.n; ++i) {
    std::vector<Sums> sums(static_cast<size_t>(g.groups));
    for (int64_t k = 0; k < g.c; ++k) {
      Sums& sum = sums[static_cast<size_t>(mutant.whole_sample ? 0 : k / g.channels())];
      const double inside = mutant.gamma_outside || mutant.gamma_forgotten ? 1.0 : weight(k);
      for (int64_t j = 0; j < g.s; ++j) {
        const double upstream = dy[g.at(i, k, j)];
        sum.d += upstream * inside;
        sum.d_xhat += upstream * inside * xhat(i, k, j);
        if (mutant.first_sample && i > 0) continue;
        const double share = mutant.mean_of_batch ? 1.0 / static_cast<double>(g.n) : 1.0;
        out.dgamma[k] += share * upstream * xhat(i, k, j);
        out.dbeta[k] += share * upstream;
      }
    }
    const int64_t channels = mutant.whole_sample ? g.c : mutant.one_channel ? 1 : g.channels();
    const double m = static_cast<double>(channels * g.s + mutant.count);
    for (int64_t k = 0; k < g.c; ++k) {
      const Sums& sum = sums[static_cast<size_t>(mutant.whole_sample ? 0 : k / g.channels())];
      const double m1 = mutant.m1 ? sum.d / m : 0, m2 = mutant.m2 ? sum.d_xhat / m : 0;
      for (int64_t j = 0; j < g.s; ++j) {
        const double upstream = dy[g.at(i, k, j)];
        const double terms = mutant.gamma_outside ? weight(k) * (upstream - m1 - xhat(i, k, j) * m2)
                                                  : weight(k) * upstream - m1 - xhat(i, k, j) * m2;
        out.dx[g.at(i, k, j)] = forward.rstd[set_of(i, k)] * terms;
      }
    }
  }
  return out;
}

bool accepts(const ref::NormGradients& got, const ref::NormGradients& want, bool affine,
             DType dtype, const Geometry& g) {
  const int64_t reduction = std::max(g.channels(), affine ? g.n : 1) * g.s;
  bool all = static_cast<bool>(compare(got.dx.data, want.dx.data, dtype, reduction));
  if (!affine) return all;
  all = all && compare(got.dgamma.data, want.dgamma.data, acc_dtype(dtype), reduction);
  return all && compare(got.dbeta.data, want.dbeta.data, acc_dtype(dtype), reduction);
}

// Whether a mutant is the right formula on that shape.
bool is_right_here(const Mutant& mutant, const Geometry& g, bool affine) {
  if (mutant.whole_sample) return g.groups == 1;
  if (mutant.one_channel) return g.channels() == 1;
  if (mutant.gamma_outside) return g.channels() == 1 || !affine;
  if (mutant.gamma_forgotten || mutant.first_sample || mutant.mean_of_batch) return !affine;
  return false;
}

// Few values per set: with thousands a missing term is too small to be seen.
void expect_rejected(std::initializer_list<Geometry> shapes) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    SCOPED_TRACE(std::string(to_string(dtype)));
    for (const Geometry& g : shapes) {
      for (const bool affine : {true, false}) {
        SCOPED_TRACE(std::to_string(g.c) + (affine ? " channels" : " channels, plain"));
        const Shape shape = {g.n, g.c, g.s};
        const ref::Array x = draw_upstream(shape, dtype, 7), dy = draw_upstream(shape, dtype, 8);
        const ref::Array gamma = affine ? draw_upstream({g.c}, acc_dtype(dtype), 9) : ref::Array();
        const ref::NormGradients want = ref::group_norm_backward(x, g.groups, gamma, dy, 1e-5);
        EXPECT_TRUE(accepts(mutated({.name = "right", .slip = Slip::none}, g, x, gamma, dy), want,
                            affine, dtype, g));
        for (const Mutant& mutant : kMutants) {
          if (is_right_here(mutant, g, affine)) continue;
          EXPECT_FALSE(accepts(mutated(mutant, g, x, gamma, dy), want, affine, dtype, g))
              << mutant.name;
        }
      }
    }
  }
}

// The diagnosis says what is wrong with each of them, and that the right one is right.
void expect_named(explain::Layer layer, std::initializer_list<Geometry> shapes) {
  for (const Geometry& g : shapes) {
    for (const bool affine : {true, false}) {
      SCOPED_TRACE(std::to_string(g.c) + (affine ? " channels" : " channels, plain"));
      const Shape shape = {g.n, g.c, g.s};
      const ref::Array x = draw_upstream(shape, DType::f64, 7),
                       dy = draw_upstream(shape, DType::f64, 8);
      const ref::Array gamma = affine ? draw_upstream({g.c}, DType::f64, 9) : ref::Array();
      const auto expect = [&](const Mutant& mutant) {
        const ref::NormGradients got = mutated(mutant, g, x, gamma, dy);
        EXPECT_TRUE(test::names(
            {.layer = layer, .groups = g.groups},
            {.x = test::as_f64(x), .dy = test::as_f64(dy), .gamma = test::as_f64(gamma)},
            {test::as_f64(got.dx), affine ? test::as_f64(got.dgamma) : Tensor(),
             affine ? test::as_f64(got.dbeta) : Tensor()},
            mutant.slip))
            << mutant.name;
      };
      expect({.name = "right", .slip = Slip::none});
      for (const Mutant& mutant : kMutants)
        if (!is_right_here(mutant, g, affine)) expect(mutant);
    }
  }
}

const std::initializer_list<Geometry> kGroups = {{.n = 2, .c = 4, .s = 3, .groups = 2},
                                                 {.n = 3, .c = 6, .s = 1, .groups = 2},
                                                 {.n = 3, .c = 8, .s = 5, .groups = 4},
                                                 {.n = 4, .c = 6, .s = 2, .groups = 1}};
const std::initializer_list<Geometry> kInstances = {{.n = 2, .c = 2, .s = 3, .groups = 2},
                                                    {.n = 3, .c = 4, .s = 7, .groups = 4},
                                                    {.n = 4, .c = 3, .s = 10, .groups = 3}};

TEST(GroupNormMutants, AreAllRejected) { expect_rejected(kGroups); }
TEST(GroupNormMutants, AreAllNamed) { expect_named(explain::Layer::group_norm, kGroups); }
TEST(InstanceNormMutants, AreAllRejected) { expect_rejected(kInstances); }
TEST(InstanceNormMutants, AreAllNamed) { expect_named(explain::Layer::instance_norm, kInstances); }

}  // namespace
}  // namespace gradus
