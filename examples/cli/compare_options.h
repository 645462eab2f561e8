// What `gradus compare` was asked, and its parts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "examples/cli/run_setup.h"
#include "nn/compare/report.h"

namespace gradus::cli {

struct CompareCommand : RunOptions {
  CompareCommand() { batch_size = 32; }

  std::vector<std::string> layers;
  std::string network;  // a name or a file; "": layers by themselves
  bool train = false;
  int64_t steps = 10;
  std::optional<double> lr;
  std::string data;
  std::vector<DType> dtypes;
  std::optional<Shape> shape;
  double tolerance = 0;
  int repeats = 3;
  std::string json, html;
};

// The layers inside o.network on a batch.
CompareReport compare_model(const CompareCommand& o);
// Lock-step training of it.
CompareReport compare_training(const CompareCommand& o);
std::string training_text(const CompareReport& report);

}  // namespace gradus::cli
