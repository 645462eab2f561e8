// `gradus compare` as a user runs it.
#include "tests/support/cli.h"
#include "tests/support/gpu.h"
#include "tests/support/paths.h"

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

TEST_F(CompareCli, LayersByTheNamesOfTheirClasses) {
  expect_text(compare({"--layer", "GroupNorm,ReLU", "--repeats", "0", "--dtype", "f32"}), 0,
              "\nactivation: relu  f32");
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

TEST_F(CompareCli, EveryFunctionHasATime) {
  ASSERT_EQ(compare({"--layer", "matmul,cross_entropy,nll_loss,avg_pool2d,arithmetic,sum",
                     "--dtype", "f32", "--repeats", "1", "--json", "report.json"})
                .status,
            0);
  const Json json = report();
  std::map<std::string, size_t> times;
  std::map<std::string, double> bytes;  // of the last direction: backward
  for (const Json& row : json["rows"]) {
    times[row["function"]] += row["times"].size();
    for (const Json& time : row["times"]) bytes[row["function"]] = time["bytes"];
    EXPECT_NE(row["times"].empty(), row["values"].empty()) << row["case"];
  }
  EXPECT_EQ(times.size(), 13u);
  for (const auto& [function, count] : times) EXPECT_EQ(count, 2u) << function;
  EXPECT_GE(bytes["div"], bytes["mul"]) << "the gradient of a divisor is part of it";
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
  for (const char* shape : {"4,0", "4,", "", "4;5", "1,1,1,1,1,1,1,1,1"})
    expect_failure(compare({"--shape", shape}), 2, {"--shape", "up to 8 sizes of 1 or more"});
  ASSERT_EQ(compare({"--layer", "gelu", "--shape", "64,10", "--shape", "3", "--repeats", "0",
                     "--json", "report.json"})
                .status,
            0);
  EXPECT_EQ(report()["rows"][0]["shape"], Json({3})) << "the last one counts";
  expect_text(compare({"--shape", "3,4,6,5", "--dtype", "f32", "--repeats", "0"}), 0, "relu");
  expect_text(compare({"--shape", "4,5", "--dtype", "f32", "--repeats", "0"}), 0,
              "left out, since they take no x of [4,5]: conv2d, max_pool2d");
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
  expect_failure(
      compare({"--model", "lnet"}), 1,
      {"'lnet' is neither a network (small_cnn, lenet, resnet8) nor a file that exists"});
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

// Of each function, with one, two and many values in a set: what cancels whatever the values are,
// and what has no value at all.
TEST_F(CompareCli, EveryShapeIsWithinItsTolerance) {
  const auto is_right = [&](const std::string& shape, const std::string& seed) {
    const ProcessResult result = compare(
        {"--shape", shape, "--seed", seed, "--repeats", "0", "--dtype", "f32,bf16,f16,f64"});
    EXPECT_EQ(result.status, 0) << shape << ", seed " << seed << ": " << result.out << result.err;
  };
  for (const char* seed : {"0", "1"}) {
    for (const char* shape :
         {"1", "2", "1000", "1,1", "2,1", "2,3", "8,16", "255,2", "1,1,1", "2,4,1", "2,3,5",
          "1,1,1,1", "2,4,1,1", "1,4,2,2", "1,64,1,1", "2,12,5,3", "1,1,1,1,1", "2,4,1,1,1"})
      is_right(shape, seed);
  }
}

// Times need a case of any size; nothing else keeps one.
TEST_F(CompareCli, EachLayerTakesSizesOfItsOwn) {
  for (const auto& [layer, shape] : {std::pair("layer_norm", "3,100"),
                                     {"rms_norm", "2,3,4,5,6"},
                                     {"linear", "7,31"},
                                     {"conv2d", "2,13,9,9"},
                                     {"add", "2,3,4,5"},
                                     {"cross_entropy", "9,23"}}) {
    expect_text(compare({"--layer", layer, "--shape", shape, "--repeats", "0"}), 0,
                "all 2 cases are within");
  }
}

TEST_F(CompareCli, ATrainingThatDiverges) {
  const ProcessResult result =
      compare({"--train", "--model", "lenet", "--steps", "20", "--batch-size", "4", "--data",
               "data", "--lr", "1e30", "--json", "report.json"});
  expect_text(result, 1, "\ndiverged at step 1 of 20: 0 in step before it\n");
  EXPECT_NE(result.out.find(
                "The training has diverged at step 1: 0.weight of optimizer sgd (forward) has"),
            std::string::npos)
      << result.out;
  EXPECT_FALSE(report()["ok"]);
  EXPECT_TRUE(report()["train"]["parted"].is_null());
  EXPECT_EQ(report()["train"]["steps_done"], 0);
}

TEST_F(CompareCli, OptionsThatWouldDoNothingAreRefused) {
  const std::pair<Arguments, const char*> wrong[] = {
      {{"--steps", "3"}, "--steps: is for --train"},
      {{"--lr", "0.1"}, "--lr: is for --train"},
      {{"--model", "lenet", "--optimizer", "adam"}, "--optimizer: is for --train"},
      {{"--norm", "group"}, "--norm: is for --model and --train"},
      {{"--layer", "relu", "--batch-size", "3"}, "--batch-size: is for --model"},
      {{"--data", "data"}, "--data: is for --model"},
      {{"--train", "--repeats", "3"}, "--repeats: lock-step training takes no times"},
      {{"--train", "--layer", "relu"}, "--layer: "},
      {{"--model", "run.resume", "--norm", "group"}, "--norm: the file 'run.resume' says its own"},
      {{"--model", "lenet", "--shape", "2,1,28,28", "--data", "data"}, "--data: --shape says"},
      {{"--json", "a", "--html", "a"}, "--html: 'a' is the file of --json"},
      {{"--model", "run.resume", "--json", "data/../run.resume"}, "is the file of --model"},
      {{"--json", ""}, "--json: expected the name of a file"},
      {{"--model", "lenet", "--data", ""}, "--data: expected the name of a file or folder"}};
  for (const auto& [arguments, text] : wrong) expect_failure(compare(arguments), 2, {text});
}

TEST_F(CompareCli, Refusals) {
  expect_failure(compare({"--layer", "nothing"}), 2, {"nothing"});
  expect_failure(compare({"--dtype", "f8"}), 2, {"f8"});
  expect_failure(compare({"--train", "--dtype", "bf16"}), 2, {"--dtype"});
  expect_failure(compare({"--model", "lenet", "--layer", "softmax"}), 2, {"--layer"});
  expect_failure(compare({"--tolerance", "-1"}), 2, {"--tolerance"});
  for (const char* option : {"--json", "--html"}) {
    const ProcessResult result = compare({"--layer", "sum", option, "no/such/folder/x"});
    expect_failure(result, 1, {option, "no/such"});
    EXPECT_EQ(result.out, "") << "must be found before anything is compared";
  }
}

TEST_F(CompareCli, TheExampleOfOnesOwnModel) {
  const ProcessResult result = test::run_process(
      {test::program_path("compare_my_model"), "mine.json"}, {.dir = dir_.path()});
  expect_text(result, 0, "all within tolerance");
  EXPECT_NE(result.out.find("GroupNorm"), std::string::npos) << result.out;
  EXPECT_EQ(report("mine.json")["what"], "model");
  expect_failure(test::run_process({test::program_path("compare_my_model"), "/dev/full"},
                                   {.dir = dir_.path()}),
                 2, {"cannot write '/dev/full'"});
}

TEST_F(CompareCli, CudaIsBesideTheCpu) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const ProcessResult result = compare({"--layer", "group_norm", "--json", "report.json"});
  expect_text(result, 0, "cuda:0");
  EXPECT_EQ(report()["devices"].size(), 2u);
}

}  // namespace
}  // namespace gradus
