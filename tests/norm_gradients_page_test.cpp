// docs/norm_gradients.md: its numbers and the lines of its links are as computed here. With
// GRADUS_UPDATE_PAGES=1 in the environment the page is written anew instead.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "autograd/explain/library.h"
#include "autograd/explain/slips.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/reduce.h"
#include "core/error.h"
#include "examples/cli/lesson_html.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace gradus {
namespace {

using explain::Derivation;
using explain::Inputs;
using explain::Layer;
using explain::Setting;
using Values = std::vector<double>;

// ---- what is written ----------------------------------------------------------------------------

std::string text_of(double value) {
  if (std::isinf(value)) return "infinite";
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value == 0 ? 0.0 : value);
  std::string result = text;
  if (result[0] == '-') result.replace(0, 1, "−");
  return result;
}

std::string row_of(const std::vector<std::string>& cells) {
  std::string row = "|";
  for (const std::string& cell : cells) row += " " + cell + " |";
  return row + "\n";
}

// The first `left` columns hold words.
std::string table_of(size_t left, const std::vector<std::string>& head,
                     const std::vector<std::vector<std::string>>& rows) {
  std::string table = "\n" + row_of(head) + "|";
  for (size_t i = 0; i < head.size(); ++i) table += i < left ? " --- |" : " ---: |";
  table += "\n";
  for (const auto& row : rows) table += row_of(row);
  return table;
}

// ---- what is computed ---------------------------------------------------------------------------

Tensor f64(const Values& values, const Shape& shape) { return Tensor::from_vector(values, shape); }

Values values_of(const Derivation& derivation, std::string_view step) {
  return derivation.step(step).value.to_vector<double>();
}

double largest(const Values& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

double largest_difference(const Values& a, const Values& b) {
  Values difference = a;
  for (size_t i = 0; i < a.size(); ++i) difference[i] -= b[i];
  return largest(difference);
}

Derivation drawn(const Setting& setting) {
  return explain::derive(setting, explain::draw_inputs(setting, cli::lesson_shape(setting), 0));
}

Derivation with_gamma_one(const Setting& setting) {
  Inputs inputs = explain::draw_inputs(setting, cli::lesson_shape(setting), 0);
  inputs.gamma = Tensor::ones(inputs.gamma.shape(), inputs.gamma.options());
  return explain::derive(setting, inputs);
}

// The largest error of dx by the first slip of this name.
double error_by(const Derivation& derivation, explain::Slip slip) {
  const explain::Zoo zoo =
      explain::zoo_of(explain::problem_of(derivation.setting, derivation.inputs));
  const auto found = std::ranges::find(zoo.dx, slip, &explain::Candidate::slip);
  if (found != zoo.dx.end())
    return largest_difference(explain::values_of(explain::sum_of(found->terms)),
                              values_of(derivation, "dx"));
  ADD_FAILURE() << "no slip is called " << explain::to_string(slip);
  return NAN;
}

// The error where m1 and m2 are `factor` times what they must be.
double error_of_count(const Derivation& derivation, double factor) {
  const Values mean = values_of(derivation, "mean"), along = values_of(derivation, "projection");
  Values error(mean.size());
  for (size_t i = 0; i < error.size(); ++i) error[i] = (factor - 1) * (mean[i] + along[i]);
  return largest(error);
}

using Page = std::map<std::string, std::string>;

void add_sets(Page& page) {
  const Shape x = {3, 6, 1, 3};
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](Setting setting, const char* name, const char* set, const char* formula,
                       const char* gamma) {
    setting.axes = 3;  // of layer_norm and rms_norm: one sample
    const explain::Layout layout = explain::layout_of(setting, x);
    rows.push_back(
        {name, set, formula, std::to_string(layout.m), std::to_string(layout.sets), gamma});
  };
  add({.layer = Layer::batch_norm}, "BatchNorm", "a channel, over all samples", "$n·s$",
      "constant");
  add({.layer = Layer::instance_norm}, "InstanceNorm", "a channel of a sample", "$s$", "constant");
  add({.layer = Layer::group_norm, .groups = 2}, "GroupNorm, 2 groups",
      "$c/g$ neighbouring channels of a sample", "$c/g·s$", "varies");
  add({.layer = Layer::layer_norm}, "LayerNorm", "a sample (or a row)", "$c·s$", "varies");
  add({.layer = Layer::rms_norm}, "RMSNorm", "a sample (or a row), without the mean", "$c·s$",
      "varies");
  page["sets"] = table_of(6, {"layer", "a set", "$m$", "here", "sets", "γ over a set"}, rows);
}

