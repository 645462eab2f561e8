// `gradus compare`: the layers on the CPU and on CUDA, side by side.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "core/error.h"
#include "examples/cli/commands.h"
#include "examples/cli/compare_cases.h"
#include "examples/cli/compare_html.h"
#include "examples/cli/compare_options.h"
#include "examples/cli/compare_table.h"
#include "examples/cli/layer_times.h"
#include "examples/cli/option_checks.h"
#include "examples/cli/progress.h"
#include "nn/compare/compare.h"
#include "nn/compare/roofs.h"
#include "nn/io/atomic_file.h"
#include "nn/models.h"

namespace gradus::cli {
namespace {

constexpr const char* kInstead = "the CPU is held against its f64 and against finite differences";

// A large case as it is on a GPU; an eighth of its batch where only a CPU has to do it.
OpCase sized(const OpCase& op_case, bool gpu) {
  constexpr int64_t kEnough = 64;
  Shape shape = op_case.inputs.front().shape;
  if (!op_case.benchmark || gpu || shape.rank() < 2 || shape[0] < kEnough) return op_case;
  shape[0] /= 8;
  return resized(op_case, shape);
}

// A case that is there for its times, drawn on the device that it is timed on. It is not judged:
// small cases of the same function are.
CompareRow timed_row(const OpCase& op_case, DType dtype, const std::vector<CompareDevice>& devices,
                     int repeats) {
  CompareRow row{.layer = op_case.op,
                 .case_name = op_case.name,
                 .function = op_case.function,
                 .shape = op_case.inputs.front().shape,
                 .dtype = dtype,
                 .reduction = op_case.reduction};
  for (const CompareDevice& device : devices) {
    const LayerTiming timing =
        time_case(op_case, dtype, device.device, false, repeats, kRoofBlockSeconds);
    std::ranges::move(against_roofs(timing, dtype, device), std::back_inserter(row.times));
  }
  return row;
}

CompareReport compare_layers(const CompareCommand& o) {
  CompareReport report{.what = "layers", .seed = o.seed, .tolerance = o.tolerance};
  JudgeOptions judge{.tolerance = o.tolerance};
  judge.devices = compared_devices(report.missing, kInstead);
  const bool gpu = judge.devices.size() > 1;
  const auto [cases, left_out] =
      compared_cases({.layers = o.layers, .shape = o.shape, .timed = o.repeats > 0});
  if (!left_out.empty()) {
    report.missing.push_back(fmt::format("left out, since they take no x of {}: {}",
                                         concat(*o.shape), fmt::join(left_out, ", ")));
  }
  for (const Device device : judge.devices) {
    report.devices.push_back(o.repeats > 0 ? measure_roofs(device, o.dtypes)
                                           : CompareDevice{.device = device});
    report.devices.back().text = describe(device);
  }
  StatusLine status;
  size_t done = 0;
  for (const OpCase& op_case : cases) {
    status.show(fmt::format("{} of {}: {}", ++done, cases.size(), op_case.function));
    const OpCase one = sized(op_case, gpu);
    for (const DType dtype : o.dtypes) {
      if (one.benchmark) {
        report.rows.push_back(timed_row(one, dtype, report.devices, o.repeats));
        continue;
      }
      const ComparedLayer layer = layer_of(one, dtype, o.seed);
      judge.differences = dtype == o.dtypes.front();  // in f64 for all dtypes
      CompareRow& row = report.rows.emplace_back(judge_layer(layer, judge));
      if (o.repeats == 0 || !o.shape) continue;
      for (const CompareDevice& device : report.devices)
        std::ranges::move(times_of(layer, device, o.repeats), std::back_inserter(row.times));
    }
  }
  return report;
}

void write_files(const CompareCommand& o, const CompareReport& report) {
  const std::string json = to_json(report);
  if (!o.json.empty()) nn::write_atomically("compare", o.json, json);
  if (!o.html.empty()) write_compare_html(nlohmann::json::parse(json), o.html);
}

int run(const CompareCommand& o) {
  check_can_be_created("--json", o.json);
  check_can_be_created("--html", o.html);
  open_device({.device = "cpu", .threads = o.threads});
  const bool model = !o.network.empty();
  const CompareReport report = o.train ? compare_training(o)
                               : model ? compare_model(o)
                                       : compare_layers(o);
  const std::string text = o.train ? training_text(report) : to_text(report);
  try {
    write_files(o, report);  // first: a reader such as head may not want all of the text
  } catch (const Error&) {
    fmt::print("{}", text);  // took long to find out
    throw;
  }
  fmt::print("{}", text);
  finish_output();
  return report.ok() ? 0 : kFailed;
}

std::string check_dtypes(const std::string& text) {
  for (const char* known : {"f32", "f64", "f16", "bf16"}) {
    if (text == known) return "";
  }
  return fmt::format("expected f32, f64, f16 or bf16, got '{}'", text);
}

std::string check_shape(const std::string& text) {
  if (parse_shape(text)) return "";
  return fmt::format("expected up to {} sizes of 1 or more, separated by commas, got '{}'",
                     kMaxRank, text);
}

void add_options(CLI::App& command, CompareCommand& o, std::vector<std::string>& dtypes,
                 std::string& shape) {
  command.add_option("--layer", o.layers, "Only these (default: all); may be repeated")
      ->type_name("NAME")
      ->delimiter(',')
      ->transform(
          CLI::IsMember(layer_names(), CLI::ignore_case, CLI::ignore_underscore).description(""))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      .add_option(
          "--model", o.network,
          "The layers inside a network on a batch of real images: small_cnn, lenet or "
          "resnet8, new from the seed; or the file that `gradus train --resume FILE` wrote, "
          "which says its network and holds its weights")
      ->type_name("NAME|FILE")
      ->check(check_name);
  command.add_flag("--train", o.train,
                   "Lock-step training of the model (default: small_cnn): at each step every layer "
                   "starts on CUDA from the CPU's bits; stops where the two part");
  command.add_option("--steps", o.steps, "Steps of --train")
      ->type_name("N")
      ->transform(integer(1))
      ->capture_default_str();
  command
      .add_option(
          "--lr", o.lr,
          "Learning rate of --train, the same at all steps (default: a tenth of the largest "
          "of `gradus train`)")
      ->type_name("X")
      ->check(check_positive_real);
  add_network_options(command, o);
  command
      .add_option("--data", o.data,
                  "Folder of the model's images, Fashion-MNIST (default: where the Debian package "
                  "dataset-fashion-mnist puts them; without it, images drawn at random)")
      ->type_name("DIR")
      ->check(check_name);
  command
      .add_option("--dtype", dtypes,
                  "Of the values, separated by commas (default: f32,bf16; --train takes f32 only)")
      ->type_name("NAME")
      ->delimiter(',')
      ->check(check_dtypes)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      .add_option("--shape", shape,
                  "Of each layer's x, or of the model's batch of drawn images; sizes separated by "
                  "commas (default: many shapes)")
      ->type_name("N,C,H,W")
      ->check(check_shape);
  command
      .add_option("--tolerance", o.tolerance,
                  "Largest error as a share of a tensor's largest value or term (default: computed "
                  "from the dtype and the length of the sums)")
      ->type_name("X")
      ->check(check_positive_real);
  command.add_option("--repeats", o.repeats, "Measurements of each time; 0: no times")
      ->type_name("N")
      ->transform(integer(0, 1000))
      ->capture_default_str();
  add_threads_option(command, o);
  command.add_option("--json", o.json, "Write everything to this file: docs/compare.md says how")
      ->type_name("FILE")
      ->check(check_name);
  command.add_option("--html", o.html, "Write a page for a browser, which needs no network")
      ->type_name("FILE")
      ->check(check_name);
}

// Options that would do nothing, and files that would be written twice.
void check_together(const CLI::App& command, const CompareCommand& o) {
  const std::vector<std::string> names = nn::model_names();
  const bool network = o.train || !o.network.empty();
  const bool from_file = !o.network.empty() && std::ranges::find(names, o.network) == names.end();
  if (!o.train) refuse(command, {"--steps", "--lr", "--optimizer"}, "is for --train");
  if (!network) {
    refuse(command, {"--norm", "--activation", "--batch-size", "--data"},
           "is for --model and --train");
  }
  if (network) {
    refuse(command, {"--layer"}, "is for layers by themselves, not for those of a model");
  }
  if (o.train) refuse(command, {"--repeats"}, "lock-step training takes no times");
  if (o.train && o.dtypes != std::vector{DType::f32}) {
    throw CLI::ValidationError("--dtype", "lock-step training is in f32");
  }
  if (from_file) {
    refuse(command, {"--norm", "--activation"},
           fmt::format("the file '{}' says its own; the networks are {}", o.network,
                       fmt::join(names, ", ")));
  }
  if (network && o.shape) {
    refuse(command, {"--batch-size", "--data"}, "--shape says the batch, of drawn images");
    if (o.shape->rank() != 4) {
      throw CLI::ValidationError("--shape", "a model takes images, so four sizes: N,C,H,W");
    }
  }
  check_files_differ({{"--json", o.json}, {"--html", o.html}},
                     {{"--model", from_file ? o.network : ""}});
}

}  // namespace

void add_compare(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "compare", "Compare the layers on the CPU and on CUDA: errors, times, verdict");
  struct Parsed {
    CompareCommand options;
    std::vector<std::string> dtypes;
    std::string shape;
  };
  const auto parsed = std::make_shared<Parsed>();
  add_options(*command, parsed->options, parsed->dtypes, parsed->shape);
  command->footer(
      "Each layer gets the same bits on both devices and is held against the CPU in f64; without a "
      "GPU the CPU is also held against finite differences. The status is 0 when all is within its "
      "tolerance, else 1. docs/compare.md says how to read the table.\n"
      "Examples: gradus compare --layer group_norm --dtype f32,f16\n"
      "          gradus compare --model small_cnn --norm group\n"
      "          gradus compare --train --steps 200 --lr 0.05");
  command->callback([parsed, command, &action] {
    CompareCommand& o = parsed->options;
    for (const std::string& name : parsed->dtypes) {
      const DType dtype = parse_dtype(name);
      if (std::ranges::find(o.dtypes, dtype) == o.dtypes.end()) o.dtypes.push_back(dtype);
    }
    if (o.dtypes.empty()) o.dtypes = {DType::f32};
    if (parsed->dtypes.empty() && !o.train) o.dtypes.push_back(DType::bf16);
    o.shape = parse_shape(parsed->shape);
    check_together(*command, o);
    action = [parsed] { return run(parsed->options); };
  });
}

}  // namespace gradus::cli
