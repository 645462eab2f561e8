// `gradus explain`, run as a user runs it: the derivation, its files, its usage.

#include <algorithm>
#include <filesystem>
#include <regex>

#include "autograd/explain/setting.h"
#include "nn/io/npz.h"
#include "tests/support/cli.h"
#include "tests/support/text.h"

namespace gradus {
namespace {

using namespace test;

using CliExplain = Cli;

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
  const auto expect_fits = [](const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const auto characters =
          std::ranges::count_if(line, [](char byte) { return (byte & 0xC0) != 0x80; });
      EXPECT_LE(characters, 80) << line;
    }
  };
  for (const std::string_view name : explain::kLayerNames)
    expect_fits(gradus({"explain", std::string(name)}).out);
  const std::string wide = gradus({"explain", "layer_norm", "--shape", "2,20"}).out;
  expect_fits(wide);
  EXPECT_EQ(
      numbers(wide.substr(wide.find("\nx\n"), wide.find("\nsets") - wide.find("\nx\n"))).size(),
      40U);
  const std::string high = gradus({"explain", "layer_norm", "--shape", "26,2"}).out;
  EXPECT_TRUE(contains(high, "    ... 2 more lines\n"));
  const auto drawn = [&](const char* shape) {
    return gradus({"explain", "local_response_norm", "--shape", shape}).out;
  };
  expect_fits(drawn("1,28"));
  EXPECT_TRUE(contains(drawn("1,28"), "\n    23       "));
  EXPECT_TRUE(contains(drawn("1,28"), "\n    ... 4 more channels\n"));
  expect_fits(drawn("1,100"));
  EXPECT_TRUE(contains(drawn("1,100"), "\n    ... 76 more channels\n"));
}

TEST_F(CliExplain, WhatIsNotANumberIsNotEqual) {
  const std::vector<double> x = {1, 2, 3, 6, 2, 7, 1, 8}, dy(8, 1.7e308);
  nn::write_npy(dir_.path("x.npy"), DType::f64, {2, 4}, std::as_bytes(std::span(x)));
  nn::write_npy(dir_.path("dy.npy"), DType::f64, {2, 4}, std::as_bytes(std::span(dy)));
  const std::string text =
      gradus({"explain", "layer_norm", "--values", "x.npy", "--values", "dy=dy.npy"}).out;
  EXPECT_TRUE(contains(text, "  not finite: gradus's dx (difference nan)"));
  EXPECT_TRUE(contains(text, "  not finite: nan, at most inf")) << text;
  EXPECT_FALSE(contains(text, "-nan"));
}

// As the gradient of a mean over a batch is.
TEST_F(CliExplain, SmallAndLargeTensorsHaveExponents) {
  const auto text = [&](double scale) {
    std::vector<double> x = {1, -2, 0, 6};
    for (double& value : x) value *= scale;
    nn::write_npy(dir_.path("x.npy"), DType::f64, {2, 2}, std::as_bytes(std::span(x)));
    const std::string all = gradus({"explain", "rms_norm", "--values", "x.npy"}).out;
    const size_t at = all.find("\nx\n");
    return all.substr(at, all.find("\n\n", at) - at);
  };
  EXPECT_EQ(text(1),
            "\nx\n"
            "    [0]   1.00000 -2.00000\n"
            "    [1]   0.00000  6.00000");
  EXPECT_EQ(text(1e-4),
            "\nx\n"
            "    [0]   1.0000e-04 -2.0000e-04\n"
            "    [1]   0.0000e+00  6.0000e-04");
  EXPECT_EQ(text(1e7),
            "\nx\n"
            "    [0]   1.0000e+07 -2.0000e+07\n"
            "    [1]   0.0000e+00  6.0000e+07");
  EXPECT_TRUE(contains(text(1e4), "60000.0"));
  EXPECT_TRUE(contains(gradus({"explain", "rms_norm", "--eps", "1e16"}).out, "1.0000e-08"))
      << "rstd";
}

