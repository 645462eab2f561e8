// `gradus explain`: a normalization's backward, derived step by step in numbers.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include "autograd/explain/derivation.h"
#include "core/error.h"
#include "examples/cli/commands.h"
#include "examples/cli/explain_arrays.h"
#include "examples/cli/explain_json.h"
#include "examples/cli/explain_text.h"
#include "examples/cli/lesson_html.h"
#include "examples/cli/option_checks.h"
#include "examples/cli/text_page.h"
#include "nn/io/atomic_file.h"

namespace gradus::cli {
namespace {

using explain::Inputs;
using explain::Setting;

struct ExplainOptions {
  std::string layer;
  std::string shape;
  Setting setting;
  std::set<std::string> given;  // which of the setting's options
  std::vector<std::string> values, check;
  uint64_t seed = explain::kExampleSeed;
  std::string markdown, json, html, save;
};

std::string check_shape(const std::string& text) {
  if (parse_shape(text).value_or(Shape()).rank() >= 2) return "";
  return fmt::format("expected 2 to {} extents such as 2,4,3, got '{}'", kMaxRank, text);
}

Inputs make_inputs(ExplainOptions& o) {
  if (!o.values.empty()) {
    const Arrays arrays = read_arrays(o.values, o.setting.layer);
    take_setting(arrays, o.given, o.setting);
    if (arrays.contains("x")) explain::check_derivable(o.setting, arrays.at("x").shape());
    return explain::complete(o.setting, inputs_of(arrays, o.setting), o.seed);
  }
  const std::optional<Shape> given = parse_shape(o.shape);
  const Shape shape = given ? *given : explain::default_shape(o.setting);
  explain::check_derivable(o.setting, shape);
  return explain::draw_inputs(o.setting, shape, o.seed);
}

// Runs `write` for a file that was asked for and says so. Files are written before the text, of
// which a reader such as head may not want all.
void write_file(const std::string& path, std::string& written, const auto& write) {
  if (path.empty()) return;
  write(path);
  written += concat("wrote ", path, "\n");
}

// Of all norms side by side there is a page only.
constexpr const char* kNorms = "norms";

int run_norms(const ExplainOptions& o) {
  write_norms_html(o.html, o.seed);
  fmt::print("wrote {}\n", o.html);
  finish_output();
  return 0;
}

// Says what neither the files nor the command line give, and what both do; the verdict rests on it.
void print_defaults(const ExplainOptions& o, const Arrays& arrays) {
  const Setting& s = o.setting;
  const auto say = [&](bool has, const char* name, const auto& value) {
    if (has && !arrays.contains(name) && !o.given.contains(name))
      fmt::print("{} is not in the files: taken as {}\n", name, value);
  };
  say(s.is_norm(), "gamma", 1);
  say(s.is_norm(), "eps", s.eps);
  say(s.layer == explain::Layer::group_norm, "groups", s.groups);
  say(s.is_row_norm() && arrays.at("x").rank() > 2, "axes", "all but the first");
  say(s.has_running(), "training", s.training);
  const bool response = s.layer == explain::Layer::local_response_norm;
  say(response, "size", s.size);
  say(response, "alpha", s.alpha);
  say(response, "beta", s.beta);
  say(response, "k", s.k);
  for (const std::string& name : o.given)
    if (arrays.contains(name)) fmt::print("{} is taken from the option, not the files\n", name);
}

// Whether rows over so many last axes make the gradients right. Those of rows of one element say
// nothing: their dx is 0 whatever one wrote.
bool are_right_with(Setting setting, int axes, const Arrays& arrays) {
  setting.axes = axes;
  if (explain::layout_of(setting, arrays.at("x").shape()).m == 1) return false;
  try {
    return explain::diagnose(setting, inputs_of(arrays, setting), claim_of(arrays)).right();
  } catch (const Error& error) {  // without eps, a row of equal elements has no gradient
    if (error.code() != ErrorCode::invalid_argument) throw;
    return false;
  }
}

// With how many last axes as a row the gradients are right; 0 where none. It is open where neither
// an option nor the shape of a parameter says it.
int axes_that_fit(const ExplainOptions& o, const Arrays& arrays) {
  const int rank = arrays.at("x").rank();
  bool open = o.setting.is_row_norm() && rank > 2 && o.setting.axes == 0;
  for (const char* name : {"gamma", "beta", "dgamma", "dbeta"})
    open = open && !arrays.contains(name);
  for (int axes = 1; open && axes <= rank; ++axes)
    if (are_right_with(o.setting, axes, arrays)) return axes;
  return 0;
}

// Judges the gradients of the files; the exit status says whether they are right.
int run_check(ExplainOptions o) {
  const Arrays arrays = read_arrays(o.check, o.setting.layer);
  take_setting(arrays, o.given, o.setting);
  const explain::Diagnosis diagnosis =
      explain::diagnose(o.setting, inputs_of(arrays, o.setting), claim_of(arrays));
  const bool proposes = diagnosis.proposal.x.defined();
  std::string written;
  if (proposes) {
    write_file(o.save, written,
               [&](const std::string& path) { save_inputs(path, o.setting, diagnosis.proposal); });
  }
  print_defaults(o, arrays);
  std::istringstream text(diagnosis.text());
  for (std::string line; std::getline(text, line);) fmt::print("{}\n", wrapped(line, 80, "  "));
  const int axes = diagnosis.right() ? 0 : axes_that_fit(o, arrays);
  if (axes > 0) fmt::print("It is right with --axes {}.\n", axes);
  if (proposes && (diagnosis.right() || !diagnosis.is_named()) && o.save.empty())
    fmt::print("--save FILE writes one.\n");
  const bool unknown = std::ranges::any_of(diagnosis.findings, [](const explain::Finding& one) {
    return one.slip == explain::Slip::unknown;
  });
  if (unknown && arrays.at("x").numel() <= explain::kMostDerived)
    fmt::print("--values in place of --check shows each step of the right one in numbers.\n");
  fmt::print("{}", written);
  finish_output();
  check(o.save.empty() || proposes, "explain",
        "no other input shows more: there is none to propose, and --save wrote nothing");
  return diagnosis.right() ? 0 : kFailed;
}

int run_explain(ExplainOptions o) {
  if (o.layer == kNorms) return run_norms(o);
  o.setting.layer = explain::parse_layer(o.layer);
  if (!o.check.empty()) return run_check(o);
  const Inputs inputs = make_inputs(o);
  explain::check_variance(o.setting, inputs);
  const explain::Derivation derivation = explain::derive(o.setting, inputs);
  std::string written;
  write_file(o.markdown, written, [&](const std::string& path) {
    nn::write_atomically("explain", path, explain_text(derivation, TextStyle::markdown));
  });
  write_file(o.json, written, [&](const std::string& path) {
    nn::write_atomically("explain", path, explain_json(derivation).dump() + "\n");
  });
  write_file(o.save, written,
             [&](const std::string& path) { save_inputs(path, o.setting, inputs); });
  write_file(o.html, written,
             [&](const std::string& path) { write_lesson_html(path, o.setting, inputs, o.seed); });
  fmt::print("{}", explain_text(derivation, TextStyle::terminal));
  if (!written.empty()) fmt::print("\n{}", written);
  finish_output();
  return 0;
}

void add_setting_options(CLI::App& command, Setting& setting) {
  command.add_option("--groups", setting.groups, "Of group_norm")
      ->type_name("G")
      ->transform(integer(1))
      ->capture_default_str();
  command
      .add_option("--axes", setting.axes,
                  "Of layer_norm and rms_norm: a set runs over so many last axes (default: all but "
                  "the first, so [B,T,C] needs --axes 1)")
      ->type_name("N")
      ->transform(integer(1, kMaxRank));
  command.add_option("--eps", setting.eps, "Added to the variance (rms_norm: to the mean square)")
      ->type_name("X")
      ->check(check_non_negative_real)
      ->capture_default_str();
  CLI::Option* train = command.add_flag_callback(
      "--train", [&setting] { setting.training = true; }, "Statistics of x (default)");
  command
      .add_flag_callback(
          "--eval", [&setting] { setting.training = false; },
          "Running statistics; batch_norm and instance_norm")
      ->excludes(train);
  command.add_option("--size", setting.size, "Of local_response_norm's window")
      ->type_name("N")
      ->transform(integer(1, kMostOfSetting))
      ->capture_default_str();
  for (const auto& [name, value] :
       {std::pair("--alpha", &setting.alpha), {"--beta", &setting.beta}, {"--k", &setting.k}}) {
    command.add_option(name, *value, "Of local_response_norm")
        ->type_name("X")
        ->check(check_non_negative_real)
        ->capture_default_str();
  }
}

CLI::Option* add_files(CLI::App& command, const char* name, std::vector<std::string>& files,
                       const char* text) {
  return command.add_option(name, files, text)
      ->type_name("FILE")
      ->check(check_name)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

// What is explained, or judged; returns --check.
CLI::Option* add_input_options(CLI::App& command, ExplainOptions& o) {
  CLI::Option* shape =
      command
          .add_option("--shape", o.shape,
                      "Of x: N,C,H,W or another of 2 to 5 axes, such as 2,4,3 (softmax2d: 3 to 5, "
                      "layer_norm and rms_norm: 2 to 8)")
          ->type_name("N,C,...")
          ->check(check_shape);
  command.add_option("--seed", o.seed, "Of what is not given")
      ->type_name("N")
      ->transform(integer(0, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
  CLI::Option* values =
      add_files(command, "--values", o.values,
                "Take x, and dy, gamma, ... if they are there, from an npz file, or an array from "
                "NAME=FILE.npy (FILE.npy: x); may be repeated")
          ->excludes(shape);
  return add_files(command, "--check", o.check,
                   "Say what is wrong with the gradients dx, dgamma, dbeta of such files, which "
                   "hold x and dy, too; may be repeated: --check in.npz --check dx=dx.npy; a gamma "
                   "that is not in them is 1, and the setting is the options', as is printed; exit "
                   "status 0 if all is right, 1 if anything is not or cannot be told, and after an "
                   "error, which is on standard error")
      ->excludes(shape)
      ->excludes(values);
}

// Options that would do nothing, and files that would be written over.
void check_together(const CLI::App& command, const ExplainOptions& o) {
  if (o.layer == kNorms) {
    refuse(command,
           {"--shape", "--values", "--check", "--groups", "--axes", "--eps", "--train", "--eval",
            "--size", "--alpha", "--beta", "--k", "--save", "--markdown", "--json"},
           "is for one layer, not for the page of all");
    if (o.html.empty()) throw CLI::ValidationError("norms", "is a page: give --html FILE");
    return;
  }
  const Setting setting{.layer = explain::parse_layer(o.layer)};
  const std::string why = concat("is not for ", setting.layer);
  if (setting.layer != explain::Layer::group_norm) refuse(command, {"--groups"}, why);
  if (!setting.is_row_norm()) refuse(command, {"--axes"}, why);
  if (!setting.is_norm()) refuse(command, {"--eps"}, why);
  if (!setting.has_running()) refuse(command, {"--eval"}, why);
  if (setting.layer != explain::Layer::local_response_norm) {
    refuse(command, {"--size", "--alpha", "--beta", "--k"}, why);
  }
  if (!o.check.empty()) refuse(command, {"--seed"}, "draws nothing with --check");
  std::vector<NamedFile> read;
  for (const auto& [option, files] : {std::pair("--values", &o.values), {"--check", &o.check}}) {
    for (const std::string& file : *files) read.emplace_back(option, path_of(file));
  }
  check_files_differ(
      {{"--save", o.save}, {"--markdown", o.markdown}, {"--html", o.html}, {"--json", o.json}},
      read);
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
      ->transform(CLI::IsMember(names, CLI::ignore_case, CLI::ignore_underscore));
  add_setting_options(*command, o->setting);
  CLI::Option* check = add_input_options(*command, *o);
  command
      ->add_option("--save", o->save,
                   "Write the input as npz, to try a backward on; with --check the one that it "
                   "proposes")
      ->type_name("FILE")
      ->check(check_name);
  const auto add_output = [&](const char* name, std::string& file, const char* text) {
    command->add_option(name, file, text)->type_name("FILE")->check(check_name)->excludes(check);
  };
  add_output("--markdown", o->markdown, "Write the same as Markdown, too");
  add_output("--html", o->html, "Write a lesson to be read in a browser, too");
  add_output("--json", o->json, "Write all numbers as JSON, too");
  command->callback([o, command, &action] {
    for (const char* name : {"groups", "axes", "eps", "size", "alpha", "beta", "k"})
      if (command->count(concat("--", name)) > 0) o->given.insert(name);
    if (command->count("--train") + command->count("--eval") > 0) o->given.insert("training");
    check_together(*command, *o);
    action = [o] { return run_explain(*o); };
  });
}

}  // namespace gradus::cli