void add_row(Page& page) {
  const Setting setting{.layer = Layer::layer_norm};
  const Inputs inputs{.x = f64({1, 2, 3, 6}, {1, 4}),
                      .dy = f64({1, -1, 0.5, 1}, {1, 4}),
                      .gamma = f64({1, 0.5, 2, 1}, {4}),
                      .beta = f64({0, 0, 0, 0}, {4})};
  const Derivation row = explain::derive(setting, inputs);
  for (const char* name : {"mu", "var", "rstd", "m1", "m2"})
    page[std::string("row.") + name] = text_of(values_of(row, name)[0]);
  std::vector<std::vector<std::string>> rows;
  const Values finite = row.gradients.at(0).finite.to_vector<double>();
  const Values dx = values_of(row, "dx"), xhat = values_of(row, "xhat");
  double sum = 0, dot = 0;
  for (size_t i = 0; i < 4; ++i) {
    rows.push_back({text_of(inputs.x.to_vector<double>()[i])});
    rows.back().push_back(text_of(inputs.dy.to_vector<double>()[i]));
    rows.back().push_back(text_of(inputs.gamma.to_vector<double>()[i]));
    for (const char* name : {"xhat", "d", "direct", "mean", "projection", "dx"})
      rows.back().push_back(text_of(values_of(row, name)[i]));
    rows.back().push_back(text_of(finite[i]));
    sum += dx[i];
    dot += dx[i] * xhat[i];
  }
  EXPECT_LT(std::abs(sum), 1e-15);
  page["row.table"] = table_of(0,
                               {"$x$", "$dy$", "$γ$", "$\\hat x$", "$d$", "direct", "mean",
                                "projection", "$dx$", "measured"},
                               rows);
  page["row.dot"] = text_of(dot);
  const double rstd = values_of(row, "rstd")[0];
  page["row.dot_expected"] =
      text_of(4 * values_of(row, "m2")[0] * setting.eps * rstd * rstd * rstd);
  page["direct_only.error"] = text_of(error_by(row, explain::Slip::evaluation_formula));
  page["direct_only.scale"] = text_of(largest(dx));
  constexpr double kStep = 1e-5;
  const auto fourth = [&](double first) {
    Inputs moved = inputs;
    moved.x = f64({first, 2, 3, 6}, {1, 4});
    return explain::library_forward(setting, moved).to_vector<double>()[3];
  };
  page["across"] = text_of((fourth(1 + kStep) - fourth(1 - kStep)) / (2 * kStep));
}

void add_gamma(Page& page) {
  std::vector<std::vector<std::string>> rows;
  for (const Layer layer : {Layer::batch_norm, Layer::instance_norm, Layer::group_norm,
                            Layer::layer_norm, Layer::rms_norm}) {
    const Setting setting{.layer = layer};
    const Derivation derivation = drawn(setting);
    const double error = error_by(derivation, explain::Slip::gamma_outside);
    const double unseen = error_by(with_gamma_one(setting), explain::Slip::gamma_outside);
    EXPECT_LT(unseen, 1e-14);
    EXPECT_TRUE(!setting.has_running() || error < 1e-14);
    rows.push_back({"`" + std::string(explain::to_string(layer)) + "`",
                    text_of(setting.has_running() ? 0 : error),
                    text_of(largest(values_of(derivation, "dx"))), text_of(0)});
  }
  page["gamma.table"] =
      table_of(1, {"γ pulled out", "error", "largest of the right $dx$", "error with γ = 1"}, rows);
}

