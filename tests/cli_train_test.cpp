// `gradus train` on each device.

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/cli.h"
#include "tests/support/each_device.h"

namespace gradus {
namespace {

using namespace test;

class CliTrain : public Cli {
 protected:
  void SetUp() override { GRADUS_SKIP_WITHOUT(GetParam()); }
  ProcessResult train_here(const Arguments& more, const ProcessOptions& options = {}) const {
    return train(more, options, to_string(GetParam()));
  }
};
GRADUS_ON_EACH_DEVICE(CliTrain);

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
  EXPECT_EQ(first.err, "finishing the step; again to stop at once\n");
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

TEST_P(CliTrain, EveryOptimizerAndClipping) {
  for (const char* name : {"adam", "adamw", "muon"}) {
    const ProcessResult result =
        train_here({"--optimizer", name, "--lr", "0.005", "--norm", "group", "--clip-norm", "5",
                    "--clip-value", "1", "--metrics", name, "--epochs", "3"});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.out.find("lenet (group, relu; "), std::string::npos) << result.out;
    EXPECT_NE(result.out.find(std::string(name) + ", one-cycle up to 0.005"), std::string::npos)
        << result.out;
    EXPECT_LT(metrics(name)[2]["train_loss"], metrics(name)[0]["train_loss"]) << name;
  }
}

TEST_P(CliTrain, ResumeRefusesOtherChoices) {
  ASSERT_EQ(train_here({"--resume", "run"}).status, 0);
  const std::pair<Arguments, const char*> others[] = {
      {{"--activation", "tanh"}, "is tanh in this run and relu in the file"},
      {{"--norm", "group"}, "resume: "},
      {{"--optimizer", "adam"}, "resume: optimizer is adam"},
      {{"--clip-norm", "1"}, "resume: clip_norm is 1 in this run and 0 in the file"}};
  for (const auto& [choice, text] : others) {
    Arguments arguments{"--resume", "run"};
    arguments.insert(arguments.end(), choice.begin(), choice.end());
    expect_failure(train_here(arguments), 1, {text});
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

// The line can be pasted into a shell.
TEST_P(CliTrain, InterruptQuotesTheResumeFile) {
  const ProcessResult result =
      train_here({"--epochs", "500", "--resume", "it's 1"}, {.interrupt_when = [](const auto& out) {
                   return out.find("epoch 1/") != std::string::npos;
                 }});
  ASSERT_EQ(result.status, 130) << result.out << result.err;
  EXPECT_NE(result.out.find("--resume 'it'\\''s 1' goes on"), std::string::npos) << result.out;
}

TEST_P(CliTrain, HeadlineCountsOne) {
  const ProcessResult result = train_here({"--epochs", "1", "--batch-size", "96"});
  EXPECT_NE(result.out.find("1 epoch of 1 step of 96 images"), std::string::npos) << result.out;
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

TEST_P(CliTrain, FinishedRunWritesTheWeights) {
  ASSERT_EQ(train_here({"--resume", "run.resume", "--save", "net"}).status, 0);
  const Bytes weights = test::read_file(dir_.path("net"));
  std::filesystem::remove(dir_.path("net"));
  ASSERT_EQ(train_here({"--resume", "run.resume", "--save", "net"}).status, 0);
  EXPECT_EQ(test::read_file(dir_.path("net")), weights);
}

// The resume file of the first epoch, and metrics that are ahead of it.
TEST_P(CliTrain, MetricsOfLaterEpochsAreDropped) {
  const ProcessResult first = train_here({"--epochs", "400", "--resume", "run", "--metrics", "m"},
                                         {.interrupt_when = [](const std::string& out) {
                                           return out.find("epoch 1/") != std::string::npos;
                                         }});
  ASSERT_EQ(first.status, 130) << first.err;
  const std::vector<Json> before = metrics("m");
  ASSERT_FALSE(before.empty());
  const std::string text = test::read_text(dir_.path("m"));
  Json later = before.back();
  const size_t done = before.size();
  later["epoch"] = done + 1;
  later["test_loss"] = -1;
  dir_.file("m", test::join({Bytes(text.begin(), text.end())}));
  std::ofstream(dir_.path("m"), std::ios::app) << later.dump() << "\n{\"schema\":1,\"ep";
  const ProcessResult second = train_here({"--epochs", "400", "--resume", "run", "--metrics", "m"},
                                          {.interrupt_when = [&](const std::string& out) {
                                            return out.find("going on") != std::string::npos;
                                          }});
  ASSERT_EQ(second.status, 130) << second.err;
  const std::vector<Json> after = metrics("m");
  ASSERT_GE(after.size(), done);
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i]["epoch"], i + 1);
    EXPECT_NE(after[i]["test_loss"], -1);
  }
  std::ofstream(dir_.path("m"), std::ios::app) << "not metrics\n";
  const std::string foreign = test::read_text(dir_.path("m"));
  expect_failure(train_here({"--epochs", "400", "--resume", "run", "--metrics", "m"}), 1,
                 {"metrics: 'm' holds a line without an epoch: not metrics"});
  EXPECT_EQ(test::read_text(dir_.path("m")), foreign);
}

// A last line without an end is one of the metrics all the same, or it is of another file.
TEST_P(CliTrain, MetricsWithoutAnEndAreKept) {
  ASSERT_EQ(train_here({"--resume", "run", "--metrics", "m"}).status, 0);
  const std::string text = test::read_text(dir_.path("m"));
  std::ofstream(dir_.path("m")) << text.substr(0, text.size() - 1);
  ASSERT_EQ(train_here({"--resume", "run", "--metrics", "m"}).status, 0);
  EXPECT_EQ(test::read_text(dir_.path("m")), text);
  std::ofstream(dir_.path("notes")) << "not metrics";
  expect_failure(train_here({"--resume", "run", "--metrics", "notes"}), 1,
                 {"metrics: 'notes' holds a line without an epoch: not metrics"});
  EXPECT_EQ(test::read_text(dir_.path("notes")), "not metrics");
}

TEST_P(CliTrain, LastStepThatDivergesKeepsTheCheckpoint) {
  const Arguments files{"--resume", "run.resume", "--save", "net", "--metrics", "m"};
  ASSERT_EQ(train_here(files).status, 0);
  const Bytes weights = test::read_file(dir_.path("net"));
  const ProcessResult result =
      train_here({"--epochs", "1", "--batch-size", "96", "--lr", "1e39", "--schedule", "constant",
                  "--save", "net", "--resume", "new.resume"});
  expect_failure(result, 1, {"not finite after epoch 1, step 1"});
  EXPECT_EQ(test::read_file(dir_.path("net")), weights);
  EXPECT_FALSE(std::filesystem::exists(dir_.path("new.resume")));
}

TEST_P(CliTrain, LossThatIsNotFinite) {
  ASSERT_EQ(train_here({"--resume", "run.resume", "--save", "net"}).status, 0);
  const Bytes weights = test::read_file(dir_.path("net"));
  const ProcessResult result =
      train_here({"--lr", "1e30", "--schedule", "constant", "--save", "net"});
  expect_failure(result, 1, {"loss of epoch 1, step ", "not finite", "(Conv2d)"});
  EXPECT_EQ(test::read_file(dir_.path("net")), weights) << "the checkpoint must be kept";
}

}  // namespace
}  // namespace gradus
