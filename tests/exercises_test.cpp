// The grader of the exercises; the solutions are graded by tests of their own.
#include "examples/exercises/grade.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/text.h"

namespace exercises {
namespace {

using gradus::explain::Layer;
using gradus::test::contains;

Grade grade_of(Layer layer, const std::function<Gradients(const Input&)>& backward) {
  return grade(layer, backward, "mine.cpp");
}

TEST(Exercises, EmptyOnesAreNotFilledIn) {
  for (const std::string_view name : gradus::explain::kLayerNames) {
    const Grade grade =
        grade_of(gradus::explain::parse_layer(name), [](const Input& in) { return Gradients(in); });
    EXPECT_FALSE(grade.passed);
    EXPECT_TRUE(contains(grade.text, "not filled in yet")) << grade.text;
    EXPECT_TRUE(contains(grade.text, "mine.cpp")) << grade.text;
    EXPECT_TRUE(contains(grade.text, "gradus explain " + std::string(name))) << grade.text;
  }
}

// rms_norm with gamma in front of it all, the mean taken over `count`.
Gradients rms_norm(const Input& in, bool gamma_outside, double count) {
  Gradients g(in);
  for (int64_t i = 0; i < in.n; ++i) {
    const double rstd = in.rstd[static_cast<size_t>(i)];
    double m2 = 0;
    for (int64_t k = 0; k < in.c; ++k) {
      const size_t at = in.at(i, k, 0), feature = static_cast<size_t>(k);
      m2 += in.dy[at] * (gamma_outside ? 1 : in.gamma[feature]) * in.x[at] * rstd / count;
      g.dgamma[feature] += in.dy[at] * in.x[at] * rstd;
    }
    for (int64_t k = 0; k < in.c; ++k) {
      const size_t at = in.at(i, k, 0);
      const double gamma = in.gamma[static_cast<size_t>(k)], xhat = in.x[at] * rstd;
      g.dx[at] = gamma_outside ? gamma * rstd * (in.dy[at] - xhat * m2)
                               : rstd * (in.dy[at] * gamma - xhat * m2);
    }
  }
  return g;
}

TEST(Exercises, TheDiagnosisIsInTheText) {
  const auto text = [](const std::function<Gradients(const Input&)>& backward) {
    const Grade grade = grade_of(Layer::rms_norm, backward);
    EXPECT_FALSE(grade.passed);
    return grade.text;
  };
  const auto c = [](const Input& in) { return static_cast<double>(in.c); };
  EXPECT_TRUE(contains(text([&](const Input& in) { return rms_norm(in, true, c(in)); }),
                       "dx: WRONG, gamma_outside"));
  EXPECT_TRUE(contains(text([&](const Input& in) { return rms_norm(in, false, c(in) - 1); }),
                       "which is m - 1, instead of m = 5"));
  EXPECT_TRUE(contains(text([&](const Input& in) {
                         Gradients g = rms_norm(in, false, c(in));
                         g.dx.pop_back();
                         return g;
                       }),
                       "the claimed dx must have 15 floating values"));
  EXPECT_TRUE(grade_of(Layer::rms_norm, [&](const Input& in) {
                return rms_norm(in, false, c(in));
              }).passed);
}

// A backward that indexes with at(), as a careful student's does.
TEST(Exercises, WhatABackwardThrowsIsInTheText) {
  for (const std::string_view name : gradus::explain::kLayerNames) {
    const Grade grade = grade_of(gradus::explain::parse_layer(name), [](const Input& in) {
      Gradients g(in);
      g.dx.at(in.x.size()) = 1;
      return g;
    });
    EXPECT_FALSE(grade.passed);
    EXPECT_TRUE(contains(grade.text, std::string(name) + ": backward() threw: ")) << grade.text;
    EXPECT_TRUE(contains(grade.text, "mine.cpp")) << grade.text;
  }
}

// What holds for group_norm also holds for layer_norm, one group of all features, of whose
// statistics there is one per row.
TEST(Exercises, OnlyGroupNormHasGroups) {
  for (const std::string_view name : gradus::explain::kLayerNames) {
    const Layer layer = gradus::explain::parse_layer(name);
    grade_of(layer, [&](const Input& in) {
      EXPECT_EQ(in.groups > 1, layer == Layer::group_norm) << name;
      return Gradients(in);
    });
  }
}

}  // namespace
}  // namespace exercises