TEST_F(CliExplain, RefusesAVarianceOfZeroWithoutEps) {
  expect_failure(gradus({"explain", "layer_norm", "--eps", "0", "--shape", "2,1"}), 1,
                 {"the variance of set 0 is 0, and so is eps"});
  EXPECT_EQ(gradus({"explain", "layer_norm", "--eps", "0"}).status, 0);
}

// Of a gradient by differences, too, which says whether it is equal.
TEST_F(CliExplain, JudgesWhatLiesFarFromZeroByItsRounding) {
  const std::vector<double> x = {1, 2, 3, 6, 2, 2.5, 7, 1};
  std::vector<double> far;
  for (const double value : x) far.push_back(1e7 + 0.01 * value);
  nn::write_npy(dir_.path("x.npy"), DType::f64, {2, 4}, std::as_bytes(std::span(far)));
  const std::string text = gradus({"explain", "layer_norm", "--values", "x.npy"}).out;
  EXPECT_FALSE(contains(text, "NOT EQUAL") || contains(text, "DOES NOT HOLD")) << text;
  EXPECT_TRUE(contains(text, "  equal: difference ")) << text;
  EXPECT_TRUE(contains(text, ", where nearest to its bound\n")) << text;
}

// Of values whose differences f64 hardly holds: neither that it is right, nor that it is wrong.
TEST_F(CliExplain, SaysWhereRoundingLeavesNothingToTell) {
  const std::vector<double> x = {1e17, 1e17 + 32, 1e17 + 64, 1, 2, 3};
  nn::write_npy(dir_.path("x.npy"), DType::f64, {2, 3}, std::as_bytes(std::span(x)));
  const std::string text =
      gradus({"explain", "layer_norm", "--values", "x.npy", "--json", "a.json"}).out;
  EXPECT_FALSE(contains(text, "NOT EQUAL") || contains(text, "DOES NOT HOLD")) << text;
  EXPECT_TRUE(contains(text, "  cannot tell: difference ")) << text;
  EXPECT_FALSE(contains(text, "at most nan")) << text;
  const Json json = Json::parse(read_text(dir_.path("a.json")));
  for (const Json& one : json.at("invariants")) EXPECT_TRUE(one.at("holds").is_null()) << one;
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
  for (const Json& one : json.at("gradients")) EXPECT_LT(one.at("difference"), one.at("bound"));
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
  expect_failure(gradus({"explain", "norms"}), 2, {"give --html FILE"});
}

// The page starts with the tensor of the text, with and without the page.
TEST_F(CliExplain, ThePageShowsWhatTheTextDoes) {
  for (const std::string_view name : explain::kLayerNames) {
    const std::string layer(name);
    SCOPED_TRACE(layer);
    const ProcessResult result = gradus({"explain", layer, "--html", "a.html", "--json", "a.json"});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_TRUE(result.out.starts_with(gradus({"explain", layer}).out));
    EXPECT_TRUE(result.out.ends_with("\nwrote a.json\nwrote a.html\n"));
    const Json x = Json::parse(read_text(dir_.path("a.json"))).at("inputs").at("x").at("values");
    EXPECT_TRUE(contains(read_text(dir_.path("a.html")), "\"x\":[" + x.dump().substr(1)));
  }
}

TEST_F(CliExplain, RmsNormHasNoMeanInItsWords) {
  const std::string text = gradus({"explain", "RMSNorm"}).out;
  EXPECT_EQ(text, gradus({"explain", "rms_norm"}).out);
  for (const char* word : {"mean(dy) ", "m1", "shift", "beta", "variance"})
    EXPECT_FALSE(contains(text, word)) << word;
  EXPECT_TRUE(contains(text, "mean square"));
}