void add_checks(Page& page) {
  const Setting batch{.layer = Layer::batch_norm};
  Inputs ones = explain::draw_inputs(batch, cli::lesson_shape(batch), 0);
  ones.dy = Tensor::ones(ones.dy.shape(), ones.dy.options());
  EXPECT_LT(largest(explain::run_library(batch, ones).dx.to_vector<double>()), 1e-14);
  page["ones.under"] = text_of(1e-14);
  page["ones.drawn"] = text_of(largest(values_of(drawn(batch), "dx")));

  const Derivation group = drawn({.layer = Layer::group_norm});
  const explain::Layout layout = explain::layout_of(group.setting, group.inputs.x.shape());
  Values of_first(static_cast<size_t>(layout.params));
  const Values dy = group.inputs.dy.to_vector<double>(), xhat = values_of(group, "xhat");
  for (size_t i = 0; i < dy.size(); ++i) {
    if (layout.sample[i] == 0) of_first[static_cast<size_t>(layout.param[i])] += dy[i] * xhat[i];
  }
  page["samples.error"] = text_of(largest_difference(of_first, values_of(group, "dgamma")));
}

void add_counts(Page& page) {
  const Derivation group = drawn({.layer = Layer::group_norm});
  EXPECT_EQ(group.m, 9);
  page["count.channel"] = text_of(error_of_count(group, 3));
  page["count.unbiased"] = text_of(error_by(group, explain::Slip::wrong_count));
  const Derivation batch = drawn({.layer = Layer::batch_norm});
  EXPECT_EQ(batch.m, 9);
  const double dgamma = values_of(batch, "dgamma")[0];
  page["count.dgamma"] = text_of(dgamma);
  page["count.dgamma_mean"] = text_of(dgamma / 9);

  const double var = values_of(batch, "var")[0], unbiased = var * 9 / 8;
  const double old = batch.inputs.running_var.to_vector<double>()[0];
  EXPECT_NEAR(explain::run_library(batch.setting, batch.inputs).running_var.to_vector<double>()[0],
              0.9 * old + 0.1 * unbiased, 1e-12);
  page["biased.var"] = text_of(var);
  page["biased.unbiased"] = text_of(unbiased);
  const Values y = values_of(batch, "y"), beta = batch.inputs.beta.to_vector<double>();
  const explain::Layout layout = explain::layout_of(batch.setting, batch.inputs.x.shape());
  Values moved = y;
  for (size_t i = 0; i < y.size(); ++i) {
    const double b = beta[static_cast<size_t>(layout.param[i])];
    const double v = values_of(batch, "var")[static_cast<size_t>(layout.set[i])];
    moved[i] = b + (y[i] - b) * std::sqrt((v + 1e-5) / (v * 9 / 8 + 1e-5));
  }
  page["biased.y"] = text_of(largest_difference(moved, y));
}

void add_evaluation(Page& page) {
  page["eval.in_training"] =
      text_of(error_by(drawn({.layer = Layer::batch_norm}), explain::Slip::evaluation_formula));
  page["eval.training_formula"] = text_of(error_by(
      drawn({.layer = Layer::batch_norm, .training = false}), explain::Slip::training_formula));
}

void add_half(Page& page) {
  const Tensor edge = Tensor::full({1}, 256, {.dtype = DType::f16});
  page["half.square"] = text_of((edge * edge).to_vector<double>()[0]);
  const Derivation row = drawn({.layer = Layer::layer_norm});
  ASSERT_TRUE(row.half.x.defined());
  page["half.x"] = text_of(largest(row.half.x.to_vector<double>()));
  page["half.error"] = text_of(
      largest_difference(row.half.wrong.to_vector<double>(), row.half.right.to_vector<double>()));
}

// 1024 values of mean 10,000 and variance 1: 9999 and 10001 in turn.
void add_sums(Page& page) {
  std::vector<float> x(1024);
  for (size_t i = 0; i < x.size(); ++i) x[i] = i % 2 == 0 ? 9999.f : 10001.f;
  volatile float sum = 0, squares = 0;  // each operation rounded to f32, on any machine
  for (const float value : x) {
    const volatile float square = value * value;
    sum = sum + value;
    squares = squares + square;
  }
  const volatile float mean = sum / 1024, mean_square = squares / 1024,
                       square_of_mean = mean * mean;
  page["onepass.wrong"] = text_of(mean_square - square_of_mean);
  page["onepass.right"] =
      text_of(var(Tensor::from_vector(x, {1024}), std::vector<int>{0}, 0).item<double>());
  const auto added = [](const std::vector<float>& values) {
    volatile float total = 0;
    for (const float value : values) total = total + value;
    return static_cast<double>(total);
  };
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1.f / static_cast<float>(i + 1);
  const std::vector<float> back(x.rbegin(), x.rend());
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", added(x));
  page["order.front"] = text;
  std::snprintf(text, sizeof text, "%.9g", added(back));
  page["order.back"] = text;
}

