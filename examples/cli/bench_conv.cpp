// `gradus bench conv`: conv2d in its three directions, against what the device could do at best.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/generator.h"
#include "core/launch.h"
#include "core/ops/conv2d.h"
#include "core/ops/matmul.h"
#include "examples/cli/autotune_run.h"
#include "examples/cli/commands.h"
#include "examples/cli/option_checks.h"
#include "examples/cli/run_setup.h"
#include "nn/compare/roofs.h"
#include "nn/compare/timer.h"
#include "nn/io/atomic_file.h"

namespace gradus::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ConvShape {
  int64_t n, c, k, side;
  int64_t kernel = 3, stride = 1, groups = 1;

  Window window() const { return {kernel, stride, kernel / 2}; }
  Shape x() const { return {n, c, side, side}; }
  Shape w() const { return {k, c / groups, kernel, kernel}; }
  Shape y() const { return {n, k, window().positions(0, side), window().positions(1, side)}; }
  std::string name() const {
    std::string text = fmt::format("{} {}->{} {}x{} k{}", n, c, k, side, side, kernel);
    if (stride > 1) text += fmt::format(" s{}", stride);
    if (groups > 1) text += fmt::format(" g{}", groups);
    return text;
  }
};

// Those of small_cnn at batch 128 and 512, then larger ones, a strided and a depthwise one.
const ConvShape kShapes[] = {
    {128, 1, 32, 28},       {128, 32, 32, 28},         {128, 32, 64, 14},
    {128, 64, 64, 14},      {512, 1, 32, 28},          {512, 32, 32, 28},
    {512, 32, 64, 14},      {512, 64, 64, 14},         {256, 3, 64, 32},
    {256, 64, 64, 32},      {256, 128, 128, 16},       {256, 256, 256, 8},
    {256, 256, 512, 16, 1}, {256, 128, 128, 32, 3, 2}, {256, 128, 128, 32, 3, 1, 128},
};

// A dtype and how f32 is multiplied.
struct Mode {
  std::string name;
  DType dtype;
  bool tf32;
};
Mode parse_mode(const std::string& name) {
  if (name == "tf32") return {name, DType::f32, true};
  return {name, parse_dtype(name), false};
}

struct ConvOptions : DeviceOptions {
  AutotuneOptions autotune;
  std::string filter;
  std::vector<std::string> modes;
  std::string layout = "nhwc";
  int repeats = 15;
  std::string json;
};

bool is_asked(const ConvOptions& o, const ConvShape& shape) {
  return shape.name().find(o.filter) != std::string::npos;
}

// The best that the device does elsewhere: GB/s of a copy, TFLOP/s of a large matrix product.
struct Roof {
  double gb_per_s = 0, tflop_per_s = 0;

  double share(double us, int64_t bytes, int64_t flops) const {
    const double memory = 1e-3 * static_cast<double>(bytes) / gb_per_s;
    return std::max(memory, 1e-6 * static_cast<double>(flops) / tflop_per_s) / us;
  }
};

double product_rate(Device device, const Mode& mode, int repeats) {
  const int64_t side = device.type == DeviceType::cuda ? 8192 : 1024;
  const TensorOptions options{.dtype = mode.dtype, .device = device};
  const Tensor a = randn({side, side}, options), b = randn({side, side}, options);
  const Tensor y = Tensor::empty({side, side}, options);
  const Matmul product{.a = a.raw(), .b = b.raw(), .y = y.raw(), .tf32 = mode.tf32};
  const double seconds = time_captured(
      device, [&] { launch(product); }, 1, repeats);
  return 2e-12 * std::pow(static_cast<double>(side), 3) / seconds;
}

// Whether a launch writes every byte of `out` and the same ones again.
template <class Args>
bool repeats_bits(const Args& args, Tensor out) {
  Tensor results[2];
  for (const int turn : {0, 1}) {
    out.fill_(turn == 0 ? NAN : 0.0);
    launch(args);
    results[turn] = out.clone().cpu();
  }
  return std::memcmp(results[0].raw().data, results[1].raw().data,
                     static_cast<size_t>(out.nbytes())) == 0;
}

template <class Args>
double time_us(const Args& args, Device device, int repeats) {
  constexpr int kCalls = 20;  // in one graph
  const int calls = device.type == DeviceType::cuda ? kCalls : 1;
  const auto step = [&] {
    for (int i = 0; i < calls; ++i) launch(args);
  };
  return 1e6 * time_captured(device, step, calls, repeats);
}

