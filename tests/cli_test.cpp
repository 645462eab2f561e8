// The program `gradus`, run as a user runs it.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/build_config.h"
#include "core/random.h"
#include "nn/io/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/gpu.h"
#include "tests/support/process.h"

namespace gradus {
namespace {

using test::Bytes;
using test::ProcessOptions;
using test::ProcessResult;
using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

constexpr const char* kTrainImages = "data/train-images-idx3-ubyte";

Bytes images_file(uint32_t n, uint64_t seed) {
  PhiloxSequence random(seed, random_stream::kTensor);
  Bytes bytes = test::join(
      {{0, 0, 8, 3}, test::big_endian(n, 4), test::big_endian(28, 4), test::big_endian(28, 4)});
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t p = 0; p < 28 * 28; ++p) {  // the bright rows tell the class
      const bool bright = p / 28 / 3 == i % 10;
      bytes.push_back(static_cast<uint8_t>(random.below(128) + (bright ? 127 : 0)));
    }
  }
  return bytes;
}

Bytes labels_file(uint32_t n) {
  Bytes bytes = test::join({{0, 0, 8, 1}, test::big_endian(n, 4)});
  for (uint32_t i = 0; i < n; ++i) bytes.push_back(static_cast<uint8_t>(i % 10));
  return bytes;
}

// A folder with a small set in data/, in which the program runs.
class Cli : public testing::TestWithParam<Device> {
 protected:
  Cli() {
    dir_.file(kTrainImages, images_file(96, 1));
    dir_.file("data/train-labels-idx1-ubyte", labels_file(96));
    dir_.file("data/t10k-images-idx3-ubyte", images_file(40, 2));
    dir_.file("data/t10k-labels-idx1-ubyte", labels_file(40));
  }

