// The lessons as pages: their numbers are gradus's, and a browser shows them.
#include "examples/cli/lesson_html.h"

#include <cmath>

#include "autograd/explain/library.h"
#include "examples/cli/page.h"
#include "tests/support/browser.h"

namespace gradus {
namespace {

using namespace test;
using explain::Layer;
using explain::Setting;
using nlohmann::json;

std::string lesson_page(const Setting& setting, const explain::Inputs& inputs = {}) {
  const TempDir dir;
  cli::write_lesson_html(dir.path("lesson.html"), setting, inputs, 1);
  return read_text(dir.path("lesson.html"));
}

std::string norms_page() {
  const TempDir dir;
  cli::write_norms_html(dir.path("norms.html"), 1);
  return read_text(dir.path("norms.html"));
}

// The variant that has all of these values, of which there must be one.
json variant_at(const json& variants, const json& names) {
  json found;
  for (const json& variant : variants) {
    bool here = true;
    for (const auto& [key, value] : names.items()) here = here && variant.at(key) == value;
    if (!here) continue;
    EXPECT_TRUE(found.is_null()) << names;
    found = variant;
  }
  EXPECT_FALSE(found.is_null()) << names;
  return found;
}

class LessonOf : public testing::TestWithParam<Layer> {};
INSTANTIATE_TEST_SUITE_P(Layers, LessonOf,
                         testing::Values(Layer::batch_norm, Layer::group_norm, Layer::layer_norm,
                                         Layer::instance_norm, Layer::rms_norm,
                                         Layer::local_response_norm, Layer::softmax2d),
                         [](const auto& info) {
                           return std::string(explain::to_string(info.param));
                         });

TEST_P(LessonOf, HoldsOneDerivationForEachPositionAndAllItsChecksHold) {
  const json data = cli::lesson_data({.layer = GetParam()}, {}, 1);
  size_t positions = 1;
  for (const json& control : data["controls"]) {
    positions *= control["values"].size();
    const auto& values = control["values"];
    const json start = data["start"][control["key"].get<std::string>()];
    EXPECT_NE(std::find(values.begin(), values.end(), start), values.end());
  }
  EXPECT_EQ(data["variants"].size(), positions);
  EXPECT_GE(positions, 2u);
  for (const json& variant : data["variants"]) {
    EXPECT_EQ(variant["shape"][0], variant["batch"]);
    for (const json& check : variant["checks"]) EXPECT_TRUE(check["ok"].get<bool>()) << check;
    for (const auto& [name, values] : variant["t"].items()) {
      EXPECT_EQ(values.size(), variant["t"]["x"].size()) << name;
    }
  }
}

// Terms of the page add up to its dx, and its dx is what the library gives.
TEST_P(LessonOf, TermsAddUpToTheLibrarysGradient) {
  const Setting setting{.layer = GetParam()};
  const explain::Inputs inputs = explain::draw_inputs(setting, cli::lesson_shape(setting), 5);
  const json data = cli::lesson_data(setting, inputs, 5);
  const json t = variant_at(data["variants"], data["start"])["t"];
  const std::vector<double> dx = explain::run_library(setting, inputs).dx.to_vector<double>();
  ASSERT_EQ(t["dx"].size(), dx.size());
  for (size_t i = 0; i < dx.size(); ++i) {
    double sum = 0;
    for (const char* term : {"direct", "mean", "projection", "neighbours", "shift"}) {
      if (t.contains(term)) sum += t[term][i].get<double>();
    }
    EXPECT_NEAR(sum, dx[i], 1e-7);
    EXPECT_NEAR(t["dx"][i].get<double>(), dx[i], 1e-8);
    EXPECT_NEAR(t["fd"][i].get<double>(), dx[i], 1e-6);
  }
}

TEST_P(LessonOf, TheExampleShowsWhatTheLastTermIsFor) {
  const json data = cli::lesson_data({.layer = GetParam()}, {}, explain::kExampleSeed);
  const json t = variant_at(data["variants"], data["start"])["t"];
  const auto largest = [&](const char* key) {
    double most = 0;
    for (const json& value : t[key]) most = std::max(most, std::abs(value.get<double>()));
    return most;
  };
  const char* rest = t.contains("projection") ? "projection"
                     : t.contains("shift")    ? "shift"
                                              : "neighbours";
  EXPECT_GE(largest(rest), 0.2 * largest("direct"));
}

// Each slip is seen, but for gamma in front of the sums where it is one number over the set.
TEST_P(LessonOf, SlipsAreWrong) {
  const json data = cli::lesson_data({.layer = GetParam()}, {}, 1);
  const json slips = variant_at(data["variants"], data["start"])["slips"];
  EXPECT_GE(slips.size(), 2u);
  const bool one_gamma = Setting{.layer = GetParam()}.has_running();
  for (const json& slip : slips) {
    if (slip["name"] == "gamma_outside" && one_gamma) {
      EXPECT_LT(slip["largest"].get<double>(), 1e-12);
    } else {
      EXPECT_GT(slip["largest"].get<double>(), 0.01) << slip["name"];
    }
  }
}

TEST_P(LessonOf, IsSelfContained) { expect_self_contained(lesson_page({.layer = GetParam()})); }

TEST(LessonData, InputsOfOnesOwn) {
  const Setting setting{.layer = Layer::group_norm, .groups = 4};
  const Tensor x = explain::draw_inputs(setting, {2, 4, 2}, 9).x;
  const json data = cli::lesson_data(setting, {.x = x}, 0);
  EXPECT_EQ(data["start"], (json{{"groups", 4}, {"batch", 2}}));
  EXPECT_EQ(data["controls"][0]["values"], (json{1, 2, 4}));
  const json variant = variant_at(data["variants"], data["start"]);
  EXPECT_EQ(variant["t"]["x"].get<std::vector<double>>(), x.to_vector<double>());
  EXPECT_ANY_THROW(
      cli::lesson_data(setting, {.x = Tensor::zeros({2, 4, 100}, {.dtype = DType::f64})}, 0));
}

// What rounding hides is no failure.
TEST(LessonData, WhatCannotBeToldIsNeitherTrueNorFalse) {
  const Tensor x = Tensor::from_vector<double>({1e17, 1e17 + 32, 1e17 + 64, 1, 2, 3}, {2, 3});
  const json data = cli::lesson_data({.layer = Layer::layer_norm}, {.x = x}, 3);
  const json shown = variant_at(data["variants"], data["start"]);
  for (const json& check : shown["checks"])
    EXPECT_TRUE(check["ok"].is_null() || check["ok"] == true) << check;
  EXPECT_TRUE(shown["checks"][0]["ok"].is_null());
}

// Checks hold for values of any size, and for those that lie far from 0.
TEST(LessonData, LargeAndSmallValuesOfOnesOwn) {
  for (const Layer layer : {Layer::layer_norm, Layer::rms_norm, Layer::batch_norm}) {
    const Setting setting{.layer = layer, .eps = 0};
    const Tensor x = explain::draw_inputs(setting, {4, 5}, 3).x;
    for (const auto& [scale, offset] : {std::pair(1e-4, 0.0), {1.0, 0.0}, {1e6, 0.0}, {1.0, 1e8}}) {
      Tensor scaled = x.clone();
      scaled.mul_(scale).add_(Tensor::full({1}, offset, x.options()));
      const json data = cli::lesson_data(setting, {.x = scaled}, 3);
      const json shown = variant_at(data["variants"], data["start"]);
      for (const json& check : shown["checks"])
        EXPECT_TRUE(check["ok"].get<bool>()) << scale << " + " << offset << check;
    }
  }
}

TEST(LessonData, DrawsWhatFitsTheOptions) {
  const Setting group{.layer = Layer::group_norm, .groups = 4};
  EXPECT_EQ(cli::lesson_data(group, {}, 0)["start"]["groups"], 4);
  const Setting rows{.layer = Layer::rms_norm, .axes = 3};
  EXPECT_EQ(cli::lesson_data(rows, {}, 0)["variants"][0]["m"], 16);
  const Setting wide{.layer = Layer::local_response_norm, .size = 9};
  EXPECT_EQ(cli::lesson_data(wide, {}, 0)["controls"][0]["values"].size(), 9u);
}

TEST(LessonData, RowsAndWhatIsNone) {
  const auto control = [](int axes) {
    const Setting setting{.layer = Layer::layer_norm, .axes = axes};
    const explain::Inputs inputs{.x = explain::draw_inputs(setting, {3, 2, 4}, 1).x};
    const json data = cli::lesson_data(setting, inputs, 0);
    EXPECT_EQ(data["variants"].size(), data["controls"][0]["values"].size());
    return data["controls"][0];
  };
  EXPECT_EQ(control(0)["label"], "rows");
  EXPECT_EQ(control(2)["label"], "rows");
  EXPECT_EQ(control(1)["label"], "batch") << "of two rows each";
  // A set of all axes takes all of x.
  EXPECT_EQ(control(3)["values"], json::array({3}));
}

TEST(LessonData, BatchNormOfOneValuePerSampleNeedsTwoSamples) {
  const Setting setting{.layer = Layer::batch_norm};
  const json data = cli::lesson_data(setting, {.x = explain::draw_inputs(setting, {3, 2}, 1).x}, 0);
  EXPECT_EQ(data["controls"][0]["values"], (json{2, 3}));
  // Of a single one there is evaluation only.
  const Setting evaluation{.layer = Layer::batch_norm, .training = false};
  const json one =
      cli::lesson_data(evaluation, {.x = explain::draw_inputs(evaluation, {1, 2}, 1).x}, 0);
  EXPECT_EQ(one["controls"][0]["values"], json::array({1}));
  EXPECT_EQ(one["controls"][1]["values"], json::array({"eval"}));
  EXPECT_EQ(one["variants"].size(), 1u);
}

TEST(NormsData, GroupNormMeetsItsNeighboursAtTheEnds) {
  const json data = cli::norms_data(2);
  json layers;
  for (const json& layer : data["layers"])
    layers[layer["op"].get<std::string>()] = layer["variants"];
  EXPECT_EQ(layers.size(), 7u);
  const auto t = [&](const char* op, const json& names) {
    return variant_at(layers[op], names)["t"];
  };
  for (const char* key : {"xhat", "direct", "mean", "projection", "dx"}) {
    const json ends[] = {t("group_norm", {{"groups", 1}, {"batch", 2}})[key],
                         t("group_norm", {{"groups", 6}, {"batch", 2}})[key]};
    const json neighbours[] = {t("layer_norm", {{"batch", 2}})[key],
                               t("instance_norm", {{"batch", 2}})[key]};
    for (int end = 0; end < 2; ++end) {
      for (size_t i = 0; i < ends[end].size(); ++i) {
        EXPECT_NEAR(ends[end][i].get<double>(), neighbours[end][i].get<double>(), 1e-7) << key;
      }
    }
  }
}

TEST(Pages, DataCannotEndItsElement) {
  const std::string page =
      cli::make_page("a <b> & c", {{"text", "</script><!--<script>"}}, {"page.js"});
  EXPECT_NE(page.find("<title>a &lt;b> &amp; c</title>"), std::string::npos);
  EXPECT_EQ(page.find("</script><!--"), std::string::npos);
  EXPECT_NE(page.find(R"({"text":"\u003c/script>\u003c!--\u003cscript>"})"), std::string::npos);
}

// ---- in a browser -------------------------------------------------------------------------------

// As page.js writes a number: 5 significant digits and a true minus.
std::string shown(double value) {
  const double size = std::abs(value);
  EXPECT_TRUE(size >= 1e-3 && size < 1e4) << value << " is shown with a power of ten";
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", 4 - static_cast<int>(std::floor(std::log10(size))),
                size);
  return (value < 0 ? "\u2212" : "") + std::string(text);
}

// The line of the inspector that is marked: its result.
std::string marked_result(const LoadedPage& page) {
  const auto line = between(page.dom, R"(<div class="on">)", "</dd>");
  if (!line) return "no line is marked";
  const size_t at = line->rfind(R"(<span class="num">)");
  return line->substr(at + 18, line->find('<', at + 18) - at - 18);
}

// The checks below can fail: an error and a request are noticed.
TEST(BrowserTest, TellsErrorsAndRequestsSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const std::string html = lesson_page({.layer = Layer::softmax2d});
  const LoadedPage wrong = Browser().load(html, "", "throw new Error('on purpose');");
  EXPECT_NE(wrong.console.find("on purpose"), std::string::npos);
  EXPECT_NE(wrong.dom.find("data-error"), std::string::npos);
  const LoadedPage curious = Browser().load(html, "", "fetch('http://127.0.0.1:9/');");
  EXPECT_NE(curious.console.find("127.0.0.1:9"), std::string::npos) << curious.console;
}

TEST_P(LessonOf, LoadsInABrowserSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const json data = cli::lesson_data({.layer = GetParam()}, {}, 1);
  const LoadedPage page = Browser().load(lesson_page({.layer = GetParam()}), "cell=4&of=dx");
  expect_loaded(page);
  const json t = variant_at(data["variants"], data["start"])["t"];
  EXPECT_EQ(marked_result(page), shown(t["dx"][4].get<double>()));
  EXPECT_NE(page.dom.find("class=\"text good\""), std::string::npos);
  EXPECT_EQ(page.dom.find("class=\"text bad\""), std::string::npos);
}

// Tables scroll in themselves.
TEST_P(LessonOf, FitsANarrowWindowSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const LoadedPage page = Browser(500).load(lesson_page({.layer = GetParam()}), "cell=3");
  expect_loaded(page);
  expect_fits(page);
}

// Rows of equal values without eps.
TEST(LessonInABrowser, WhatIsNotANumberIsShownAsSuchSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const std::string html = lesson_page({.layer = Layer::layer_norm, .eps = 0},
                                       {.x = Tensor::ones({2, 4}, {.dtype = DType::f64})});
  const LoadedPage page = Browser().load(html, "cell=1&of=dx");
  expect_loaded(page);
  EXPECT_EQ(marked_result(page), "NaN");
  EXPECT_NE(page.dom.find(">∞<"), std::string::npos) << "rstd";
  const std::string xhat = between(page.dom, "data-key=\"xhat\"", "</svg>").value_or("");
  EXPECT_NE(xhat.find(">NaN</text>"), std::string::npos);
  EXPECT_EQ(xhat.find("∞"), std::string::npos);
  EXPECT_NE(page.dom.find("class=\"text bad\""), std::string::npos);
}

TEST(LessonInABrowser, EpsIsShownAsItIsSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  for (const Layer layer : {Layer::layer_norm, Layer::batch_norm}) {
    for (const auto& [eps, text] : {std::pair(0.25, "0.25)"), {1.5e-7, "1.5e\u22127)"}}) {
      const Setting setting{.layer = layer, .eps = eps, .training = layer != Layer::batch_norm};
      const LoadedPage page = Browser().load(lesson_page(setting), "cell=1&of=rstd");
      expect_loaded(page);
      const size_t at = page.dom.find("1/\u221a(");
      ASSERT_NE(at, std::string::npos);
      EXPECT_NE(page.dom.find(std::string(" + ") + text, at), std::string::npos)
          << page.dom.substr(at, 300);
    }
  }
}

// A dx of 1e-6 is not 0 in the cells of its map.
TEST(LessonInABrowser, SmallNumbersAreNotZeroSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const Setting setting{.layer = Layer::layer_norm};
  const Tensor x = Tensor::from_vector<double>({1e6, 3e6, 8e6, 2e6, 5e6, 9e6}, {2, 3});
  const LoadedPage page = Browser().load(lesson_page(setting, {.x = x}));
  expect_loaded(page);
  const std::string map = between(page.dom, "data-key=\"dx\"", "</svg>").value_or("");
  EXPECT_NE(map.find("e−7</text>"), std::string::npos) << map;
  EXPECT_EQ(map.find(">0</text>"), std::string::npos) << map;
}

TEST(LessonInABrowser, SliderOfGroupsChangesTheNumbersSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const Setting setting{.layer = Layer::group_norm};
  const json variants = cli::lesson_data(setting, {}, 1)["variants"];
  const std::string html = lesson_page(setting);
  const auto dx = [&](int groups, int batch) {
    return shown(variant_at(variants, {{"groups", groups}, {"batch", batch}})["t"]["dx"][7]);
  };
  const Browser browser;
  const LoadedPage one = browser.load(html, "groups=1&batch=2&cell=7&of=dx");
  EXPECT_EQ(marked_result(one), dx(1, 2));
  // By hand: the slider's third position is 3 groups.
  const LoadedPage three = browser.load(html, "groups=1&batch=2&cell=7&of=dx", R"(
      const slider = document.getElementById('groups');
      slider.value = 2;
      slider.dispatchEvent(new Event('input')); )");
  expect_loaded(three);
  EXPECT_NE(three.dom.find("data-state=\"groups=3&amp;batch=2\""), std::string::npos);
  EXPECT_EQ(marked_result(three), dx(3, 2));
  EXPECT_NE(dx(1, 2), dx(3, 2));
  // Another address in the page that is open.
  const LoadedPage linked = browser.load(html, "groups=1&batch=2&cell=9&of=y",
                                         "location.hash = 'groups=3&batch=2&cell=7&of=dx';");
  EXPECT_EQ(marked_result(linked), dx(3, 2));
}

TEST(LessonInABrowser, ArrowKeysMoveAndEscapeLetsGoSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const Setting setting{.layer = Layer::layer_norm};
  const json t = cli::lesson_data(setting, {}, 1)["variants"].back()["t"];
  const char* keys = R"(
      const map = document.querySelector('svg[data-key="xhat"]');
      const press = (key, also) => map.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, ...also}));
      press('ArrowRight'); press('ArrowDown'); press('ArrowLeft', {altKey: true}); )";
  const LoadedPage moved = Browser().load(lesson_page(setting), "", keys);
  EXPECT_EQ(marked_result(moved), shown(t["xhat"][9].get<double>()));
  const LoadedPage gone =
      Browser().load(lesson_page(setting), "", std::string(keys) + "press('Escape');");
  EXPECT_EQ(marked_result(gone), "no line is marked");
  EXPECT_EQ(gone.dom.find("class=\"on\""), std::string::npos) << "a row of the table";
  const LoadedPage at_the_edge =
      Browser().load(lesson_page(setting), "",
                     std::string(keys) + "for (let k = 0; k < 4; ++k) press('ArrowDown');");
  EXPECT_EQ(marked_result(at_the_edge), shown(t["xhat"][25].get<double>()));
}

