#include "examples/cli/run_setup.h"

#include <fmt/core.h>

#include "autograd/ops/activation.h"
#include "core/error.h"
#include "core/launch.h"
#include "cpu/context.h"
#include "cuda/context.h"
#include "examples/cli/option_checks.h"
#include "nn/init.h"
#include "nn/optim/muon.h"
#include "nn/optim/sgd.h"

namespace gradus::cli {

namespace {

std::string check_device(const std::string& text) {
  try {
    if (text != "auto") parse_device(text);
    return "";
  } catch (const Error&) {
    return fmt::format("expected auto, cpu, cuda or cuda:N, got '{}'", text);
  }
}

}  // namespace

void add_threads_option(CLI::App& command, DeviceOptions& options) {
  command
      .add_option("--threads", options.threads,
                  "CPU threads, 1 to 256; results do not depend on it (default: GRADUS_THREADS of "
                  "the environment, else all)")
      ->type_name("N")
      ->transform(integer(1, 256));
}

void add_device_options(CLI::App& command, DeviceOptions& options) {
  command
      .add_option("--device", options.device, "auto (a GPU if there is one), cpu, cuda or cuda:N")
      ->type_name("DEVICE")
      ->check(check_device)
      ->capture_default_str();
  add_threads_option(command, options);
}

void add_run_options(CLI::App& command, RunOptions& options) {
  add_device_options(command, options);
  command.add_option("--model", options.model, "The network")
      ->type_name("NAME")
      ->check(CLI::IsMember(nn::model_names()))
      ->capture_default_str();
  add_network_options(command, options);
  command
      .add_option("--precision", options.precision,
                  "Arithmetic of products and convolutions: f32, or tf32 (faster, GPU only)")
      ->type_name("NAME")
      ->check(CLI::IsMember({"f32", "tf32"}))
      ->capture_default_str();
}

void add_network_options(CLI::App& command, RunOptions& options) {
  command
      .add_option("--norm", options.norm,
                  "What evens out the values after each convolution: batch (each channel, over the "
                  "whole batch), group (groups of channels of each image), layer (each image), "
                  "instance (each channel of each image), rms (each image, its mean left in), lrn "
                  "(each channel, by its neighbours) or none")
      ->type_name("NAME")
      ->check(CLI::IsMember(nn::norm_names()))
      ->capture_default_str();
  command.add_option("--activation", options.activation, "The bend between two layers")
      ->type_name("NAME")
      ->check(CLI::IsMember(activation_names()))
      ->capture_default_str();
  command
      .add_option("--optimizer", options.optimizer,
                  "How weights follow their gradients: sgd (momentum 0.9, Nesterov, weight decay "
                  "5e-4), adam, adamw (weight decay 0.01) or muon (for the inner filters and "
                  "matrices; adamw at a tenth of the rate for the rest)")
      ->type_name("NAME")
      ->check(CLI::IsMember({"sgd", "adam", "adamw", "muon"}))
      ->capture_default_str();
  command.add_option("--batch-size", options.batch_size, "Images per step")
      ->type_name("N")
      ->transform(integer(1))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of the initial weights and the order of images")
      ->type_name("N")
      ->transform(integer(0, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
}

Device open_device(const DeviceOptions& options) {
  if (options.threads > 0) cpu().set_threads(options.threads);
  Device device = kCpu;
  if (options.device != "auto") {
    device = parse_device(options.device);
  } else if constexpr (GRADUS_HAS_CUDA) {
    if (!cuda_devices().empty()) device = kCuda;
  }
  with_backend(device, [](auto&) {});  // throws if it cannot be used
  return device;
}

std::string describe(Device device) {
  if constexpr (GRADUS_HAS_CUDA) {
    if (device.type == DeviceType::cuda) {
      return fmt::format("{}: {}", to_string(device), cuda(device.index).info().name);
    }
  }
  const int threads = cpu().threads();
  return fmt::format("cpu: {}, {} thread{}", to_string(cpu().isa()), threads,
                     threads == 1 ? "" : "s");
}

nn::Precision precision_of(const RunOptions& options, Device device) {
  if (options.precision == "f32") return {};
  check(device.type == DeviceType::cuda, "precision", "tf32 needs a GPU, got device ", device);
  return {.matmul = MatmulPrecision::tf32};
}

nn::Sequential make_network(const RunOptions& options, int64_t channels, int64_t height,
                            int64_t width, int64_t classes, Device device) {
  nn::manual_seed(options.seed);
  nn::Sequential network = nn::make_model(options.model, {.channels = channels,
                                                          .height = height,
                                                          .width = width,
                                                          .classes = classes,
                                                          .norm = options.norm,
                                                          .activation = options.activation});
  network.to(device);
  return network;
}

double default_lr(const std::string& optimizer) {
  if (optimizer == "sgd") return 0.1;
  return optimizer == "muon" ? 0.02 : 0.002;
}

std::unique_ptr<nn::Optimizer> make_optimizer(const std::string& name, nn::Module& network,
                                              double lr) {
  if (name == "adam") {
    return std::make_unique<nn::Adam>(network.named_parameters(), nn::AdamOptions{.lr = lr});
  }
  if (name == "adamw") {
    return std::make_unique<nn::AdamW>(network.named_parameters(), nn::AdamWOptions{.lr = lr});
  }
  if (name == "muon") {
    return std::make_unique<nn::Muon>(nn::split_for_muon(network),
                                      nn::MuonOptions{.lr = lr, .weight_decay = 0.01},
                                      nn::AdamWOptions{.lr = lr / 10});
  }
  return std::make_unique<nn::SGD>(
      network.named_parameters(),
      nn::SGDOptions{.lr = lr, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true});
}

}  // namespace gradus::cli
