// The comparison report as a page, in a browser.
#include "examples/cli/compare_html.h"

#include <limits>

#include "tests/support/browser.h"
#include "tests/support/paths.h"

namespace gradus {
namespace {

using namespace test;
using nlohmann::json;

// The golden report: lock-step training on two devices, one row, which is beyond its tolerance.
json golden() { return json::parse(read_text(source_path("tests/golden/compare.json"))); }

// Rows of four layers whose largest errors on the CPU are 3, 0.5, 40 and 7 ulp.
json of_layers(bool with_gpu) {
  json report = golden();
  report["what"] = "layers";
  report["train"] = nullptr;
  report["ok"] = !with_gpu;
  json row = report["rows"][0];
  report["rows"] = json::array();
  const double ulps[] = {3, 0.5, 40, 7};
  const char* names[] = {"softmax", "group_norm", "</script>", "conv2d"};
  for (int k = 0; k < 4; ++k) {
    row["layer"] = row["function"] = names[k];
    row["ok"] = !(with_gpu && k == 2);
    for (json& value : row["values"]) value["errors"][0]["max_ulp"] = ulps[k];
    report["rows"].push_back(row);
  }
  if (with_gpu) return report;
  report["devices"].erase(1);
  for (json& each : report["rows"]) {
    for (json& value : each["values"]) value["errors"].erase(1);
    each["times"].erase(1);
  }
  return report;
}

// On both devices the forward is at the roof of a copy, the backward at that of products.
json at_the_roofs() {
  json report = of_layers(true);
  for (json& row : report["rows"]) {
    row["times"] = json::array();
    for (const json& device : report["devices"]) {
      const double copy = device["copy_gb_per_s"], products = device["tflop_per_s"]["f32"];
      const auto add = [&](const char* direction, double flops, double seconds, const char* roof) {
        row["times"].push_back({{"device", device["device"]},
                                {"direction", direction},
                                {"seconds", seconds},
                                {"bytes", 1e6},
                                {"flops", flops},
                                {"gb_per_s", 1e-3 / seconds},
                                {"tflop_per_s", flops / seconds / 1e12},
                                {"roof", roof},
                                {"share", 1}});
      };
      add("forward", 5e5, 1e-3 / copy, "copy");
      add("backward", 1e9, 1e-3 / products, "products");
    }
  }
  return report;
}

std::string order_of(const LoadedPage& page) {
  return between(page.dom, "data-order=\"", "\"").value_or("no table");
}

TEST(ComparePage, SeedsHaveAllTheirDigits) {
  json report = golden();
  report["seed"] = std::numeric_limits<uint64_t>::max();
  const std::string page = cli::compare_page(report);
  EXPECT_NE(page.find(R"("seed":"18446744073709551615")"), std::string::npos);
}

TEST(ComparePage, IsSelfContained) {
  expect_self_contained(cli::compare_page(golden()));
  EXPECT_ANY_THROW(cli::compare_page({{"kind", "gradus-compare"}, {"schema", 2}}));
  EXPECT_ANY_THROW(cli::compare_page(json::object()));
}

TEST(ComparePage, ShowsLockStepTrainingSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  json report = golden();
  report["rows"][0]["values"][1]["differences"]["got"] = nullptr;  // NaN
  const LoadedPage page = Browser().load(cli::compare_page(report), "row=0");
  expect_loaded(page);
  for (const char* part :
       {"Parted at step 3, 1 GroupNorm, backward: dx[0, 1, 0, 1] on cuda:0 is not finite",
        "✗ 1 of 1 row beyond tolerance", "on the CPU 1.49999988, by",
        "not finite</td><td class=\"num\">0.25</td>", "a sentence on what could not be compared",
        "class=\"chart roof\"", "data-theme=\"light\""}) {
    EXPECT_NE(page.dom.find(part), std::string::npos) << part;
  }
}

TEST(ComparePage, TellsATrainingThatDivergedSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  json report = golden();
  report["rows"] = json::array();
  report["train"]["parted"] = nullptr;
  const LoadedPage page = Browser().load(cli::compare_page(report));
  expect_loaded(page);
  EXPECT_NE(page.dom.find("bad\">✗ the training diverged</p>"), std::string::npos);
  EXPECT_NE(page.dom.find("<p class=\"bad\">The training diverged after them"), std::string::npos);
  report["ok"] = true;
  EXPECT_NE(Browser().load(cli::compare_page(report)).dom.find("✓ 2 steps, every layer within"),
            std::string::npos);
}

// What is there for its times only is in the charts, not in the table.
TEST(ComparePage, RowsWithoutAVerdictAreNotCountedSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  json report = of_layers(true);
  for (json& row : report["rows"]) row["times"] = json::array();
  json timed = golden()["rows"][0];
  timed["values"] = json::array();
  timed["case"] = "a large case";
  report["rows"].push_back(timed);
  const LoadedPage page = Browser().load(cli::compare_page(report));
  expect_loaded(page);
  EXPECT_EQ(order_of(page), "2,0,1,3");
  EXPECT_NE(page.dom.find(">4 rows<"), std::string::npos);
  EXPECT_NE(page.dom.find("a large case"), std::string::npos);
  EXPECT_EQ(page.dom.find("data-sort=\"forward-cpu\""), std::string::npos);
  const LoadedPage details = Browser().load(cli::compare_page(report), "row=4");
  expect_loaded(details);
  EXPECT_NE(between(details.dom, "<section class=\"details\"", "</section>")
                .value_or("")
                .find("a large case"),
            std::string::npos);
}

TEST(ComparePage, SortsByClickAndByKeyboardSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const std::string html = cli::compare_page(of_layers(true));
  const auto click = [](const std::string& key) {
    return "document.querySelector('[data-sort=\"" + key + "\"]').click();";
  };
  const Browser browser;
  LoadedPage page = browser.load(html);
  expect_loaded(page);
  EXPECT_EQ(order_of(page), "2,0,1,3") << "what is beyond its tolerance comes first";
  EXPECT_EQ(order_of(browser.load(html, "", click("ulp-cpu"))), "2,3,0,1");
  EXPECT_EQ(order_of(browser.load(html, "", click("ulp-cpu") + click("ulp-cpu"))), "1,0,3,2");
  page = browser.load(html, "", click("layer"));
  EXPECT_EQ(order_of(page), "2,3,1,0");
  EXPECT_NE(page.dom.find("aria-sort=\"ascending\""), std::string::npos);
  EXPECT_EQ(order_of(browser.load(html, "sort=ulp-cuda:0&find=norm")), "1");
  // Enter on a row opens it, and the row keeps the focus.
  page = browser.load(html, "", R"(document.querySelector('tr[data-row="1"]').focus();
      document.activeElement.dispatchEvent(
          new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
      document.documentElement.dataset.focus = document.activeElement.dataset.row;)");
  EXPECT_EQ(between(page.dom, "data-focus=\"", "\""), "1");
  EXPECT_NE(
      between(page.dom, "<section class=\"details\"", "</section>").value_or("").find("group_norm"),
      std::string::npos);
}

TEST(ComparePage, FollowsItsAddressSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const std::string html = cli::compare_page(of_layers(true));
  const LoadedPage page =
      Browser().load(html, "row=0", "location.hash = 'sort=ulp-cpu&down=true&row=1';");
  expect_loaded(page);
  EXPECT_EQ(order_of(page), "2,3,0,1");
  EXPECT_NE(page.dom.find("<tr data-row=\"1\" tabindex=\"0\" class=\" on\""), std::string::npos);
  EXPECT_EQ(order_of(Browser().load(html, "dtype=f31")), "2,0,1,3") << "no row has this dtype";
}

// Bars on a scale of logarithms from 100 ns to 10 ms.
TEST(ComparePage, BarsAreAsLongAsTheTimesOfBothDevicesSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const LoadedPage page = Browser().load(cli::compare_page(at_the_roofs()));
  expect_loaded(page);
  for (const auto& [bar, time] : {std::pair("cpu\" style=\"width:53.35%", "46.5 µs"),
                                  {"gpu\" style=\"width:10.46%", "333 ns"},
                                  {"cpu\" style=\"width:98.06%", "8.00 ms"},
                                  {"gpu\" style=\"width:45.85%", "19.6 µs"}}) {
    EXPECT_EQ(between(page.dom, std::string("bar-of ") + bar, " <span"),
              std::string("\"></span></span><span class=\"num\">") + time);
  }
}

TEST(ComparePage, TimesThatRoundUpToTheNextUnitHaveThatUnitSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  json report = at_the_roofs();
  report["rows"][0]["times"][0]["seconds"] = 999.4e-6;
  report["rows"][0]["times"][1]["seconds"] = 999.6e-6;
  const LoadedPage page = Browser().load(cli::compare_page(report));
  expect_loaded(page);
  EXPECT_NE(page.dom.find(">999 µs<"), std::string::npos);
  EXPECT_NE(page.dom.find(">1.00 ms<"), std::string::npos);
}

TEST(ComparePage, DotsLieOnTheRoofsOfTheirDevicesSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const std::string places = R"(
    const heightAt = (line, x) => {
      const p = line.getAttribute('points').split(' ').map((point) => point.split(',').map(Number));
      const k = p.findIndex((point) => x <= point[0] + .1);
      return p[k - 1][1] + (p[k][1] - p[k - 1][1]) * (x - p[k - 1][0]) / (p[k][0] - p[k - 1][0]);
    };
    document.documentElement.dataset.places = [...document.querySelectorAll('.dot')].map((dot) => {
      const kind = dot.classList[1], below = Number(dot.getAttribute('cy')) -
          heightAt(document.querySelector('.roof-line.' + kind), Number(dot.getAttribute('cx')));
      return kind + ' ' + (Math.abs(below) < .3 ? 'on' : below > 0 ? 'below' : 'above');
    }).join();)";
  const auto places_of = [&](const json& report) {
    const LoadedPage page = Browser().load(cli::compare_page(report), "", places);
    expect_loaded(page);
    return between(page.dom, "data-places=\"", "\"").value_or("");
  };
  json report = at_the_roofs();
  report["rows"].erase(report["rows"].begin() + 1, report["rows"].end());
  EXPECT_EQ(places_of(report), "cpu on,cpu on,gpu on,gpu on");
  report["rows"][0]["times"][2]["seconds"] = 1e-6;  // three times as long as a copy
  report["rows"][0]["times"][1]["flops"] = 1e-3;    // hardly computes
  EXPECT_EQ(places_of(report), "cpu on,gpu below,gpu on");
}

TEST(ComparePage, OfTheCpuAloneSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  json report = of_layers(false);
  for (json& value : report["rows"][1]["values"]) value["differences"] = nullptr;
  const LoadedPage page = Browser().load(cli::compare_page(report), "row=1&theme=dark");
  expect_loaded(page);
  const std::string details =
      between(page.dom, "<section class=\"details\"", "</section>").value_or("");
  EXPECT_NE(details.find("group_norm"), std::string::npos);
  for (const char* text : {"null", "undefined", "NaN"})
    EXPECT_EQ(details.find(text), std::string::npos) << text;
  expect_fits(Browser(500).load(cli::compare_page(of_layers(false)), "row=1"));
  EXPECT_NE(page.dom.find("The CPU against f64"), std::string::npos);
  EXPECT_NE(page.dom.find("4 rows, all within tolerance"), std::string::npos);
  EXPECT_NE(page.dom.find("class=\"chart roof\""), std::string::npos);
}

TEST(ComparePage, ChartsOfARowFitAPhoneSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const LoadedPage page = Browser(500).load(cli::compare_page(of_layers(true)), "row=1", R"(
      document.body.style.width = '345px';
      document.documentElement.dataset.charts = [...document.querySelectorAll('.details svg.chart')]
          .map((chart) => chart.getBoundingClientRect().right <= 345).join();)");
  expect_loaded(page);
  EXPECT_EQ(between(page.dom, "data-charts=\"", "\""), "true,true");
}

TEST(ComparePage, OnPaperIsWholeAndLightSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  json report = of_layers(true);
  for (int k = 0; k < 60; ++k) report["rows"].push_back(report["rows"][1]);
  const LoadedPage page = Browser(500).load(on_paper(cli::compare_page(report)), "theme=dark", R"(
      const holder = getComputedStyle(document.querySelector('table.rows').parentNode);
      document.documentElement.dataset.paper = [holder.overflow, holder.maxHeight,
          getComputedStyle(document.body).backgroundColor].join();)");
  expect_loaded(page);
  EXPECT_EQ(between(page.dom, "data-paper=\"", "\""), "visible,none,rgb(251, 250, 247)");
}

// What was not measured is not shown as nothing per second.
TEST(ComparePage, WithoutTimesSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  json report = of_layers(false);
  for (json& row : report["rows"]) row["times"] = json::array();
  for (json& device : report["devices"]) {
    device["copy_gb_per_s"] = 0;
    device["tflop_per_s"] = json::object();
  }
  const LoadedPage page = Browser().load(cli::compare_page(report));
  expect_loaded(page);
  const std::string footer = between(page.dom, "<footer", "</footer>").value_or("none");
  EXPECT_NE(footer.find("cpu: "), std::string::npos) << footer;
  EXPECT_EQ(footer.find("GB/s"), std::string::npos) << footer;
  EXPECT_EQ(footer.find("Times"), std::string::npos) << footer;
}

}  // namespace
}  // namespace gradus
