// The program `gradus`: what its streams, its terminal and signals do to it.

#include <filesystem>

#include "nn/io/safetensors.h"
#include "tests/support/cli.h"

namespace gradus {
namespace {

using namespace test;

using CliStreams = Cli;

TEST_F(CliStreams, OutputThatCannotBeWrittenIsAFailure) {
  for (const char* command : {"info", "info --json", "--help", "train --help", "--version",
                              "bench step --device cpu --model lenet "
                              "--batch-size 1 --repeats 1"}) {
    expect_failure(shell(std::string("$GRADUS ") + command + " >/dev/full"), 1,
                   {"standard output: cannot be written: "});
  }
}

// A comparison takes long: its files are there though a reader such as head goes before the end.
TEST_F(CliStreams, FilesOfAComparisonOutliveItsReader) {
  const std::string compare =
      "$GRADUS compare --shape 7 --repeats 0 --json report.json --html page.html";
  const std::pair<std::string, int> readers[] = {{compare + " | true", 0},
                                                 {compare + " >/dev/full", 1}};
  for (const auto& [command, status] : readers) {
    const ProcessResult result = shell(command);
    EXPECT_EQ(result.status, status) << result.err;
    EXPECT_TRUE(Json::parse(test::read_text(dir_.path("report.json")))["ok"]) << command;
    EXPECT_TRUE(std::filesystem::remove(dir_.path("report.json"))) << command;
    EXPECT_TRUE(std::filesystem::remove(dir_.path("page.html"))) << command;
  }
}

TEST_F(CliStreams, AComparisonIsPrintedThoughItsFileCannotBeWritten) {
  const ProcessResult result =
      shell("trap '' XFSZ; ulimit -f 64; $GRADUS compare --shape 7 --repeats 0 --json report.json");
  expect_failure(result, 1, {"compare: 'report.json': cannot be written: File too large"});
  EXPECT_NE(result.out.find("cases are within their tolerances"), std::string::npos) << result.out;
}

// What cannot be said on standard error changes no exit status.
TEST_F(CliStreams, StandardErrorThatCannotBeWritten) {
  EXPECT_EQ(shell("$GRADUS 2>/dev/full").status, 2);
  EXPECT_EQ(shell("$GRADUS train --data nowhere 2>/dev/full").status, 1);
  EXPECT_EQ(shell("$TRAIN --autotune choices >/dev/null 2>/dev/full").status, 0);
}

// The files that are opened next must not become standard output or error.
TEST_F(CliStreams, ClosedStandardStreams) {
  EXPECT_EQ(shell("$TRAIN --metrics m --save net --resume run <&- >&- 2>&-").status, 0);
  EXPECT_EQ(metrics("m").size(), 2u);
  EXPECT_FALSE(nn::read_safetensors(dir_.path("net")).tensors.empty());
  EXPECT_FALSE(nn::read_safetensors(dir_.path("run")).tensors.empty());
}

TEST_F(CliStreams, TrainingOutlivesItsReaderAndItsTerminal) {
  EXPECT_EQ(shell("{ $TRAIN --metrics m; echo $? >status; } | true").status, 0);
  EXPECT_EQ(test::read_text(dir_.path("status")), "0\n");
  EXPECT_EQ(metrics("m").size(), 2u);
  const std::string hang_up =
      "$TRAIN --quiet --epochs 5000 --metrics h & until test -s h; do sleep 0.01; done; "
      "kill -HUP $!; kill -HUP $!; wait $!";
  expect_failure(shell(hang_up), 129, {"finishing the step", "--resume gradus.resume goes on"});
  EXPECT_TRUE(std::filesystem::exists(dir_.path("gradus.resume")));
  expect_failure(shell("$TRAIN --quiet --epochs 5000 --metrics i & until test -s i; do sleep 0.01; "
                       "done; kill -TERM $!; wait $!"),
                 143, {"finishing the step", "--resume gradus-2.resume goes on"});
  // The shell starts a background job of a script with SIGINT ignored.
  const ProcessResult ignored = shell(
      "trap '' HUP TERM; $TRAIN --epochs 100 --metrics n & until test -e n; do sleep 0.01; done; "
      "kill -HUP $!; kill -TERM $!; kill -INT $!; wait $!");
  EXPECT_EQ(ignored.status, 0) << ignored.err;
  EXPECT_EQ(ignored.err, "");
}

TEST_F(CliStreams, RunsInterruptedTogetherAreAllKept) {
  const ProcessResult result = shell(
      "for s in 1 2 3 4; do $TRAIN --quiet --epochs 5000 --seed $s --metrics m$s & "
      "runs=\"$runs $!\"; done; for s in 1 2 3 4; do until test -s m$s; do sleep 0.01; done; done; "
      "kill -TERM $runs; wait; ls gradus*.resume | wc -l");
  EXPECT_EQ(result.out, "4\n") << result.err;
  for (const char* name : {"gradus", "gradus-2", "gradus-3", "gradus-4"}) {
    const std::string file = std::string(name) + ".resume";
    EXPECT_NE(result.err.find("--resume " + file + " goes on"), std::string::npos) << result.err;
    EXPECT_FALSE(nn::read_safetensors(dir_.path(file)).tensors.empty()) << file;
  }
}

// What `script` makes a terminal for writes on it, with the program's output beside its errors.
std::string on_a_terminal(const std::string& command) {
  return "SHELL=/bin/sh script -qec \"stty cols 20; " + command + "\" log > both";
}

TEST_F(CliStreams, WhatATerminalShows) {
  dir_.file(kTrainImages, images_file(4000, 1));
  dir_.file("data/train-labels-idx1-ubyte", labels_file(4000));
  if (shell(on_a_terminal("true")).status != 0) GTEST_SKIP() << "'script' makes no terminal";
  EXPECT_EQ(shell(on_a_terminal("$TRAIN --batch-size 1 --metrics /dev/full")).status, 1);
  const std::string training = test::read_text(dir_.path("both"));
  EXPECT_NE(training.find("\repoch 1/2 ["), std::string::npos) << training;
  EXPECT_NE(training.find("\r\033[Kgradus: metrics: '/dev/full': cannot be written: No space left"),
            std::string::npos)
      << "an error stands on a line of its own: " << training;
  EXPECT_EQ(shell(on_a_terminal("$GRADUS compare --layer local_response_norm --repeats 0")).status,
            0);
  const std::string compared = test::read_text(dir_.path("both"));
  EXPECT_NE(compared.find(": local_res"), std::string::npos) << compared;
  EXPECT_EQ(compared.find(": local_response_norm"), std::string::npos) << compared;
}

}  // namespace
}  // namespace gradus