// Bytes of the copies between layouts that a launch makes.
template <class Args>
int64_t layout_bytes(const Args& args) {
  const Trace trace;
  launch(args);
  int64_t bytes = 0;
  for (const TraceRecord& record : trace.records()) {
    if (record.part) bytes += record.bytes;
  }
  return bytes;
}

// Measures one direction, adds it to the row and prints it; returns whether its bits repeat.
// channels_last: the same of such tensors, which NCHW ones are compared with; may be null.
template <class Args>
bool measure(const char* name, const Args& args, const Args* channels_last, const Tensor& out,
             const Roof& roof, int repeats, Json& row) {
  const bool same = repeats_bits(args, out);
  const double us = time_us(args, out.device(), repeats);
  const double tflop_per_s = 1e-6 * static_cast<double>(args.flops()) / us;
  const double share = roof.share(us, args.bytes(), args.flops());
  row[name] = {{"us", us}, {"tflop_per_s", tflop_per_s}, {"share", share}, {"repeats", same}};
  fmt::print("  {:9.1f} {:7.2f} {:4.0f}{}", us, tflop_per_s, 100 * share, same ? ' ' : '!');
  if (channels_last != nullptr) {
    const double more = us - time_us(*channels_last, out.device(), repeats);
    row[name]["beyond_nhwc_us"] = more;
    const int64_t copied = layout_bytes(args);
    if (copied > 0) row[name]["layout_bytes"] = copied;
    fmt::print(" {:+8.1f}", more);
  }
  std::fflush(stdout);
  return same;
}

// The tensors of one shape in one format, and what is launched with them.
struct Operands {
  Tensor x, w, dy, bias, y, dx, dw, dbias;
  Conv2dForward forward, with_bias;
  Conv2dBackwardInput dgrad;
  Conv2dBackwardWeight wgrad, with_dbias;

  Operands(const ConvShape& s, const Mode& mode, Device device, MemoryFormat format) {
    const TensorOptions image{.dtype = mode.dtype, .device = device, .format = format};
    const TensorOptions flat{.dtype = mode.dtype, .device = device};
    x = randn(s.x(), image), w = randn(s.w(), flat), dy = randn(s.y(), image);
    bias = randn({s.k}, {.dtype = acc_dtype(mode.dtype), .device = device});
    y = Tensor::empty(s.y(), image), dx = Tensor::empty(s.x(), image);
    dw = Tensor::empty(s.w(), flat);
    const Window window = s.window();
    forward = {x.raw(), w.raw(), {}, y.raw(), window, s.groups, mode.tf32};
    with_bias = forward;
    with_bias.bias = bias.raw();
    dgrad = {dy.raw(), w.raw(), dx.raw(), window, s.groups, mode.tf32};
    wgrad = {x.raw(), dy.raw(), dw.raw(), {}, window, s.groups, mode.tf32};
    dbias = empty_like(bias);
    with_dbias = wgrad;
    with_dbias.dbias = dbias.raw();
  }
};

// All of one shape in one mode.
bool measure_row(const ConvShape& s, const Mode& mode, Device device, const Roof& roof,
                 const ConvOptions& o, Json& rows) {
  const bool nchw = o.layout == "nchw";
  const Operands own(s, mode, device,
                     nchw ? MemoryFormat::contiguous : MemoryFormat::channels_last);
  std::optional<Operands> last;
  if (nchw) last.emplace(s, mode, device, MemoryFormat::channels_last);
  Json row{{"shape", s.name()},  {"n", s.n},           {"c", s.c},           {"k", s.k},
           {"side", s.side},     {"kernel", s.kernel}, {"stride", s.stride}, {"groups", s.groups},
           {"dtype", mode.name}, {"layout", o.layout}};
  fmt::print("{:<32} {:<5}", s.name(), mode.name);
  bool same = true;
  const auto add = [&](const char* name, auto Operands::*args, const Tensor& out) {
    const auto* twin = last ? &((*last).*args) : nullptr;
    same = measure(name, own.*args, twin, out, roof, o.repeats, row) && same;
  };
  add("forward", &Operands::forward, own.y);
  add("forward_bias", &Operands::with_bias, own.y);
  add("dgrad", &Operands::dgrad, own.dx);
  add("wgrad", &Operands::wgrad, own.dw);
  add("wgrad_dbias", &Operands::with_dbias, own.dbias);
  fmt::print("\n");
  rows.push_back(std::move(row));
  return same;
}

