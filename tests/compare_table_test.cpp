// The comparison as a table for people.
#include "examples/cli/compare_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace gradus {
namespace {

CompareError error_of(Device device, double ulp) {
  return {.device = device, .of_allowed = ulp / 8, .max_ulp = ulp};
}

// A layer on the CPU and on CUDA with times of very different lengths.
CompareRow row_of(const std::string& name, double ulp, double seconds) {
  CompareRow row{.layer = name, .function = name};
  CompareValue y{.name = "y"}, dx{.name = "dx", .direction = CompareDirection::backward};
  y.errors = {error_of(kCpu, ulp), error_of(kCuda, 2 * ulp)};
  dx.errors = {error_of(kCpu, 0), error_of(kCuda, ulp)};
  row.values = {y, dx};
  for (const Device device : {kCpu, kCuda}) {
    for (const auto direction : {CompareDirection::forward, CompareDirection::backward})
      row.times.push_back(
          {device, direction, seconds, 384, 480, "copy", device == kCpu ? 3.2 : 0.9});
    seconds /= 1000;
  }
  return row;
}

CompareReport example() {
  CompareReport report{.what = "layers"};
  report.devices = {{kCpu, "cpu: avx512", 21.5, {}}, {kCuda, "cuda:0: a card", 3000, {}}};
  report.rows = {row_of("a_layer_of_a_long_name", 0.5, 1.234), row_of("relu", 3, 0.0000123)};
  return report;
}

// The table's lines.
std::vector<std::string> table_of(const CompareReport& report) {
  std::istringstream text(cli::to_text(report));
  std::vector<std::string> lines;
  bool inside = false;
  for (std::string line; std::getline(text, line);) {
    inside = inside ? !line.empty() : line.find("largest error in ulp") != std::string::npos;
    if (inside) lines.push_back(line);
  }
  return lines;
}

TEST(CompareTable, ColumnsStandBelowTheirTitles) {
  const std::vector<std::string> lines = table_of(example());
  ASSERT_EQ(lines.size(), 4u);
  const std::string &groups = lines[0], &titles = lines[1];
  EXPECT_EQ(groups.find("largest error in ulp (cpu / cuda)"), titles.find("y "));
  const size_t cpu = groups.find("cpu: ms, of roof"), cuda = groups.find("cuda:0: ms, of roof");
  const size_t verdict = titles.find("verdict");
  ASSERT_NE(cuda, std::string::npos);
  EXPECT_LT(titles.find("allowed"), cpu);
  EXPECT_LT(cpu, titles.find("forward"));
  EXPECT_LT(titles.find("backward"), cuda);
  EXPECT_LT(cuda, titles.rfind("forward"));
  for (size_t k = 2; k < lines.size(); ++k) {
    EXPECT_EQ(lines[k].find("f32"), titles.find("dtype")) << lines[k];
    EXPECT_EQ(lines[k].substr(cuda - 3, 3), "%  ") << lines[k];
    EXPECT_EQ(lines[k].substr(verdict - 3, 3), "%  ") << lines[k];
    EXPECT_EQ(lines[k].substr(verdict), "ok") << lines[k];
  }
  EXPECT_NE(lines[2].find("1.23e+03 320%"), std::string::npos);
  EXPECT_NE(lines[3].find("1.23e-05  90%"), std::string::npos);
  EXPECT_NE(lines[3].find("3.0 / 6.0"), std::string::npos);
}

TEST(CompareTable, AValueThatIsNotFiniteIsNoExactOne) {
  CompareReport report = example();
  const double nan = std::nan("");
  report.rows[0].values[0].errors[1] = {.device = kCuda,
                                        .ok = false,
                                        .beyond = 1,
                                        .of_allowed = std::numeric_limits<double>::infinity(),
                                        .worst = 0,
                                        .error = nan,
                                        .got = {1, nan}};
  EXPECT_NE(table_of(report)[2].find("0.5 / not finite"), std::string::npos);
}

TEST(CompareTable, SentencesAreBrokenBetweenWords) {
  CompareReport report = example();
  report.missing = {
      "CUDA is not compared (cuda: this build of gradus has no CUDA backend): the CPU "
      "is held against its f64"};
  EXPECT_NE(cli::to_text(report).find("\n  CUDA is not compared (cuda: this build of gradus has no "
                                      "CUDA backend): the CPU\n    is held against its f64\n"),
            std::string::npos)
      << cli::to_text(report);
}

TEST(CompareTable, WhatNoLayerHasIsNoColumn) {
  CompareReport report = example();
  EXPECT_EQ(table_of(report)[1].find("others"), std::string::npos);
  EXPECT_EQ(table_of(report)[1].find("diffs"), std::string::npos);
  for (CompareRow& row : report.rows) row.times.clear();
  EXPECT_EQ(table_of(report)[1].find("forward"), std::string::npos);
  report.rows[1].values[1].differences = CompareDifferences{.ok = false};
  EXPECT_NE(table_of(report)[1].find("diffs"), std::string::npos);
  EXPECT_NE(table_of(report)[3].find("wrong"), std::string::npos);
}

}  // namespace
}  // namespace gradus
