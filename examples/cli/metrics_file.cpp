#include "examples/cli/metrics_file.h"

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "nn/io/atomic_file.h"

namespace gradus::cli {
namespace {

int64_t epoch_of(const std::string& path, const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  const bool known =
      json.is_object() && json.contains("epoch") && json["epoch"].is_number_integer();
  if (!known) fail(ErrorCode::io, "metrics", "'", path, "' holds a line without an epoch: ", line);
  return json["epoch"].get<int64_t>();
}

[[noreturn]] void fail_io(const std::string& path, const char* what) {
  fail(ErrorCode::io, "metrics", "'", path, "': ", what, ": ",
       std::generic_category().message(errno));
}

// Of a run that died while it wrote: the beginning of one of our lines, never a whole object.
bool is_half_a_line(const std::string& line) {
  constexpr std::string_view kStart = "{\"schema\":";
  return (line.starts_with(kStart) || kStart.starts_with(line)) && !nlohmann::json::accept(line);
}

// The file that the run goes on from may be older than the metrics. The last line may be half of
// one; one that only lacks its end, as an editor leaves it, is none of these.
void drop_later_epochs(const std::string& path, int64_t epochs_done) {
  if (!std::filesystem::is_regular_file(path)) return;
  std::ifstream in(path);
  std::string kept;
  bool changed = false;
  for (std::string line; std::getline(in, line);) {
    const bool ends = !in.eof();
    const bool is_half = !ends && is_half_a_line(line);
    const bool keep = !is_half && epoch_of(path, line) <= epochs_done;
    if (keep) kept += line + '\n';
    changed = changed || !ends || !keep;
  }
  if (in.bad() || !in.is_open()) fail_io(path, "cannot be read");
  if (!changed) return;
  nn::write_atomically("metrics", path, kept);
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::optional<int64_t> epochs_done)
    : path_(path) {
  if (path_.empty()) return;
  if (epochs_done) drop_later_epochs(path_, *epochs_done);
  file_.open(path_, epochs_done ? std::ios::app : std::ios::trunc);
  if (!file_) fail_io(path_, "cannot be opened");
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
  if (!file_) fail_io(path_, "cannot be written");
}

}  // namespace gradus::cli