TEST(NormsInABrowser, ArrowKeysMoveOverGammaSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const LoadedPage page = Browser().load(norms_page(), "", R"(
      for (let k = 0; k < 2; ++k) document.querySelector('svg[data-key="gamma"]')
          .dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown', bubbles: true}));)");
  EXPECT_NE(page.dom.find("<i>x</i>[0, 2, 0, 0]"), std::string::npos);
}

TEST(NormsInABrowser, SlidersReachEveryRowSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const std::string html = norms_page();
  expect_self_contained(html);
  const LoadedPage page = Browser().load(
      html, "groups=6&batch=2&layer=group_norm&cell=5&of=projection&theme=dark",
      "document.body.dataset.tooWide = [...document.querySelectorAll('.norm-name h2')]"
      ".filter((name) => name.scrollWidth > name.clientWidth).map((name) => name.textContent);");
  expect_loaded(page);
  EXPECT_EQ(between(page.dom, "data-too-wide=\"", "\""), "");
  EXPECT_NE(page.dom.find("GroupNorm(6)"), std::string::npos);
  EXPECT_NE(page.dom.find("data-theme=\"dark\""), std::string::npos);
  const LoadedPage narrow = Browser(500).load(html, "layer=rms_norm&cell=1");
  expect_fits(narrow);
  EXPECT_NE(narrow.dom.find("set 1 of 3: sample 0, m = 18<"), std::string::npos);
  for (const json& layer : cli::norms_data(1)["layers"]) {
    EXPECT_NE(page.dom.find("data-op=\"" + layer["op"].get<std::string>() + "\""),
              std::string::npos);
    if (layer["op"] != "group_norm") continue;
    const json t = variant_at(layer["variants"], {{"groups", 6}, {"batch", 2}})["t"];
    EXPECT_EQ(marked_result(page), shown(t["projection"][5].get<double>()));
  }
}

}  // namespace
}  // namespace gradus
