// The program `gradus` in a folder with a small image set, run as a user runs it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/device.h"
#include "core/random.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace gradus::test {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

inline constexpr const char* kTrainImages = "data/train-images-idx3-ubyte";

inline Bytes images_file(uint32_t n, uint64_t seed) {
  PhiloxSequence random(seed, random_stream::kTensor);
  Bytes bytes = join({{0, 0, 8, 3}, big_endian(n, 4), big_endian(28, 4), big_endian(28, 4)});
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t p = 0; p < 28 * 28; ++p) {  // the bright rows tell the class
      const bool bright = p / 28 / 3 == i % 10;
      bytes.push_back(static_cast<uint8_t>(random.below(128) + (bright ? 127 : 0)));
    }
  }
  return bytes;
}

inline Bytes labels_file(uint32_t n) {
  Bytes bytes = join({{0, 0, 8, 1}, big_endian(n, 4)});
  for (uint32_t i = 0; i < n; ++i) bytes.push_back(static_cast<uint8_t>(i % 10));
  return bytes;
}

// A folder with a small set in data/, in which the program runs.
class Cli : public testing::TestWithParam<Device> {
 protected:
  Cli() {
    ::unsetenv("GRADUS_AUTOTUNE");  // of whoever runs the tests
    dir_.file(kTrainImages, images_file(96, 1));
    dir_.file("data/train-labels-idx1-ubyte", labels_file(96));
    dir_.file("data/t10k-images-idx3-ubyte", images_file(40, 2));
    dir_.file("data/t10k-labels-idx1-ubyte", labels_file(40));
  }

  ProcessResult gradus(const Arguments& arguments, ProcessOptions options = {}) const {
    Arguments command{program_path("gradus")};
    command.insert(command.end(), arguments.begin(), arguments.end());
    options.dir = dir_.path();
    return run_process(command, options);
  }

  // A script that finds the program as $GRADUS and the options of train() as $TRAIN.
  ProcessResult shell(const std::string& script) const {
    const std::string head = "GRADUS='" + program_path("gradus") +
                             "'; TRAIN=\"$GRADUS train --data data --device cpu --model lenet"
                             " --epochs 2 --batch-size 16 --lr 0.02\"; ";
    return run_process({"/bin/sh", "-c", head + script}, {.dir = dir_.path()});
  }

  // `gradus train` of a small network on the small set, two epochs of six steps.
  ProcessResult train(const Arguments& more, const ProcessOptions& options = {},
                      const std::string& device = "cpu") const {
    Arguments arguments{"train",   "--data", "data",     "--device", device,
                        "--model", "lenet",  "--epochs", "2",        "--batch-size",
                        "16",      "--lr",   "0.02"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return gradus(arguments, options);
  }

  std::vector<Json> metrics(const std::string& name) const {
    std::vector<Json> lines;
    std::istringstream text(read_text(dir_.path(name)));
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  std::string last_hash(const std::string& name) const {
    return metrics(name).back().at("parameter_hash");
  }

  TempDir dir_;
};

inline void expect_failure(const ProcessResult& result, int status,
                           std::initializer_list<std::string_view> parts) {
  EXPECT_EQ(result.status, status) << result.out << result.err;
  for (const std::string_view part : parts) {
    EXPECT_NE(result.err.find(part), std::string::npos)
        << "'" << part << "' is not in: " << result.err;
  }
}

}  // namespace gradus::test
