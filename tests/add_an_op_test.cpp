// Runs the program of examples/add_an_op.cpp, which has an op of its own and checks it.
#include <gtest/gtest.h>

#include "core/build_config.h"
#include "tests/support/files.h"
#include "tests/support/gpu.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace gradus {
namespace {

test::ProcessResult run_on(const std::string& device) {
  const test::TempDir dir;
  return test::run_process({test::program_path("add_an_op"), device}, {.dir = dir.path()});
}

void expect_checked(const std::string& device) {
  const test::ProcessResult result = run_on(device);
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  for (const char* part : {"gradient check passed", "f32 ", "f64 ", "f16 ", "bf16 "}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << result.out;
  }
}

TEST(AddAnOp, IsCheckedOnTheCpu) { expect_checked("cpu"); }

TEST(AddAnOpCuda, IsCheckedOnTheGpu) {
  GRADUS_SKIP_WITHOUT(kCuda);
  expect_checked("cuda:0");
}

TEST(AddAnOp, SaysThatThereIsNoSuchDevice) {
  if (has_gpu()) GTEST_SKIP() << "there is a GPU";
  const test::ProcessResult result = run_on("cuda");
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("cuda"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace gradus