void add_others(Page& page) {
  const auto response = [](int64_t size) {
    return error_by(drawn({.layer = Layer::local_response_norm, .size = size}),
                    explain::Slip::window_not_mirrored);
  };
  page["lrn.unmirrored"] = text_of(response(4));
  EXPECT_LT(response(5), 1e-14);
  page["lrn.odd"] = text_of(0);
  page["softmax.shift"] =
      text_of(error_by(drawn({.layer = Layer::softmax2d}), explain::Slip::sum_missing));
}

// ---- the page -----------------------------------------------------------------------------------

// Puts what stands between `<!-- =key -->` and `<!-- / -->` anew.
std::string with_numbers(std::string text, const Page& page) {
  const std::string open = "<!-- =", opened = " -->", close = "<!-- / -->";
  std::set<std::string> used;
  for (size_t at = text.find(open); at != std::string::npos; at = text.find(open, at)) {
    const size_t end = text.find(opened, at), from = end + opened.size(),
                 to = text.find(close, from);
    const std::string key = text.substr(at + open.size(), end - at - open.size());
    const auto found = page.find(key);
    if (found == page.end() || to == std::string::npos) {
      ADD_FAILURE() << "the page asks for '" << key << "', which is not computed";
      return text;
    }
    // At the start of a line a comment ends the paragraph, and what follows is no Markdown.
    EXPECT_TRUE(at == 0 || text[at - 1] != '\n' || found->second[0] == '\n') << key;
    used.insert(key);
    text.replace(from, to - from, found->second);
    at = from;
  }
  for (const auto& [key, value] : page) EXPECT_TRUE(used.contains(key)) << key << " is not shown";
  return text;
}

// The number of the first line of the file that holds `part`.
int line_with(const std::string& file, const std::string& part) {
  std::ifstream in(file);
  EXPECT_TRUE(in) << file;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.find(part) != std::string::npos) return number;
  }
  ADD_FAILURE() << file << " has no line with: " << part << "; the page's link must be another";
  return 0;
}

// Links are written [text](../file#L12 "what line 12 holds").
std::string with_lines(std::string text) {
  const std::string open = "](../";
  for (size_t at = text.find(open); at != std::string::npos; at = text.find(open, at + 1)) {
    const size_t path = at + open.size(), end = text.find_first_of(")#", path);
    const std::string file = test::source_path(text.substr(path, end - path));
    EXPECT_TRUE(std::ifstream(file).good()) << file;
    if (text[end] == ')') continue;
    const size_t quote = text.find(" \"", end), close = text.find("\")", quote + 2);
    const std::string part = text.substr(quote + 2, close - quote - 2);
    text.replace(end, quote - end, "#L" + std::to_string(line_with(file, part)));
  }
  return text;
}

TEST(NormGradientsPage, NumbersAndLinesAreRight) {
  Page page;
  add_sets(page);
  add_row(page);
  add_gamma(page);
  add_checks(page);
  add_counts(page);
  add_evaluation(page);
  add_half(page);
  add_sums(page);
  add_others(page);
  const std::string path = test::source_path("docs/norm_gradients.md"), old = test::read_text(path);
  ASSERT_FALSE(old.empty());
  const std::string fresh = with_lines(with_numbers(old, page));
  if (std::getenv("GRADUS_UPDATE_PAGES") != nullptr) {
    std::ofstream(path) << fresh;
    return;
  }
  EXPECT_TRUE(old == fresh) << "differs from line "
                            << std::count(old.begin(), std::ranges::mismatch(old, fresh).in1,
                                          '\n') +
                                   1
                            << " on: run this test with GRADUS_UPDATE_PAGES=1 and read the page";
}

}  // namespace
}  // namespace gradus