  ProcessResult gradus(const Arguments& arguments, ProcessOptions options = {}) const {
    Arguments command{GRADUS_PROGRAM};
    command.insert(command.end(), arguments.begin(), arguments.end());
    options.dir = dir_.path();
    return test::run_process(command, options);
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
    std::istringstream text(test::read_text(dir_.path(name)));
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  std::string last_hash(const std::string& name) const {
    return metrics(name).back().at("parameter_hash");
  }

  test::TempDir dir_;
};

void expect_failure(const ProcessResult& result, int status,
                    std::initializer_list<std::string_view> parts) {
  EXPECT_EQ(result.status, status) << result.out << result.err;
  for (const std::string_view part : parts) {
    EXPECT_NE(result.err.find(part), std::string::npos)
        << "'" << part << "' is not in: " << result.err;
  }
}

using CliCommands = Cli;

TEST_F(CliCommands, HelpNamesEveryOption) {
  EXPECT_NE(gradus({"--help"}).out.find("train"), std::string::npos);
  const ProcessResult help = gradus({"train", "--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* option :
       {"--data-set", "--data", "--device", "--model", "--norm", "--activation", "--epochs",
        "--batch-size", "--lr", "--optimizer", "--schedule", "--precision", "--seed", "--threads",
        "--save", "--resume", "--metrics", "--quiet"}) {
    EXPECT_NE(help.out.find(option), std::string::npos) << option;
  }
  EXPECT_EQ(gradus({"--version"}).out, "gradus " GRADUS_VERSION "\n");
}

TEST_F(CliCommands, WrongUsageEndsWithStatus2) {
  expect_failure(gradus({}), 2, {"Usage: gradus", "train", "bench", "info"});
  expect_failure(gradus({"trian"}), 2, {"trian"});
  expect_failure(gradus({"train", "--modle", "lenet"}), 2, {"--modle"});
  expect_failure(gradus({"train", "--model", "vgg"}), 2, {"--model", "vgg", "lenet"});
  expect_failure(gradus({"train", "--epochs", "0"}), 2, {"--epochs"});
  expect_failure(gradus({"train", "--threads", "0"}), 2, {"--threads"});
  expect_failure(gradus({"bench"}), 2, {"Usage: gradus bench", "step"});
}

TEST_F(CliCommands, InfoAsJson) {
  const ProcessResult result = gradus({"info", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json info = Json::parse(result.out);
  EXPECT_EQ(info.at("schema"), 1);
  EXPECT_EQ(info.at("version"), GRADUS_VERSION);
  EXPECT_EQ(info.at("build").at("cuda"), GRADUS_HAS_CUDA != 0);
  EXPECT_EQ(info.at("build").at("type"), GRADUS_BUILD_TYPE);
  EXPECT_GE(info.at("cpu").at("threads"), 1);
  const Json& sets = info.at("build").at("instruction_sets");
  EXPECT_NE(std::find(sets.begin(), sets.end(), info.at("cpu").at("instruction_set")), sets.end());
  EXPECT_EQ(info.at("cuda_devices").empty(), !has_gpu());
  EXPECT_FALSE(info.at("libraries").at("eigen").get<std::string>().empty());
}

TEST_F(CliCommands, InfoAsText) {
  const ProcessResult result = gradus({"info"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out.find("gradus " GRADUS_VERSION "\n"), 0u);
  EXPECT_NE(result.out.find("\ncpu "), std::string::npos);
  EXPECT_NE(result.out.find("\nlibraries "), std::string::npos);
}

TEST_F(CliCommands, BenchStep) {
  const ProcessResult result = gradus({"bench", "step", "--device", "cpu", "--model", "lenet",
                                       "--batch-size", "8", "--repeats", "5", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json bench = Json::parse(result.out);
  EXPECT_EQ(bench.at("schema"), 1);
  EXPECT_EQ(bench.at("batch_size"), 8);
  const double ms = bench.at("ms_per_step");
  EXPECT_GT(ms, 0);
  EXPECT_NEAR(bench.at("images_per_second").get<double>(), 8e3 / ms, 1e-6 * 8e3 / ms);
}

class CliTrain : public Cli {
 protected:
  void SetUp() override { GRADUS_SKIP_WITHOUT(GetParam()); }
  ProcessResult train_here(const Arguments& more, const ProcessOptions& options = {}) const {
    return train(more, options, to_string(GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(On, CliTrain, testing::Values(kCpu, kCuda),
                         [](const auto& info) { return info.param == kCpu ? "Cpu" : "Cuda"; });

TEST_P(CliTrain, WritesMetricsAndWeights) {
  const ProcessResult result =
      train_here({"--metrics", "m.jsonl", "--save", "net.safetensors", "--epochs", "3"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("lenet"), std::string::npos);
  EXPECT_NE(result.out.find("\nepoch 3/3 "), std::string::npos) << result.out;
  const std::vector<Json> lines = metrics("m.jsonl");
  ASSERT_EQ(lines.size(), 3u);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::set<std::string> keys;
    for (const auto& [key, value] : lines[i].items()) keys.insert(key);
    EXPECT_EQ(keys, (std::set<std::string>{"schema", "epoch", "train_loss", "train_accuracy",
                                           "test_loss", "test_accuracy", "seconds",
                                           "images_per_second", "parameter_hash"}));
    EXPECT_EQ(lines[i]["schema"], 1);
    EXPECT_EQ(lines[i]["epoch"], i + 1);
    EXPECT_GE(lines[i]["test_accuracy"], 0.0);
    EXPECT_LE(lines[i]["test_accuracy"], 1.0);
    EXPECT_GT(lines[i]["images_per_second"], 0.0);
    EXPECT_EQ(lines[i]["parameter_hash"].get<std::string>().size(), 16u);
  }
  EXPECT_LT(lines[2]["train_loss"], lines[0]["train_loss"]);
  EXPECT_GT(std::filesystem::file_size(dir_.path("net.safetensors")), 100000u);
}

TEST_P(CliTrain, QuietPrintsNothing) {
  const ProcessResult result = train_here({"--quiet"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out + result.err, "");
}

TEST_P(CliTrain, SameSeedSameParameters) {
  ASSERT_EQ(train_here({"--metrics", "a", "--seed", "7"}).status, 0);
  ASSERT_EQ(train_here({"--metrics", "b", "--seed", "7", "--threads", "1"}).status, 0);
  ASSERT_EQ(train_here({"--metrics", "c", "--seed", "7", "--threads", "3"}).status, 0);
  ASSERT_EQ(train_here({"--metrics", "d", "--seed", "8"}).status, 0);
  EXPECT_EQ(last_hash("a"), last_hash("b"));
  EXPECT_EQ(last_hash("a"), last_hash("c"));
  EXPECT_NE(last_hash("a"), last_hash("d"));
}

TEST_P(CliTrain, InterruptedAndResumedIsUnbroken) {
  const Arguments options{"--epochs", "30", "--seed", "3"};
  const auto with = [&](const Arguments& more) {
    Arguments all = options;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const ProcessResult whole = train_here(with({"--metrics", "whole"}));
  ASSERT_EQ(whole.status, 0) << whole.err;
  const ProcessResult first = train_here(with({"--metrics", "broken", "--resume", "run.resume"}),
                                         {.interrupt_when = [](const std::string& out) {
                                           return out.find("epoch 2/") != std::string::npos;
                                         }});
  ASSERT_EQ(first.status, 130) << first.out << first.err;
  EXPECT_NE(first.out.find("--resume run.resume"), std::string::npos) << first.out;
  const ProcessResult second = train_here(with({"--metrics", "broken", "--resume", "run.resume"}));
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_NE(second.out.find("going on from run.resume"), std::string::npos) << second.out;
  const std::vector<Json> want = metrics("whole"), got = metrics("broken");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    for (const char* key : {"epoch", "train_loss", "test_loss", "parameter_hash"}) {
      EXPECT_EQ(got[i][key], want[i][key]) << key << " of epoch " << i + 1;
    }
  }
}

TEST_P(CliTrain, InterruptWithoutAResumeFileMakesOne) {
  const ProcessOptions interrupt{.interrupt_when = [](const std::string& out) {
    return out.find("epoch 1/") != std::string::npos;
  }};
  for (const char* name : {"gradus.resume", "gradus-2.resume"}) {
    const ProcessResult result = train_here({"--epochs", "500"}, interrupt);
    ASSERT_EQ(result.status, 130) << result.out << result.err;
    EXPECT_NE(result.out.find(std::string("--resume ") + name), std::string::npos) << result.out;
    EXPECT_TRUE(std::filesystem::exists(dir_.path(name)));
  }
}

TEST_P(CliTrain, ResumingAFinishedRunDoesNothing) {
  ASSERT_EQ(train_here({"--resume", "run.resume", "--metrics", "m"}).status, 0);
  const std::string hash = last_hash("m");
  const ProcessResult again = train_here({"--resume", "run.resume", "--metrics", "m"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_NE(again.out.find("the run in run.resume is finished"), std::string::npos) << again.out;
  EXPECT_EQ(metrics("m").size(), 2u);
  EXPECT_EQ(last_hash("m"), hash);
}

TEST_P(CliTrain, LossThatIsNotFinite) {
  ASSERT_EQ(train_here({"--resume", "run.resume", "--save", "net"}).status, 0);
  const Bytes weights = test::read_file(dir_.path("net"));
  const ProcessResult result =
      train_here({"--lr", "1e30", "--schedule", "constant", "--save", "net"});
  expect_failure(result, 1, {"loss of epoch 1, step ", "not finite", "(Conv2d)"});
  EXPECT_EQ(test::read_file(dir_.path("net")), weights) << "the checkpoint must be kept";
}

using CliErrors = Cli;

TEST_F(CliErrors, MissingData) {
  expect_failure(gradus({"train", "--data", "nowhere", "--device", "cpu"}), 1,
                 {"'nowhere' does not exist", "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
                  "dataset-fashion-mnist"});
  std::filesystem::remove(dir_.path("data/t10k-labels-idx1-ubyte"));
  expect_failure(train({}), 1, {"'data' lacks t10k-labels-idx1-ubyte"});
  expect_failure(gradus({"train", "--data-set", "cifar10", "--device", "cpu"}), 1, {"--data"});
}

TEST_F(CliErrors, DamagedImages) {
  const Bytes good = test::read_file(dir_.path(kTrainImages));
  const auto expect_bad = [&](Bytes bytes, std::string_view part) {
    dir_.file(kTrainImages, bytes);
    expect_failure(train({}), 1, {kTrainImages, part});
  };
  Bytes cut = good, long_one = good, magic = good, fewer = images_file(95, 1);
  cut.resize(good.size() - 1);
  long_one.push_back(0);
  magic[2] = 0x42;
  expect_bad(cut, "");
  expect_bad(long_one, "");
  expect_bad(magic, "");
  expect_bad(fewer, "95 images");
  dir_.file(kTrainImages, good);
  EXPECT_EQ(train({}).status, 0);
}

TEST_F(CliErrors, BatchThatDoesNotFit) {
  expect_failure(train({"--batch-size", "0"}), 1, {"batch", "0"});
  expect_failure(train({"--batch-size", "97"}), 1, {"batch", "97", "96"});
}

TEST_F(CliErrors, LearningRate) {
  expect_failure(train({"--lr", "-0.1"}), 1, {"-0.1"});
  expect_failure(train({"--lr", "nan"}), 1, {"nan"});
}

TEST_F(CliErrors, ResumeFileOfAnotherRun) {
  ASSERT_EQ(train({"--resume", "run.resume"}).status, 0);
  const Bytes good = test::read_file(dir_.path("run.resume"));
  expect_failure(train({"--resume", "run.resume", "--model", "resnet8"}), 1, {"0.weight"});
  expect_failure(train({"--resume", "run.resume", "--seed", "5"}), 1,
                 {"seed is 5 in this run and 0 in the file"});
  expect_failure(train({"--resume", "run.resume", "--batch-size", "8"}), 1,
                 {"batch_size is 8 in this run and 16 in the file"});
  expect_failure(train({"--resume", "run.resume", "--epochs", "3"}), 1,
                 {"epochs is 3 in this run and 2 in the file"});
  expect_failure(train({"--resume", "run.resume", "--data-set", "mnist"}), 1,
                 {"data_set is mnist in this run and fashion-mnist in the file"});
  EXPECT_EQ(test::read_file(dir_.path("run.resume")), good) << "a refused file must be kept";
  Bytes cut = good;
  cut.resize(good.size() / 2);
  dir_.file("cut.resume", cut);
  expect_failure(train({"--resume", "cut.resume"}), 1, {"cut.resume"});
  dir_.file("net.safetensors", {});
  ASSERT_EQ(train({"--save", "net.safetensors"}).status, 0);
  expect_failure(train({"--resume", "net.safetensors"}), 1, {"net.safetensors", "resume"});
}

TEST_F(CliErrors, FilesThatCannotBeWritten) {
  expect_failure(train({"--metrics", "no/such/folder"}), 1, {"no/such/folder"});
  expect_failure(train({"--save", "no/such/folder"}), 1, {"no/such/folder"});
}

TEST_F(CliErrors, Device) {
  expect_failure(train({}, {}, "tpu"), 1, {"tpu"});
  expect_failure(train({"--precision", "tf32"}), 1, {"tf32", "cpu"});
  const ProcessResult result = train({}, {}, "cuda:99");
  if (!GRADUS_HAS_CUDA) {
    expect_failure(result, 1, {"this build of gradus has no CUDA backend"});
  } else if (!has_gpu()) {
    expect_failure(result, 1, {"no CUDA device was found"});
  } else {
    expect_failure(result, 1, {"expected a device below", "cuda:99"});
  }
}

#ifndef GRADUS_SANITIZED
TEST_F(CliErrors, OutOfMemory) {
  // Room for the libraries of CUDA, and not for two activations of 800 MB.
  expect_failure(gradus({"bench", "step", "--device", "cpu", "--batch-size", "8000"},
                        {.memory = int64_t{2} << 30}),
                 1, {"asked for", "bytes, holding", "are free"});
}
#endif

}  // namespace
}  // namespace gradus
