// The lists of cases: each case can be made for an x of other sizes.
#include "bench/cases/op_case.h"

#include <gtest/gtest.h>

namespace gradus {
namespace {

TEST(OpCases, OfTheirOwnShapeAreTheSame) {
  for (const std::string& op : ops_with_cases()) {
    for (const OpCase& one : cases_of(op)) {
      SCOPED_TRACE(op + " " + one.name);
      ASSERT_TRUE(one.of_shape);
      const OpCase again = resized(one, one.inputs[0].shape);
      EXPECT_EQ(again.name, one.name);
      EXPECT_EQ(again.op, one.op);
      EXPECT_EQ(again.function, one.function);
      EXPECT_EQ(again.benchmark, one.benchmark);
      EXPECT_EQ(again.reduction, one.reduction);
      EXPECT_EQ(again.scale, one.scale);
      ASSERT_EQ(again.inputs.size(), one.inputs.size());
      for (size_t i = 0; i < one.inputs.size(); ++i) {
        EXPECT_EQ(again.inputs[i].shape, one.inputs[i].shape) << one.inputs[i].name;
        EXPECT_EQ(again.inputs[i].channels_last, one.inputs[i].channels_last);
        EXPECT_EQ(again.inputs[i].std, one.inputs[i].std);
      }
    }
  }
}

TEST(OpCases, OtherInputsFollowX) {
  const auto case_of = [](const char* op, const char* name) {
    for (const OpCase& one : cases_of(op)) {
      if (one.name == name) return one;
    }
    throw std::out_of_range(name);
  };
  const OpCase layer_norm = resized(case_of("layer_norm", "tiny"), {2, 5, 9});
  EXPECT_EQ(layer_norm.inputs[1].shape, Shape{9});
  EXPECT_EQ(layer_norm.reduction, 10);
  const OpCase conv = resized(case_of("conv2d", "c24to40_g2_nchw"), {3, 6, 9, 8});
  EXPECT_EQ(conv.inputs[1].shape, (Shape{40, 3, 3, 3}));
  EXPECT_EQ(resized(case_of("arithmetic", "add_bias_nchw"), {2, 7, 3, 3}).inputs[1].shape,
            (Shape{7, 1, 1}));
  EXPECT_EQ(resized(case_of("cross_entropy", "mean"), {6, 11}).inputs[1].classes, 11);
}

}  // namespace
}  // namespace gradus
