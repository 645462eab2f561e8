// Runs the program of examples/quickstart.cpp on a small set of the right format.
#include <gtest/gtest.h>

#include "core/random.h"
#include "tests/support/files.h"
#include "tests/support/gpu.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace gradus {
namespace {

using test::Bytes;
using test::TempDir;

// Images whose left or right half is bright, and labels that tell which.
void write_set(const TempDir& dir, const std::string& name, uint32_t count, uint64_t seed) {
  PhiloxSequence random(seed, random_stream::kTensor);
  Bytes labels, images;
  for (uint32_t i = 0; i < count; ++i) {
    labels.push_back(static_cast<uint8_t>(random.below(2)));
    for (int p = 0; p < 28 * 28; ++p) {
      const bool bright = p % 28 / 14 == labels.back();
      images.push_back(static_cast<uint8_t>(random.below(128) + (bright ? 127 : 0)));
    }
  }
  const auto number = [](uint32_t value) { return test::big_endian(value, 4); };
  dir.file(name + "-images-idx3-ubyte",
           test::join({number(0x803), number(count), number(28), number(28), images}));
  dir.file(name + "-labels-idx1-ubyte", test::join({number(0x801), number(count), labels}));
}

void train_on(const std::string& device) {
  const TempDir dir;
  write_set(dir, "train", 1024, 1);
  write_set(dir, "t10k", 500, 2);
  const test::ProcessResult result = test::run_process(
      {test::program_path("quickstart"), dir.path(), device, "3"}, {.dir = dir.path()});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("epoch 3: loss 0.0"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("test accuracy 100.00 %"), std::string::npos) << result.out;
  EXPECT_FALSE(test::read_file(dir.path("quickstart.safetensors")).empty());
}

TEST(Quickstart, TrainsOnTheCpu) { train_on("cpu"); }

TEST(QuickstartCuda, TrainsOnTheGpu) {
  GRADUS_SKIP_WITHOUT(kCuda);
  train_on("cuda");
}

TEST(Quickstart, SaysWhatIsMissing) {
  const TempDir dir;
  const test::ProcessResult result = test::run_process(
      {test::program_path("quickstart"), dir.path("nothing")}, {.dir = dir.path()});
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find(dir.path("nothing")), std::string::npos) << result.err;
}

}  // namespace
}  // namespace gradus
