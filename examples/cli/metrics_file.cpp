#include "examples/cli/metrics_file.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace gradus::cli {

MetricsFile::MetricsFile(const std::string& path, bool append) : path_(path) {
  if (path_.empty()) return;
  file_.open(path_, append ? std::ios::app : std::ios::trunc);
  if (!file_) fail(ErrorCode::io, "metrics", "cannot write '", path_, "'");
}

void MetricsFile::write(const nn::EpochReport& report) {
  if (path_.empty()) return;
  nlohmann::ordered_json line{{"schema", 1},
                              {"epoch", report.epoch + 1},
                              {"train_loss", report.train.loss},
                              {"train_accuracy", report.train.accuracy},
                              {"test_loss", nullptr},
                              {"test_accuracy", nullptr},
                              {"seconds", report.seconds},
                              {"images_per_second", report.images_per_second},
                              {"parameter_hash", report.parameter_hash}};
  if (report.test) {
    line["test_loss"] = report.test->loss;
    line["test_accuracy"] = report.test->accuracy;
  }
  file_ << line.dump() << std::endl;
  if (!file_) fail(ErrorCode::io, "metrics", "cannot write '", path_, "'");
}

}  // namespace gradus::cli
