// The JSON of a comparison is frozen: other programs read it.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "core/build_config.h"
#include "nn/compare/report.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace gradus {
namespace {

using Json = nlohmann::ordered_json;

constexpr CompareDirection kForward = CompareDirection::forward;
constexpr CompareDirection kBackward = CompareDirection::backward;

CompareError error_of(Device device, double ulp, int64_t bin) {
  CompareError error{.device = device,
                     .of_allowed = ulp / 4,
                     .max_ulp = ulp,
                     .mean_ulp = ulp / 8,
                     .max_relative = ulp * 0x1p-24,
                     .mean_relative = ulp * 0x1p-27,
                     .worst = 7,
                     .want = 1.5,
                     .error = ulp * 0x1p-23,
                     .allowed = 0x1p-21,
                     .got = {1.5 - 0x1p-23, 1.5 + 0x1p-23}};
  error.histogram[0] = 40;
  error.histogram[static_cast<size_t>(bin)] = 8;
  return error;
}

// A layer in one dtype on both devices; its dx is wrong on CUDA.
CompareRow row_of(DType dtype) {
  CompareRow row{
      .layer = "GroupNorm", .path = "1", .shape = {2, 4, 3, 2}, .dtype = dtype, .reduction = 24};
  CompareValue y{.name = "y", .direction = kForward, .dtype = dtype, .shape = row.shape};
  y.errors = {error_of(kCpu, 0.5, 4), error_of(kCuda, 1, 5)};
  y.errors[0].worst = -1;
  CompareValue dx{.name = "dx", .direction = kBackward, .dtype = dtype, .shape = row.shape};
  dx.errors = {error_of(kCpu, 1, 5), error_of(kCuda, 4096, 17)};
  dx.errors[1].ok = false;
  dx.errors[1].beyond = 8;
  dx.errors[1].got[1] = std::numeric_limits<double>::quiet_NaN();
  dx.differences = CompareDifferences{.got = 0.25, .want = 0.25, .error = 0, .allowed = 0x1p-20};
  row.values = {y, dx};
  row.times = {{kCpu, kForward, 0x1p-10, 384, 480, "copy", 0.25},
               {kCuda, kBackward, 0x1p-17, 576, 960, "products", 0.0625}};
  return row;
}

CompareReport example() {
  CompareReport report{.what = "train", .model = "small_cnn", .seed = 1};
  report.missing = {"a sentence on what could not be compared"};
  report.devices = {{kCpu, "cpu: avx512, 2 threads", 21.5, {{DType::f32, 0.125}}},
                    {kCuda, "cuda:0: a card", 3000, {{DType::f32, 51}}}};
  report.rows = {row_of(DType::f32)};
  CompareTraining train{.steps_asked = 200, .steps_done = 2, .batch_size = 2, .optimizer = "sgd"};
  train.parted = CompareParting{.step = 3,
                                .layer = "GroupNorm",
                                .path = "1",
                                .value = "dx",
                                .direction = kBackward,
                                .shape = {2, 4, 3, 2},
                                .error = report.rows[0].values[1].errors[1]};
  train.layers = {{"Conv2d", "0", kForward, 0.25, 2}, {"GroupNorm", "1", kBackward, 1024, 3}};
  train.drift_device = kCuda;
  train.drift = {{1, 2.5, 2.5, 0}, {2, 2.25, 2.25, 0x1p-23}};
  report.train = train;
  return report;
}

// To write it anew: GRADUS_WRITE_GOLDEN=1 tests/compare_json_test, and raise the schema's number.
TEST(CompareJson, IsFrozen) {
  std::string text = to_json(example());
  const std::string version = "\"version\": \"" GRADUS_VERSION "\"";
  const size_t at = text.find(version);
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, version.size(), "\"version\": \"\"");
  const std::string path = test::source_path("tests/golden/compare.json");
  if (std::getenv("GRADUS_WRITE_GOLDEN") != nullptr) std::ofstream(path) << text;
  EXPECT_EQ(text, test::read_text(path));
}

TEST(CompareJson, SaysWhatIsWrong) {
  CompareReport report = example();
  EXPECT_FALSE(report.ok());
  Json json = Json::parse(to_json(report));
  EXPECT_EQ(json["schema"], kCompareSchema);
  EXPECT_FALSE(json["ok"]);
  EXPECT_FALSE(json["rows"][0]["ok"]);
  EXPECT_TRUE(json["rows"][0]["values"][0]["errors"][0]["worst"].is_null());
  EXPECT_TRUE(json["rows"][0]["values"][1]["errors"][1]["worst"]["cuda:0"].is_null());  // NaN
  EXPECT_EQ(json["rows"][0]["values"][1]["errors"][1]["worst"]["index"], Json({0, 1, 0, 1}));
  report.rows[0].values[1].errors[1].ok = true;
  EXPECT_FALSE(report.ok()) << "parted";
  report.train->parted.reset();
  EXPECT_TRUE(report.ok());
  report.rows[0].values[1].differences->ok = false;
  EXPECT_FALSE(report.ok());
}

TEST(CompareJson, BinsAreOfPowersOfTwo) {
  const Json edges = Json::parse(to_json({}))["ulp_edges"];
  ASSERT_EQ(edges.size(), static_cast<size_t>(kUlpBins));
  EXPECT_EQ(edges[0], 0.0);
  EXPECT_EQ(edges[1], 0.0625);
  EXPECT_EQ(edges[5], 1.0);
  EXPECT_EQ(edges[kUlpBins - 2], 65536.0);
  EXPECT_TRUE(edges[kUlpBins - 1].is_null());
}

}  // namespace
}  // namespace gradus