void print_head(Device device, double copy, const std::string& layout) {
  fmt::print("{}, {}; copy {:.0f} GB/s\n", describe(device), layout, copy);
  const bool nchw = layout == "nchw";
  fmt::print("us, TFLOP/s, % of the roof (copy or product); ! where a second run gave other bits");
  fmt::print("{}\n{:<38}", nchw ? "; us beyond channels-last" : "", "");
  for (const char* name : {"forward", "with bias", "dgrad", "wgrad", "and dbias"}) {
    fmt::print("  {:>9} {:>7} {:>4} {}", name, "TFLOP/s", "%", nchw ? "  beyond " : "");
  }
  fmt::print("\n");
}

int bench_conv(const ConvOptions& o) {
  check_can_be_created("--json", o.json);
  const Device device = open_device(o);
  const bool gpu = device.type == DeviceType::cuda;
  std::vector<std::string> names = o.modes;
  if (names.empty()) {
    names = gpu ? std::vector<std::string>{"bf16", "tf32", "f32"} : std::vector<std::string>{"f32"};
  }
  const bool tf32 = std::ranges::find(names, "tf32") != names.end();
  check(gpu || !tf32, "bench", "tf32 needs a GPU, got device ", device);
  Roof roof;
  roof.gb_per_s = copy_bandwidth(device, gpu ? 1 << 30 : 1 << 28, o.repeats);
  print_head(device, roof.gb_per_s, o.layout);
  Json rows = Json::array(), products;
  bool same = true;
  for (const std::string& name : names) {
    const Mode mode = parse_mode(name);
    roof.tflop_per_s = product_rate(device, mode, o.repeats);
    products[name] = roof.tflop_per_s;
    fmt::print("{}: a large matrix product does {:.1f} TFLOP/s\n", name, roof.tflop_per_s);
    for (const ConvShape& shape : kShapes) {
      if (!is_asked(o, shape)) continue;
      same = measure_row(shape, mode, device, roof, o, rows) && same;
    }
  }
  if (!o.json.empty()) {
    const Json result{{"schema", 1},
                      {"device", describe(device)},
                      {"copy_gb_per_s", roof.gb_per_s},
                      {"product_tflop_per_s", products},
                      {"rows", rows}};
    nn::write_atomically("bench", o.json, result.dump(1) + "\n");
  }
  finish_output();
  return same ? 0 : kFailed;
}

}  // namespace

void add_bench_conv(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "conv", "Time conv2d: forward, to the input, to the weights; fails where bits do not repeat");
  const auto o = std::make_shared<ConvOptions>();
  add_device_options(*command, *o);
  add_autotune_options(*command, o->autotune);
  command->add_option("--shape", o->filter, "Only shapes whose name has this in it")
      ->type_name("TEXT");
  command
      ->add_option("--dtype", o->modes,
                   "Of the values, separated by commas; tf32 is f32 that may be rounded (default: "
                   "bf16,tf32,f32 on a GPU, f32 on the CPU)")
      ->type_name("NAME")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "f16", "tf32", "f32", "f64"}))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--layout", o->layout, "Of images: nhwc (channels-last) or nchw")
      ->type_name("NAME")
      ->check(CLI::IsMember({"nhwc", "nchw"}))
      ->capture_default_str();
  command->add_option("--repeats", o->repeats, "Measurements, of which the median counts")
      ->type_name("N")
      ->transform(integer(1, 100000))
      ->capture_default_str();
  command->add_option("--json", o->json, "Write the rows to this file, too")
      ->type_name("FILE")
      ->check(check_name);
  command->callback([o, &action] {
    if (std::ranges::none_of(kShapes, [&](const ConvShape& shape) { return is_asked(*o, shape); }))
      throw CLI::ValidationError("--shape", fmt::format("none has '{}' in its name", o->filter));
    check_files_differ({{"--json", o->json}, {"--autotune", o->autotune.path}}, {});
    action = [o] { return with_autotune(o->autotune, [&] { return bench_conv(*o); }); };
  });
}

}  // namespace gradus::cli
