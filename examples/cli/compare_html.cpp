#include "examples/cli/compare_html.h"

#include "core/error.h"
#include "examples/cli/page.h"
#include "nn/compare/report.h"

namespace gradus::cli {

std::string compare_page(const nlohmann::json& report) {
  check(report.value("kind", "") == "gradus-compare", "compare", "this JSON is no comparison");
  check(report.value("schema", 0) == kCompareSchema, "compare", "expected schema ", kCompareSchema,
        ", got ", report.value("schema", 0));
  nlohmann::json data = report;
  data["seed"] = report.at("seed").dump();  // 64 bits, of which JavaScript's numbers have 53
  return make_page("gradus compare", data, {"page.js", "compare_charts.js", "compare.js"});
}

void write_compare_html(const nlohmann::json& report, const std::string& file) {
  write_page(file, compare_page(report));
}

}  // namespace gradus::cli