TEST_F(CliExplain, ValuesOfAFile) {
  const std::vector<float> x = {1, 2, 4, 7};
  nn::write_npy(dir_.path("x.npy"), DType::f32, {2, 2}, std::as_bytes(std::span(x)));
  const ProcessResult result = gradus({"explain", "layer_norm", "--values", "x.npy"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "layer_norm of x [2,2]"));
  EXPECT_TRUE(contains(result.out, "     1.50000 5.50000\n"));
  nn::write_npy(dir_.path("row.npy"), DType::f32, {4}, std::as_bytes(std::span(x)));
  EXPECT_TRUE(contains(gradus({"explain", "rms_norm", "--values", "row.npy"}).out,
                       "rms_norm of x [1,4], axes = 1"));
  expect_failure(gradus({"explain", "batch_norm", "--values", "row.npy"}), 1,
                 {"expected x of 2 to 5 axes, got shape [4]"});
  expect_failure(gradus({"explain", "layer_norm", "--values", "y.npy"}), 1, {"y.npy"});
  expect_failure(gradus({"explain", "layer_norm", "--values", "x.npy", "--shape", "2,2"}), 2,
                 {"--shape excludes --values"});
}

TEST_F(CliExplain, WhatIsSavedCanBeReadAgain) {
  const auto run = [&](Arguments more) {
    more.insert(more.begin(), {"explain", "local_response_norm"});
    return gradus(more);
  };
  const ProcessResult saved = run({"--size", "1000000000", "--save", "s.npz"});
  ASSERT_EQ(saved.status, 0) << saved.err;
  const ProcessResult again = run({"--values", "s.npz"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_TRUE(contains(again.out, "size = 1000000000,"));
  expect_failure(run({"--size", "1000000001"}), 2, {"--size", "1000000000"});
}

// An = may be part of a path.
TEST_F(CliExplain, NamesOfArraysAndOfFiles) {
  const std::vector<double> x = {1, 2, 4, 7};
  for (const char* folder : {"lr=0.1", "runs/lr=0.1"}) {
    std::filesystem::create_directories(dir_.path(folder));
    const std::string file = std::string(folder) + "/x.npy";
    nn::write_npy(dir_.path(file), DType::f64, {2, 2}, std::as_bytes(std::span(x)));
    EXPECT_EQ(gradus({"explain", "layer_norm", "--values", file}).status, 0) << file;
    EXPECT_EQ(gradus({"explain", "layer_norm", "--values", "x=" + file}).status, 0) << file;
  }
  expect_failure(gradus({"explain", "layer_norm", "--values", "z=lr=0.1/x.npy"}), 1,
                 {"holds 'z', which is none of layer_norm's names"});
}

TEST_F(CliExplain, TheAxesOfARow) {
  const auto text = [&](const char* axes) {
    return gradus({"explain", "layer_norm", "--shape", "2,3,2", "--axes", axes}).out;
  };
  EXPECT_TRUE(text("1").starts_with("layer_norm of x [2,3,2], axes = 1, eps = "));
  EXPECT_TRUE(contains(text("1"), "A set is a row: the last axis of x."));
  EXPECT_TRUE(contains(text("3"), "A set is a row: the last 3 axes of x."));
  EXPECT_TRUE(gradus({"explain", "rms_norm", "--shape", "2,3,2"})
                  .out.starts_with("rms_norm of x [2,3,2], "
                                   "axes = 2, "));
}

TEST_F(CliExplain, LargeTensorsAreRefusedAtOnce) {
  for (const char* shape : {"3000000,2", "1000000,1000000", "2,64,16,16"}) {
    expect_failure(gradus({"explain", "layer_norm", "--shape", shape}), 1,
                   {"a derivation takes up to 8192 elements", "a smaller x shows the same"});
  }
  expect_failure(gradus({"explain", "instance_norm", "--shape", "274177,67280421310721"}), 1,
                 {"does not fit 63 bits"});
  expect_failure(gradus({"explain", "group_norm", "--groups", "4611686018427387904"}), 1,
                 {"give a shape for 4611686018427387904 groups"});
  const ProcessResult many =
      gradus({"explain", "group_norm", "--groups", "1025", "--shape", "1,1025,2"});
  EXPECT_EQ(many.status, 0) << many.err;  // it has been given
}

TEST_F(CliExplain, SeedsDrawTheSameAgain) {
  const auto run = [&](const char* seed) {
    return gradus({"explain", "rms_norm", "--seed", seed}).out;
  };
  EXPECT_EQ(run("3"), run("3"));
  EXPECT_NE(run("3"), run("4"));
}

TEST_F(CliExplain, OptionsOfOtherLayersAreRefused) {
  const auto refused = [&](const char* layer, const Arguments& more) {
    Arguments command{"explain", layer};
    command.insert(command.end(), more.begin(), more.end());
    const ProcessResult result = gradus(command);
    expect_failure(result, 2, {more[0], layer == std::string("norms") ? "for one layer" : layer});
    EXPECT_EQ(result.out, "");
  };
  refused("batch_norm", {"--groups", "2"});
  refused("batch_norm", {"--axes", "1"});
  refused("softmax2d", {"--eps", "1"});
  refused("rms_norm", {"--eval"});
  for (const char* option : {"--size", "--alpha", "--beta", "--k"})
    refused("layer_norm", {option, "1"});
  for (const char* option : {"--shape", "--eps", "--json", "--save"})
    refused("norms", {option, option == std::string("--shape") ? "2,3" : "1", "--html", "a.html"});
  EXPECT_FALSE(std::filesystem::exists(dir_.path("a.html")));
  EXPECT_EQ(gradus({"explain", "LocalResponseNorm", "--size", "3", "--k", "2"}).status, 0);
}

TEST_F(CliExplain, FilesAreNotWrittenOver) {
  expect_failure(gradus({"explain", "rms_norm", "--json", "a", "--html", "./a"}), 2,
                 {"--json", "the file of --html"});
  expect_failure(gradus({"explain", "rms_norm", "--save", "a.npz", "--markdown", "a.npz"}), 2,
                 {"--markdown", "the file of --save"});
  EXPECT_FALSE(std::filesystem::exists(dir_.path("a")));
  ASSERT_EQ(gradus({"explain", "rms_norm", "--save", "in.npz"}).status, 0);
  const Bytes before = read_file(dir_.path("in.npz"));
  for (const char* option : {"--values", "--check"}) {
    expect_failure(gradus({"explain", "rms_norm", option, "in.npz", "--save", "in.npz"}), 2,
                   {"--save", std::string("the file of ") + option});
  }
  expect_failure(gradus({"explain", "rms_norm", "--values", "x=in.npy", "--json", "in.npy"}), 2,
                 {"--json", "the file of --values"});
  EXPECT_EQ(read_file(dir_.path("in.npz")), before);
  for (const char* option : {"--save", "--json", "--html", "--markdown", "--values", "--check"})
    expect_failure(gradus({"explain", "rms_norm", option, ""}), 2, {option, "name of a file"});
}

TEST_F(CliExplain, WrongUsage) {
  expect_failure(gradus({"explain"}), 2, {"NAME is required"});
  expect_failure(gradus({"explain", "batch"}), 2, {"batch", "group_norm"});
  expect_failure(gradus({"explain", "batch_norm", "--train", "--eval"}), 2, {"excludes"});
  for (const char* shape : {"4", "2,0", "2,", "2;3", "2,3,", "1,1,1,1,1,1,1,1,1", "2,-3", ""})
    expect_failure(gradus({"explain", "batch_norm", "--shape", shape}), 2, {"--shape"});
  EXPECT_EQ(gradus({"explain", "--shape", "2,3", "batch_norm"}).status, 0);
  for (const char* eps : {"-1", "nan", "inf", "x"})
    expect_failure(gradus({"explain", "batch_norm", "--eps", eps}), 2, {"--eps", eps, "finite"});
  expect_failure(gradus({"explain", "batch_norm", "--shape", "1000,1000"}), 1,
                 {"up to 8192 elements", "[1000,1000]"});
  expect_failure(gradus({"explain", "rms_norm", "--check", "x.npz", "--seed", "1"}), 2, {"--seed"});
  expect_failure(gradus({"explain", "batch_norm", "--shape", "1,3"}), 1,
                 {"training needs more than one value per channel"});
  expect_failure(gradus({"explain", "group_norm", "--shape", "2,3", "--groups", "2"}), 1,
                 {"do not fall into 2 groups"});
}

}  // namespace
}  // namespace gradus
