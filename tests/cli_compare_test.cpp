// `gradus compare` as a user runs it.
#include "tests/support/cli.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

using test::Arguments;
using test::expect_failure;
using test::Json;
using test::ProcessResult;

struct CompareCli : test::Cli {
  ProcessResult compare(Arguments more) const {
    more.insert(more.begin(), "compare");
    return gradus(more);
  }
  Json report(const std::string& name = "report.json") const {
    return Json::parse(test::read_text(dir_.path(name)));
  }
};

void expect_text(const ProcessResult& result, int status, std::string_view part) {
  EXPECT_EQ(result.status, status) << result.out << result.err;
  EXPECT_NE(result.out.find(part), std::string::npos)
      << "'" << part << "' is not in: " << result.out;
}

TEST_F(CompareCli, FunctionsOfOneValueTakeAnyShape) {
  for (const char* shape : {"7", "3,2", "2,3,4,5"}) {
    expect_text(compare({"--layer", "gelu", "--shape", shape, "--repeats", "0", "--dtype", "f32"}),
                0, "all 1 cases are within their tolerances");
  }
}

TEST_F(CompareCli, EveryLayerIsRightInEveryDtype) {
  const ProcessResult result =
      compare({"--dtype", "f32,bf16,f16,f64", "--repeats", "0", "--json", "report.json"});
  expect_text(result, 0, "cases are within their tolerances");
  const Json json = report();
  EXPECT_TRUE(json["ok"]);
  EXPECT_EQ(json["what"], "layers");
  std::set<std::string> functions, dtypes;
  for (const Json& row : json["rows"]) {
    functions.insert(row["function"]), dtypes.insert(row["dtype"]);
    EXPECT_FALSE(row["values"].empty()) << row;
  }
  EXPECT_EQ(dtypes.size(), 4u);
  for (const char* name : {"conv2d", "batch_norm", "gelu", "softmax", "group_norm"}) {
    EXPECT_TRUE(functions.contains(name)) << name;
  }
}

TEST_F(CompareCli, OneLayerWithTimes) {
  const ProcessResult result =
      compare({"--layer", "softmax", "--dtype", "f32", "--repeats", "1", "--json", "report.json"});
  expect_text(result, 0, "softmax");
  const Json json = report();
  bool timed = false;
  for (const Json& row : json["rows"]) {
    EXPECT_EQ(row["layer"], "softmax");
    timed |= !row["times"].empty();
  }
  EXPECT_TRUE(timed);
  EXPECT_GT(json["devices"][0]["copy_gb_per_s"], 0.0);
}

TEST_F(CompareCli, BeyondTheToleranceTheStatusIsOne) {
  const ProcessResult result = compare(
      {"--layer", "layer_norm", "--dtype", "f32", "--repeats", "0", "--tolerance", "1e-10"});
  expect_text(result, 1, "WRONG");
  EXPECT_NE(result.out.find("is beyond its tolerance"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("reference"), std::string::npos) << result.out;
}

TEST_F(CompareCli, ShapesThatFitAndThatDoNot) {
  const ProcessResult fits = compare({"--layer", "group_norm", "--shape", "2,12,5,3", "--dtype",
                                      "f32", "--repeats", "0", "--json", "report.json"});
  expect_text(fits, 0, "group_norm");
  EXPECT_EQ(report()["rows"][0]["shape"], Json({2, 12, 5, 3}));
  expect_failure(compare({"--layer", "max_pool2d", "--shape", "4,5"}), 1,
                 {"--shape [4,5] does not fit", "max_pool2d"});
  expect_failure(compare({"--shape", "4,0"}), 2, {"--shape"});
  expect_text(compare({"--shape", "3,4,6,5", "--dtype", "f32", "--repeats", "0"}), 0, "relu");
}

TEST_F(CompareCli, TheLayersOfAModel) {
  const ProcessResult result =
      compare({"--model", "lenet", "--norm", "group", "--data", "data", "--batch-size", "4",
               "--dtype", "f32", "--repeats", "0", "--json", "report.json"});
  expect_text(result, 0, "1 GroupNorm");
  const Json json = report();
  EXPECT_EQ(json["what"], "model");
  EXPECT_EQ(json["model"], "lenet");
  EXPECT_EQ(json["rows"][0]["shape"], Json({4, 1, 28, 28}));
  EXPECT_EQ(json["rows"].back()["path"], "loss");
}

TEST_F(CompareCli, TheModelOfAResumeFile) {
  ASSERT_EQ(train({"--resume", "run.resume", "--norm", "layer", "--activation", "gelu", "--quiet"})
                .status,
            0);
  const ProcessResult result = compare({"--model", "run.resume", "--data", "data", "--batch-size",
                                        "4", "--dtype", "f32", "--repeats", "0"});
  expect_text(result, 0, "1 LayerNorm");
  EXPECT_NE(result.out.find("layers of lenet"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("gelu"), std::string::npos) << result.out;
  dir_.file("other.txt", test::Bytes{1, 2, 3});
  expect_failure(compare({"--model", "other.txt"}), 1, {"other.txt"});
  expect_failure(compare({"--model", "nothing"}), 1, {"nothing"});
}

TEST_F(CompareCli, LockStepTraining) {
  const ProcessResult result =
      compare({"--train", "--model", "lenet", "--norm", "group", "--steps", "2", "--batch-size",
               "4", "--data", "data", "--json", "report.json"});
  expect_text(result, 0, "all 2 steps are in step");
  EXPECT_NE(result.out.find("without verdict"), std::string::npos) << result.out;
  const Json json = report();
  EXPECT_EQ(json["train"]["steps_done"], 2);
  EXPECT_TRUE(json["train"]["parted"].is_null());
  EXPECT_EQ(json["train"]["drift"]["steps"].size(), 2u);
  const ProcessResult parted =
      compare({"--train", "--model", "lenet", "--steps", "2", "--batch-size", "4", "--data", "data",
               "--tolerance", "1e-12"});
  expect_text(parted, 1, "parted at step 1, layer 0 Conv2d, forward: y");
}

TEST_F(CompareCli, Refusals) {
  expect_failure(compare({"--layer", "nothing"}), 2, {"nothing"});
  expect_failure(compare({"--dtype", "f8"}), 2, {"f8"});
  expect_failure(compare({"--train", "--dtype", "bf16"}), 2, {"--dtype"});
  expect_failure(compare({"--model", "lenet", "--layer", "softmax"}), 2, {"--layer"});
  expect_failure(compare({"--tolerance", "-1"}), 2, {"--tolerance"});
  expect_failure(compare({"--layer", "sum", "--json", "no/such/folder/x.json"}), 1, {"no/such"});
}

TEST_F(CompareCli, TheExampleOfOnesOwnModel) {
  const ProcessResult result =
      test::run_process({GRADUS_COMPARE_MY_MODEL, "mine.json"}, {.dir = dir_.path()});
  expect_text(result, 0, "all within tolerance");
  EXPECT_NE(result.out.find("GroupNorm"), std::string::npos) << result.out;
  EXPECT_EQ(report("mine.json")["what"], "model");
}

TEST_F(CompareCli, CudaIsBesideTheCpu) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const ProcessResult result = compare({"--layer", "group_norm", "--json", "report.json"});
  expect_text(result, 0, "cuda:0");
  EXPECT_EQ(report()["devices"].size(), 2u);
}

}  // namespace
}  // namespace gradus
