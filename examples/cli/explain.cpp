// `gradus explain`: a normalization's backward, derived step by step in numbers.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

#include "autograd/explain/derivation.h"
#include "examples/cli/commands.h"
#include "examples/cli/explain_json.h"
#include "examples/cli/explain_text.h"
#include "examples/cli/lesson_html.h"
#include "examples/cli/run_setup.h"
#include "nn/io/atomic_file.h"
#include "nn/io/npy.h"

namespace gradus::cli {
namespace {

using explain::Inputs;
using explain::Setting;

struct ExplainOptions {
  std::string layer;
  std::string shape;
  Setting setting;
  std::string values;
  uint64_t seed = 0;
  std::string markdown, json, html;
};

// "2,4,3": two to eight extents of 1 or more.
std::optional<Shape> parse_shape(std::string_view text) {
  Shape shape;
  while (!text.empty() && shape.rank() < kMaxRank) {
    int64_t extent = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), extent);
    if (result.ec != std::errc() || extent < 1) return {};
    shape.append(extent);
    text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
    if (text.empty()) return shape.rank() < 2 ? std::nullopt : std::optional(shape);
    if (!text.starts_with(',')) return {};
    text.remove_prefix(1);
  }
  return {};
}

std::string check_shape(const std::string& text) {
  if (parse_shape(text)) return "";
  return fmt::format("expected 2 to {} extents such as 2,4,3, got '{}'", kMaxRank, text);
}

// x from a file of any floating dtype or integers.
Tensor read_values(const std::string& path) {
  const nn::NpyArray array = nn::read_npy(path);
  Tensor tensor = Tensor::empty(array.shape, {.dtype = array.dtype});
  std::memcpy(tensor.raw().data, array.bytes.data(), array.bytes.size());
  return Tensor::from_vector(tensor.to_vector<double>(), array.shape);
}

Inputs inputs_of(const ExplainOptions& o) {
  if (!o.values.empty()) {
    return explain::complete(o.setting, {.x = read_values(o.values)}, o.seed);
  }
  const Shape shape = parse_shape(o.shape).value_or(explain::default_shape(o.setting));
  return explain::draw_inputs(o.setting, shape, o.seed);
}

void write_text(const std::string& path, std::string_view text) {
  nn::AtomicFile file("explain", path);
  file.write(text);
  file.commit();
}

// Of all norms side by side there is a page only.
constexpr const char* kNorms = "norms";

int run_norms(const ExplainOptions& o) {
  check(!o.html.empty() && o.markdown.empty() && o.json.empty(), "explain",
        "the norms side by side are a page: give --html FILE");
  write_norms_html(o.html, o.seed);
  return 0;
}

int run_explain(ExplainOptions o) {
  if (o.layer == kNorms) return run_norms(o);
  o.setting.layer = explain::parse_layer(o.layer);
  const Inputs inputs = inputs_of(o);
  const explain::Derivation derivation = explain::derive(o.setting, inputs);
  fmt::print("{}", explain_text(derivation, TextStyle::terminal));
  finish_output();
  if (!o.markdown.empty()) {
    write_text(o.markdown, explain_text(derivation, TextStyle::markdown));
  }
  if (!o.json.empty()) write_text(o.json, explain_json(derivation).dump() + "\n");
  if (!o.html.empty()) {  // without a shape of the user's the page draws more than fits a terminal
    const bool given = !o.shape.empty() || !o.values.empty();
    write_lesson_html(o.html, o.setting, given ? inputs : Inputs(), o.seed);
  }
  return 0;
}

void add_setting_options(CLI::App& command, Setting& setting) {
  command.add_option("--groups", setting.groups, "Of group_norm")
      ->type_name("G")
      ->check(check_count)
      ->capture_default_str();
  command
      .add_option("--axes", setting.axes,
                  "Of layer_norm and rms_norm: a set runs over so many last axes (default: all but "
                  "the first)")
      ->type_name("N")
      ->check(CLI::Range(1, kMaxRank).description(""));
  command.add_option("--eps", setting.eps, "Added to the variance")
      ->type_name("X")
      ->check(CLI::NonNegativeNumber.description(""))
      ->capture_default_str();
  CLI::Option* train =
      command.add_flag("--train{true}", setting.training, "Statistics of x (default)");
  command
      .add_flag("--eval{false}", setting.training,
                "Running statistics; batch_norm and instance_norm")
      ->excludes(train);
  command.add_option("--size", setting.size, "Of local_response_norm's window")
      ->type_name("N")
      ->check(check_count)
      ->capture_default_str();
  for (const auto& [name, value] :
       {std::pair("--alpha", &setting.alpha), {"--beta", &setting.beta}, {"--k", &setting.k}}) {
    command.add_option(name, *value, "Of local_response_norm")
        ->type_name("X")
        ->check(CLI::NonNegativeNumber.description(""))
        ->capture_default_str();
  }
}

}  // namespace

void add_explain(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("explain", "Derive a normalization's backward step by step, in numbers");
  const auto o = std::make_shared<ExplainOptions>();
  std::vector<std::string> names(explain::kLayerNames.begin(), explain::kLayerNames.end());
  names.emplace_back(kNorms);
  command->add_option("NAME", o->layer, "The layer, or norms: all side by side, as a page")
      ->required()
      ->check(CLI::IsMember(names));
  CLI::Option* shape =
      command->add_option("--shape", o->shape, "Of x: N,C or N,C,H,W, for example 2,4,3")
          ->type_name("N,C,...")
          ->check(check_shape);
  add_setting_options(*command, o->setting);
  command->add_option("--values", o->values, "Take x from this npy file")
      ->type_name("FILE")
      ->excludes(shape);
  command->add_option("--seed", o->seed, "Of what is not given")
      ->type_name("N")
      ->check(check_seed)
      ->capture_default_str();
  command->add_option("--markdown", o->markdown, "Write the same as Markdown, too")
      ->type_name("FILE");
  command->add_option("--html", o->html, "Write a lesson to be read in a browser, too")
      ->type_name("FILE");
  command->add_option("--json", o->json, "Write all numbers as JSON, too")->type_name("FILE");
  command->callback([o, &action] { action = [o] { return run_explain(*o); }; });
}

}  // namespace gradus::cli
