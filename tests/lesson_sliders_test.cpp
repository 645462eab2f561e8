// Which positions the sliders of a lesson have.
#include <gtest/gtest.h>

#include "examples/cli/lesson_html.h"

namespace gradus {
namespace {

using explain::Layer;
using explain::Setting;
using nlohmann::json;

// Whatever position of its sliders is chosen.
TEST(LessonSliders, LeavesOutWhereAVarianceAndEpsAreZero) {
  const auto values = [](const Setting& setting, const explain::Inputs& inputs, size_t control) {
    const json data = cli::lesson_data(setting, inputs, 0);
    size_t positions = 1;
    for (const json& one : data["controls"]) positions *= one["values"].size();
    EXPECT_EQ(data["variants"].size(), positions);
    for (const json& variant : data["variants"]) {
      for (const json& tensor : variant["t"])
        for (const json& value : tensor) EXPECT_TRUE(value.is_number()) << value;
    }
    return data["controls"][control]["values"];
  };
  const Setting group{.layer = Layer::group_norm, .eps = 0};
  const explain::Inputs flat{.x = explain::draw_inputs(group, {3, 4}, 1).x};
  EXPECT_EQ(values(group, flat, 0), (json{1, 2})) << "4 groups are of one value each";
  EXPECT_EQ(values({.layer = Layer::group_norm}, flat, 0), (json{1, 2, 4}));
  // The first two samples are equal.
  const Tensor x = Tensor::from_vector<double>({1, 2, 1, 2, 3, 4, 5, 7}, {4, 2});
  Setting batch{.layer = Layer::batch_norm, .eps = 0};
  EXPECT_EQ(values(batch, {.x = x}, 0), (json{3, 4}));
  const Tensor no_variance = Tensor::from_vector<double>({1, 0}, {2});
  EXPECT_EQ(values(batch, {.x = x, .running_var = no_variance}, 1), json::array({"train"}));
  batch.training = false;
  EXPECT_EQ(values(batch, {.x = x}, 0), (json{3, 4}));
  const Tensor constant = Tensor::from_vector<double>({1, 2, 1, 3}, {2, 2});
  EXPECT_EQ(values(batch, {.x = constant}, 1), json::array({"eval"}));
}

}  // namespace
}  // namespace gradus
