// What `train` and `bench` have in common: the options that describe a network on a device.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "core/device.h"
#include "nn/models.h"
#include "nn/optim/optimizer.h"
#include "nn/precision.h"

namespace gradus::cli {

struct DeviceOptions {
  std::string device = "auto";
  int threads = 0;  // 0: the context's own choice
};

struct RunOptions : DeviceOptions {
  std::string model = "small_cnn";
  std::string norm = "batch";
  std::string activation = "relu";
  std::string optimizer = "sgd";
  std::string precision = "f32";
  int64_t batch_size = 128;
  uint64_t seed = 0;
};

void add_threads_option(CLI::App& command, DeviceOptions& options);
void add_device_options(CLI::App& command, DeviceOptions& options);  // --threads, too
void add_run_options(CLI::App& command, RunOptions& options);
// Of these the parts of a network, its optimizer, the batch and the seed only.
void add_network_options(CLI::App& command, RunOptions& options);

// The device that is asked for, ready for use: "auto" is the first GPU, if there is one, else the
// CPU. Also sets the CPU's threads. Throws `unsupported` for a GPU in a build without CUDA, and
// `cuda` for a GPU that is not there.
Device open_device(const DeviceOptions& options);

// "cpu: avx512, 2 threads", "cuda:0: NVIDIA H100 80GB HBM3".
std::string describe(Device device);

// Throws invalid_argument for tf32 on the CPU, which has no such arithmetic.
nn::Precision precision_of(const RunOptions& options, Device device);

// A network drawn from the seed, for these images, on the device.
nn::Sequential make_network(const RunOptions& options, int64_t channels, int64_t height,
                            int64_t width, int64_t classes, Device device);

// The optimizers of both commands; default_lr() is the largest rate of a run that names none.
//   sgd    0.1     momentum 0.9, Nesterov, weight decay 5e-4
//   adam   0.002
//   adamw  0.002   weight decay 0.01
//   muon   0.02    momentum 0.95, Nesterov, weight decay 0.01; the rest as adamw at a tenth of it
double default_lr(const std::string& optimizer);
std::unique_ptr<nn::Optimizer> make_optimizer(const std::string& name, nn::Module& network,
                                              double lr);

}  // namespace gradus::cli
