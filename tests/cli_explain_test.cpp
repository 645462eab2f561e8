// `gradus explain`, run as a user runs it.

#include <regex>

#include "autograd/explain/setting.h"
#include "nn/io/npy.h"
#include "tests/support/cli.h"

namespace gradus {
namespace {

using namespace test;

using CliExplain = Cli;

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// All numbers with decimals, in their order.
std::vector<std::string> numbers(const std::string& text) {
  const std::regex pattern("-?[0-9]+\\.[0-9]+(e-[0-9]+)?|inf|nan");
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it)
    found.push_back(it->str());
  return found;
}

TEST_F(CliExplain, DerivesEveryLayer) {
  for (const std::string_view name : explain::kLayerNames) {
    for (const char* mode : {"--train", "--eval"}) {
      if (mode == std::string("--eval") && !contains("batch_norm instance_norm", name)) continue;
      SCOPED_TRACE(std::string(name) + mode);
      const ProcessResult result = gradus({"explain", std::string(name), mode});
      EXPECT_EQ(result.status, 0) << result.err;
      EXPECT_TRUE(contains(result.out, "\n  equal: gradus's dx (difference "));
      EXPECT_FALSE(contains(result.out, "NOT EQUAL") || contains(result.out, "DOES NOT HOLD"));
      for (const char* part : {"Forward\n-------", "Backward\n--------", "In half precision",
                               "by differences", "Saved for the backward"})
        EXPECT_TRUE(contains(result.out, part)) << part;
    }
  }
}

TEST_F(CliExplain, LinesFitATerminal) {
  for (const std::string_view name : explain::kLayerNames) {
    std::istringstream lines(gradus({"explain", std::string(name)}).out);
    for (std::string line; std::getline(lines, line);) {
      const auto characters =
          std::ranges::count_if(line, [](char byte) { return (byte & 0xC0) != 0x80; });
      EXPECT_LE(characters, 80) << line;
    }
  }
}

TEST_F(CliExplain, MarkdownAndJsonHoldTheSameNumbers) {
  const ProcessResult result = gradus({"explain", "group_norm", "--shape", "2,4,2", "--groups", "2",
                                       "--markdown", "a.md", "--json", "a.json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const std::string markdown = read_text(dir_.path("a.md"));
  EXPECT_TRUE(markdown.starts_with("# group_norm of x [2,4,2], groups = 2"));
  EXPECT_TRUE(contains(markdown, "**`m1 = Σ d / m`**"));
  EXPECT_EQ(numbers(markdown), numbers(result.out));
  EXPECT_GT(numbers(markdown).size(), 200U);
  const Json json = Json::parse(read_text(dir_.path("a.json")));
  EXPECT_EQ(json.at("schema"), 1);
  EXPECT_EQ(json.at("steps").at(0).at("name"), "mu");
  EXPECT_EQ(json.at("steps").at(0).at("value").at("shape"), (Json{2, 2}));
  EXPECT_EQ(json.at("sets").at("values").size(), 16U);
  EXPECT_TRUE(contains(json.at("half").dump(), "\"inf\""));
}

TEST_F(CliExplain, WritesPages) {
  const auto page = [&](const Arguments& arguments) {
    const ProcessResult result = gradus(arguments);
    EXPECT_EQ(result.status, 0) << result.err;
    return read_text(dir_.path("a.html"));
  };
  EXPECT_TRUE(page({"explain", "layer_norm", "--html", "a.html"}).starts_with("<!doctype html>"));
  EXPECT_TRUE(contains(page({"explain", "group_norm", "--shape", "2,4,3", "--html", "a.html"}),
                       "group_norm"));
  EXPECT_TRUE(contains(page({"explain", "norms", "--html", "a.html"}), "rms_norm"));
  expect_failure(gradus({"explain", "norms"}), 1, {"give --html FILE"});
}

TEST_F(CliExplain, ValuesOfAFile) {
  const std::vector<float> x = {1, 2, 4, 7};
  nn::write_npy(dir_.path("x.npy"), DType::f32, {2, 2}, std::as_bytes(std::span(x)));
  const ProcessResult result = gradus({"explain", "layer_norm", "--values", "x.npy"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "layer_norm of x [2,2]"));
  EXPECT_TRUE(contains(result.out, "     1.50000 5.50000\n"));
  expect_failure(gradus({"explain", "layer_norm", "--values", "y.npy"}), 1, {"y.npy"});
  expect_failure(gradus({"explain", "layer_norm", "--values", "x.npy", "--shape", "2,2"}), 2,
                 {"--shape excludes --values"});
}

TEST_F(CliExplain, SeedsDrawTheSameAgain) {
  const auto run = [&](const char* seed) {
    return gradus({"explain", "rms_norm", "--seed", seed}).out;
  };
  EXPECT_EQ(run("3"), run("3"));
  EXPECT_NE(run("3"), run("4"));
}

TEST_F(CliExplain, WrongUsage) {
  expect_failure(gradus({"explain"}), 2, {"NAME is required"});
  expect_failure(gradus({"explain", "batchnorm"}), 2, {"batchnorm", "group_norm"});
  expect_failure(gradus({"explain", "batch_norm", "--train", "--eval"}), 2, {"excludes"});
  for (const char* shape : {"4", "2,0", "2,", "2;3", "2,3,", "1,1,1,1,1,1,1,1,1", "2,-3", ""})
    expect_failure(gradus({"explain", "batch_norm", "--shape", shape}), 2, {"--shape"});
  EXPECT_EQ(gradus({"explain", "--shape", "2,3", "batch_norm"}).status, 0);
  expect_failure(gradus({"explain", "batch_norm", "--eps", "-1"}), 2, {"--eps"});
  expect_failure(gradus({"explain", "batch_norm", "--shape", "1,3"}), 1,
                 {"training needs more than one value per channel"});
  expect_failure(gradus({"explain", "group_norm", "--shape", "2,3", "--groups", "2"}), 1,
                 {"do not fall into 2 groups"});
}

}  // namespace
}  // namespace gradus
