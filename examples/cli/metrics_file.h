// The metrics file: one JSON object per line and epoch.
//
//   {"schema":1,"epoch":1,"train_loss":0.52,"train_accuracy":0.81,"test_loss":0.33,
//    "test_accuracy":0.88,"seconds":55.1,"images_per_second":1089.2,"parameter_hash":"9f..."}
//
// Epochs count from 1, accuracies are fractions, seconds are of training alone.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "nn/trainer.h"

namespace gradus::cli {

class MetricsFile {
 public:
  // Opens at once, so that a wrong path is found before training: a new file, or for a run that
  // goes on after `epochs_done` epochs, the end of the old one less the lines of later epochs,
  // which come again. An empty path means no file. Throws io, also when the old file holds other
  // lines than metrics; it is left alone then.
  MetricsFile(const std::string& path, std::optional<int64_t> epochs_done);

  void write(const nn::EpochReport& report);  // throws io when it cannot

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace gradus::cli
