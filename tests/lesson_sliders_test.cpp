// Which positions the sliders of a lesson have.
#include <gtest/gtest.h>

#include <algorithm>

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

// So that the page is written, and read, in seconds.
TEST(LessonSliders, HaveSomeOfManyValues) {
  const auto data = [](const Setting& setting, const Shape& shape) {
    const json result =
        cli::lesson_data(setting, {.x = explain::draw_inputs(setting, shape, 1).x}, 0);
    EXPECT_LT(result.dump().size(), 6'000'000U);
    for (const json& control : result["controls"]) {
      const json& values = control["values"];
      EXPECT_LE(values.size(), 24U);
      const json start = result["start"][control["key"].get<std::string>()];
      EXPECT_NE(std::find(values.begin(), values.end(), start), values.end());
    }
    return result;
  };
  const json sizes =
      data({.layer = Layer::local_response_norm, .size = 100}, {1, 150})["controls"][0]["values"];
  EXPECT_EQ(sizes.size(), 24U);
  EXPECT_EQ(sizes.front(), 1);
  EXPECT_EQ(sizes.back(), 150);
  for (size_t i = 1; i < sizes.size(); ++i) {
    const auto step = sizes[i].get<int>() - sizes[i - 1].get<int>();
    EXPECT_TRUE(step > 0 && step < 9) << step;
  }
  const json batch = data({.layer = Layer::batch_norm}, {200, 3})["controls"];
  EXPECT_EQ(batch[0]["values"].front(), 2);
  EXPECT_EQ(batch[0]["values"].back(), 200);
  EXPECT_GE(batch[0]["values"].size(), 23U);
  EXPECT_EQ(batch[1]["values"], (json{"train", "eval"}));
  // Two long ones, of as many values as a page may have.
  const json both = data({.layer = Layer::local_response_norm, .size = 5}, {24, 25});
  EXPECT_LE(both["variants"].size(), 48U);
  EXPECT_EQ(both["controls"][1]["values"].front(), 1);
  EXPECT_EQ(both["controls"][1]["values"].back(), 24);
  // All of few.
  const json all = data({.layer = Layer::local_response_norm, .size = 5}, {5, 12})["controls"];
  EXPECT_EQ(all[0]["values"].size() * all[1]["values"].size(), 60U);
}

}  // namespace
}  // namespace gradus
