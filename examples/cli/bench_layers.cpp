#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "core/launch.h"
#include "examples/cli/autotune_run.h"
#include "examples/cli/commands.h"
#include "examples/cli/layer_times.h"
#include "examples/cli/option_checks.h"
#include "examples/cli/run_setup.h"
#include "nn/compare/roofs.h"
#include "nn/io/atomic_file.h"

namespace gradus::cli {
namespace {

// Above this a tensor does not fit any cache, and cold is all there is.
constexpr int64_t kLargeBytes = 100 << 20;

struct LayersOptions : DeviceOptions {
  AutotuneOptions autotune;
  std::vector<std::string> layers;
  std::string pattern;
  std::vector<std::string> dtypes{"f32", "bf16"};
  bool cold = false;
  bool warm = false;
  int repeats = 15;
  std::string json;
};

std::vector<OpCase> benchmark_cases(const std::string& op, const std::regex& pattern) {
  std::vector<OpCase> cases = cases_of(op);
  std::erase_if(cases, [&](const OpCase& one) {
    return !one.benchmark || !std::regex_search(one.name, pattern);
  });
  return cases;
}

std::vector<std::string> asked_for(const LayersOptions& o) {
  return o.layers.empty() ? ops_with_cases() : o.layers;
}

std::string check_pattern(const std::string& text) {
  try {
    std::regex{text};
    return {};
  } catch (const std::regex_error&) {
    return "not a regular expression: " + text;
  }
}

// GB/s, and what part that is of a copy.
struct Rate {
  double gb_per_s, share;
};

Rate rate_of(const Timing& timing, double copy) {
  const double gb_per_s = 1e-9 * static_cast<double>(timing.bytes) / timing.seconds;
  return {gb_per_s, gb_per_s / copy};
}

void print_side(const Timing& timing, double copy) {
  if (timing.seconds == 0) return;
  const Rate rate = rate_of(timing, copy);
  fmt::print("  {:9.4f} {:6.0f} {:5.1f}", 1e3 * timing.seconds, rate.gb_per_s, 100 * rate.share);
}

nlohmann::ordered_json to_json(const Timing& timing, double copy) {
  nlohmann::ordered_json side{{"launches", timing.launches}, {"bytes", timing.bytes}};
  if (timing.seconds > 0) {
    const Rate rate = rate_of(timing, copy);
    side.update({{"ms", 1e3 * timing.seconds}, {"gb_per_s", rate.gb_per_s}, {"share", rate.share}});
  }
  return side;
}

// Measures, prints and returns one row.
nlohmann::ordered_json measure(const std::string& op, const OpCase& op_case, DType dtype,
                               Device device, bool cold, double copy, int repeats) {
  const LayerTiming times = time_case(op_case, dtype, device, cold, repeats);
  const std::string shape = to_string(op_case.inputs[0].shape);
  fmt::print("{:<40} {:<18} {:<5} {:<5}", op + " " + op_case.name, shape, to_string(dtype),
             cold ? "cold" : "warm");
  print_side(times.forward, copy);
  if (times.backward) print_side(*times.backward, copy);
  fmt::print("\n");
  std::fflush(stdout);
  nlohmann::ordered_json row{{"layer", op},    {"case", op_case.name},
                             {"shape", shape}, {"dtype", to_string(dtype)},
                             {"cold", cold},   {"forward", to_json(times.forward, copy)}};
  if (times.backward) row["backward"] = to_json(*times.backward, copy);
  return row;
}

int bench_layers(const LayersOptions& o) {
  check_can_be_created("--json", o.json);
  const Device device = open_device(o);
  const bool gpu = device.type == DeviceType::cuda;
  const double copy =
      o.repeats > 0 ? copy_bandwidth(device, gpu ? 1 << 30 : 1 << 28, o.repeats) : 0;
  fmt::print("{}", describe(device));
  if (copy > 0) fmt::print("; copy {:.0f} GB/s", copy);
  fmt::print("\nms, GB/s at the fewest bytes, % of a copy's speed\n");
  fmt::print("{:<40} {:<18} {:<5} {:<5}  {:>9} {:>6} {:>5}  {:>9} {:>6} {:>5}\n", "", "x", "dtype",
             "", "forward", "GB/s", "%", "backward", "GB/s", "%");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const std::regex pattern(o.pattern);
  for (const std::string& op : asked_for(o)) {
    for (const OpCase& op_case : benchmark_cases(op, pattern)) {
      for (const std::string& name : o.dtypes) {
        const DType dtype = parse_dtype(name);
        for (const bool cold : {true, false}) {
          const bool large = input_bytes(op_case, dtype) > kLargeBytes;
          const bool wanted = cold ? (o.cold || !o.warm) : !large && (o.warm || !o.cold);
          if (!wanted) continue;
          rows.push_back(measure(op, op_case, dtype, device, cold, copy, o.repeats));
        }
      }
    }
  }
  check(!rows.empty(), "bench", "--warm leaves nothing: no case that is asked for fits a cache");
  if (!o.json.empty()) {
    const nlohmann::ordered_json result{
        {"schema", 1}, {"device", describe(device)}, {"copy_gb_per_s", copy}, {"rows", rows}};
    nn::write_atomically("bench", o.json, result.dump(1) + "\n");
  }
  finish_output();
  return 0;
}

}  // namespace

void add_bench_layers(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "layers",
      "Time each layer, forward and backward: ms, GB/s at the fewest bytes, share of a copy");
  const auto o = std::make_shared<LayersOptions>();
  add_device_options(*command, *o);
  add_autotune_options(*command, o->autotune);
  command
      ->add_option("--layer", o->layers,
                   "Only these ops, such as activation (default: all); may be repeated")
      ->type_name("NAME")
      ->transform(CLI::IsMember(ops_with_cases(), CLI::ignore_case, CLI::ignore_underscore))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option("--case", o->pattern,
                   "Only cases in whose name this regular expression matches: ^silu_ picks that "
                   "function of activation")
      ->type_name("PATTERN")
      ->check(CLI::Validator(check_pattern, ""));
  command->add_option("--dtype", o->dtypes, "Of the values, separated by commas")
      ->type_name("NAME")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "f64", "f16", "bf16"}))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  CLI::Option* cold =
      command->add_flag("--cold", o->cold, "Only with operands in memory, not in a cache");
  command->add_flag("--warm", o->warm, "Only with the same operands again and again")
      ->excludes(cold);
  command
      ->add_option("--repeats", o->repeats,
                   "Measurements, of which the median counts; 0 runs each case once, untimed, for "
                   "a profiler")
      ->type_name("N")
      ->transform(integer(0, 100000))
      ->capture_default_str();
  command->add_option("--json", o->json, "Write the rows to this file, too")
      ->type_name("FILE")
      ->check(check_name);
  command->callback([o, &action] {
    const std::regex pattern(o->pattern);
    if (std::ranges::all_of(asked_for(*o), [&](const std::string& op) {
          return benchmark_cases(op, pattern).empty();
        })) {
      throw CLI::ValidationError("--case", fmt::format("no case has '{}' in its name", o->pattern));
    }
    check_files_differ({{"--json", o->json}, {"--autotune", o->autotune.path}}, {});
    action = [o] { return with_autotune(o->autotune, [&] { return bench_layers(*o); }); };
  });
}

}  // namespace gradus::cli
