// The program `gradus`: its usage, info, bench and errors.

#include <filesystem>

#include "core/build_config.h"
#include "tests/support/cli.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

using namespace test;

using CliCommands = Cli;

TEST_F(CliCommands, HelpNamesEveryOption) {
  EXPECT_NE(gradus({"--help"}).out.find("train"), std::string::npos);
  EXPECT_NE(gradus({"--help"}).out.find("Exit status: 0 for success; 1 "), std::string::npos);
  const ProcessResult help = gradus({"train", "--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* option :
       {"--data-set",   "--data",      "--device",     "--model",     "--norm",
        "--activation", "--clip-norm", "--clip-value", "--epochs",    "--batch-size",
        "--lr",         "--optimizer", "--schedule",   "--precision", "--seed",
        "--threads",    "--save",      "--resume",     "--metrics",   "--quiet"}) {
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
  for (const char* seed : {"-1", "18446744073709551616", "1.5"}) {
    expect_failure(gradus({"train", "--seed", seed}), 2,
                   {"--seed", seed, "0 to 18446744073709551615"});
  }
  for (const char* lr : {"-0.1", "0", "nan", "inf", "1e999", "x"}) {
    expect_failure(gradus({"train", "--lr", lr}), 2, {"--lr", lr, "finite number above 0"});
  }
  for (const char* size : {"0", "-5", "9223372036854775808", "1e3"}) {
    expect_failure(gradus({"train", "--batch-size", size}), 2, {"--batch-size", size});
  }
  expect_failure(gradus({"bench", "step", "--batch-size", "60001"}), 2, {"--batch-size", "60000"});
  expect_failure(gradus({"bench"}), 2, {"Usage: gradus bench", "step"});
  for (const char* device : {"gpu", "cuda:-1", "cuda:", ""}) {
    expect_failure(train({"--device", device}), 2,
                   {"--device", "auto, cpu, cuda or cuda:N", device});
  }
}

TEST_F(CliCommands, IntegersAreDecimal) {
  const ProcessResult result =
      train({"--seed", "010", "--batch-size", "012", "--epochs", "01", "--threads", "02"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("2 threads, f32; 1 epoch of 8 steps of 12 images"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("seed 10\n"), std::string::npos) << result.out;
  for (const char* option : {"--seed", "--batch-size", "--epochs", "--threads"}) {
    expect_failure(train({option, "0x10"}), 2, {option, "expected an integer of ", "'0x10'"});
  }
  EXPECT_EQ(gradus({"compare", "--layer", "sum", "--repeats", "00", "--seed", "08"}).status, 0);
  EXPECT_EQ(gradus({"explain", "layer_norm", "--axes", "01", "--seed", "08"}).status, 0);
}

TEST_F(CliCommands, ThreadsOfTheEnvironment) {
  EXPECT_NE(shell("GRADUS_THREADS=3 $GRADUS info").out.find(" 3 threads"), std::string::npos);
  expect_failure(shell("GRADUS_THREADS=x $TRAIN"), 1, {"GRADUS_THREADS: expected 1 to 256"});
  const ProcessResult result = shell("GRADUS_THREADS=x $TRAIN --threads 1 --epochs 1");
  EXPECT_EQ(result.status, 0) << result.err;
}

TEST_F(CliCommands, OutputFilesMustDifferAndHaveNames) {
  for (const char* option : {"--save", "--resume", "--metrics"}) {
    expect_failure(train({option, ""}), 2, {option, "expected the name of a file"});
    for (const char* next : {"--quiet", "gone"}) {  // is no name
      expect_failure(train({std::string(option) + "=", next}), 2,
                     {option, "expected the name of a file"});
      EXPECT_FALSE(std::filesystem::exists(dir_.path(next)));
    }
  }
  expect_failure(train({"--data", ""}), 2, {"--data", "expected the name of a file or folder"});
  std::filesystem::create_symlink("a", dir_.path("link"));
  expect_failure(train({"--save", "a", "--resume", "./a"}), 2, {"--resume", "the file of --save"});
  expect_failure(train({"--save", "a", "--metrics", "data/../a"}), 2, {"--metrics", "of --save"});
  expect_failure(train({"--resume", "a", "--metrics", "link"}), 2, {"--metrics", "of --resume"});
  EXPECT_FALSE(std::filesystem::exists(dir_.path("a")));
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

// One row per case, dtype and state of the cache, as text and as JSON.
TEST_F(CliCommands, BenchLayers) {
  const auto rows_of = [&](const Arguments& more) {
    Arguments bench{"bench",  "layers",       "--device",  "cpu", "--layer", "layer_norm",
                    "--case", "^rows_small$", "--repeats", "1",   "--json",  "layers.json"};
    bench.insert(bench.end(), more.begin(), more.end());
    const ProcessResult result = gradus(bench);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.out.find("GB/s at the fewest bytes"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("\nlayer_norm rows_small "), std::string::npos) << result.out;
    const Bytes file = test::read_file(dir_.path("layers.json"));
    return Json::parse(file.begin(), file.end());
  };
  const Json both = rows_of({"--dtype", "f32"});
  ASSERT_EQ(both.at("rows").size(), 2u);
  for (const Json& row : both.at("rows")) {
    EXPECT_EQ(row.at("layer"), "layer_norm");
    EXPECT_EQ(row.at("case"), "rows_small");
    EXPECT_EQ(row.at("dtype"), "f32");
    for (const char* direction : {"forward", "backward"}) {
      const Json& side = row.at(direction);
      const double bytes = side.at("bytes"), rate = side.at("gb_per_s"), ms = side.at("ms");
      EXPECT_GE(bytes, 2 * 4 * 8192 * 1024) << direction;  // x and y at least
      EXPECT_NEAR(1e-6 * bytes / ms, rate, 1e-6 * rate) << direction;
      EXPECT_NEAR(rate / both.at("copy_gb_per_s").get<double>(), side.at("share"), 1e-6)
          << direction;
    }
  }
  EXPECT_TRUE(both.at("rows")[0].at("cold").get<bool>());
  EXPECT_FALSE(both.at("rows")[1].at("cold").get<bool>());
  const Json cold = rows_of({"--cold", "--dtype", "f32"}).at("rows");
  ASSERT_EQ(cold.size(), 1u);
  EXPECT_TRUE(cold[0].at("cold").get<bool>());
  const Json warm = rows_of({"--warm", "--dtype", "f32,bf16"}).at("rows");
  ASSERT_EQ(warm.size(), 2u);
  EXPECT_FALSE(warm[0].at("cold").get<bool>());
  EXPECT_EQ(warm[0].at("dtype"), "f32");
  EXPECT_EQ(warm[1].at("dtype"), "bf16");
}

TEST_F(CliCommands, BenchConv) {
  const ProcessResult result = gradus({"bench", "conv", "--device", "cpu", "--shape", "128 1->32",
                                       "--repeats", "1", "--json", "conv.json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Bytes file = test::read_file(dir_.path("conv.json"));
  const Json rows = Json::parse(file.begin(), file.end()).at("rows");
  ASSERT_EQ(rows.size(), 1u);
  for (const char* direction : {"forward", "forward_bias", "dgrad", "wgrad", "wgrad_dbias"}) {
    EXPECT_GT(rows[0].at(direction).at("us"), 0) << direction;
    EXPECT_TRUE(rows[0].at(direction).at("repeats").get<bool>()) << direction;
    EXPECT_FALSE(rows[0].at(direction).contains("beyond_nhwc_us")) << direction;
  }
}

// NCHW is measured beside channels-last. The CPU needs no copies for it.
TEST_F(CliCommands, BenchConvOfNchw) {
  const ProcessResult result =
      gradus({"bench", "conv", "--device", "cpu", "--shape", "128 1->32", "--layout", "nchw",
              "--repeats", "1", "--json", "conv.json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("us beyond channels-last"), std::string::npos) << result.out;
  const Bytes file = test::read_file(dir_.path("conv.json"));
  const Json row = Json::parse(file.begin(), file.end()).at("rows").at(0);
  for (const char* direction : {"forward", "forward_bias", "dgrad", "wgrad", "wgrad_dbias"}) {
    const double us = row.at(direction).at("us"), more = row.at(direction).at("beyond_nhwc_us");
    EXPECT_LT(more, us) << direction;  // the other took some time, too
    EXPECT_FALSE(row.at(direction).contains("layout_bytes")) << direction;
  }
}

TEST_F(CliCommands, NothingToMeasure) {
  expect_failure(gradus({"bench", "layers", "--layer", "sum", "--case", "zzz"}), 2,
                 {"--case", "no case has 'zzz' in its name"});
  expect_failure(gradus({"bench", "conv", "--shape", "zzz"}), 2, {"--shape", "'zzz'"});
  for (const char* command : {"layers", "conv"}) {
    const ProcessResult result = gradus({"bench", command, "--json", "no/such/folder"});
    expect_failure(result, 1, {"--json", "'no/such/folder'", "cannot be created"});
    EXPECT_EQ(result.out, "") << "must be found before anything is measured";
  }
  const ProcessResult late = gradus({"bench", "conv", "--device", "cpu", "--dtype", "f32,tf32"});
  expect_failure(late, 1, {"tf32 needs a GPU"});
  EXPECT_EQ(late.out, "") << "must be found before anything is measured";
}

TEST_F(CliCommands, HelpFitsATerminal) {
  for (const Arguments& command :
       {Arguments{}, {"train"}, {"compare"}, {"explain"}, {"bench"}, {"bench", "layers"}}) {
    Arguments arguments = command;
    arguments.push_back("--help");
    std::istringstream lines(gradus(arguments).out);
    for (std::string line; std::getline(lines, line);) {
      const bool is_name = line.find("  ", 2) == std::string::npos;  // and the values it takes
      EXPECT_TRUE(is_name || line.size() <= 80) << line;
    }
  }
  const std::string explain = gradus({"explain", "--help"}).out;
  EXPECT_NE(explain.find("\n  --eval Excludes: --train "), std::string::npos) << explain;
  EXPECT_NE(gradus({"compare", "--help"}).out.find("\n          gradus compare --train"),
            std::string::npos)
      << "under the first example";
}

// On the CPU there is nothing to choose, which is said; the file is read all the same.
TEST_F(CliCommands, AutotuneSaysWhatItWasGoodFor) {
  const std::vector<std::string> bench{"bench",     "step",  "--device",     "cpu",
                                       "--model",   "lenet", "--batch-size", "4",
                                       "--repeats", "1",     "--autotune",   "choices"};
  const ProcessResult result = gradus(bench);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.err.find("autotune: nothing in this run had a choice to take from 'choices'"),
            std::string::npos)
      << result.err;
  EXPECT_FALSE(std::filesystem::exists(dir_.path("choices")));
  dir_.file("choices", test::to_bytes("[]"));
  expect_failure(gradus(bench), 1, {"autotune: 'choices': is not a file of measured choices"});
  dir_.file("choices", test::to_bytes("{\"gradus_autotune\": 1, \"cards\": {}}"));
  EXPECT_EQ(gradus(bench).status, 0);
}

using CliErrors = Cli;

TEST_F(CliErrors, AutotuneMeasuresOnlyForAFile) {
  for (const char* command : {"$TRAIN", "$GRADUS bench conv"}) {
    expect_failure(shell(std::string("GRADUS_AUTOTUNE= ") + command + " --autotune-measure"), 2,
                   {"requires --autotune"});
  }
}

TEST_F(CliErrors, AutotuneNeedsAFileOfItsOwn) {
  const Arguments conv{"bench", "conv", "--device", "cpu", "--repeats", "1", "--shape", "s2"};
  const Arguments layers{"bench",   "layers",        "--device", "cpu",    "--repeats", "0",
                         "--layer", "cross_entropy", "--case",   "128x10", "--warm"};
  for (Arguments bench : {conv, layers}) {
    const auto with = [&](const Arguments& more) {
      Arguments all = bench;
      all.insert(all.end(), more.begin(), more.end());
      return gradus(all);
    };
    expect_failure(with({"--autotune", ""}), 2, {"--autotune", "expected the name of a file"});
    expect_failure(with({"--json", "a", "--autotune", "./a"}), 2, {"--autotune", "of --json"});
    expect_failure(with({"--autotune", "no/such"}), 1, {"--autotune: 'no/such': cannot be crea"});
  }
  expect_failure(train({"--metrics", "a", "--autotune", "a"}), 2, {"--autotune", "of --metrics"});
  expect_failure(shell("GRADUS_AUTOTUNE=m $TRAIN --metrics m"), 2, {"--autotune", "of --metrics"});
}

TEST_F(CliCommands, QuietTrainingSaysNothingOfAutotune) {
  const ProcessResult result = train({"--epochs", "1", "--quiet", "--autotune", "choices"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out + result.err, "");
}

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
  expect_failure(train({"--batch-size", "97"}), 1, {"batch", "97", "96"});
}

TEST_F(CliErrors, TooManySteps) {
  expect_failure(train({"--epochs", "1000000", "--batch-size", "1"}), 1,
                 {"at most 10000000 steps, got 1000000 epochs of 96"});
}

TEST_F(CliErrors, TestImagesOfAnotherSize) {
  Bytes wide = images_file(40, 2);
  wide[11] = 14, wide[15] = 56;
  dir_.file("data/t10k-images-idx3-ubyte", wide);
  expect_failure(train({}), 1, {"to train on are [1,28,28] and those to test on [1,14,56]"});
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
  expect_failure(train({"--metrics", "no/such/folder"}), 1,
                 {"metrics: 'no/such/folder': cannot be opened: No such file or directory"});
  for (const char* option : {"--save", "--resume"}) {
    const ProcessResult result = train({option, "no/such/folder"});
    expect_failure(result, 1, {option, "'no/such/folder'", "cannot be created"});
    EXPECT_EQ(result.out, "") << "must be found before training";
  }
  const ProcessResult result =
      shell("DATA=$PWD/data; mkdir gone; cd gone; rmdir ../gone; $TRAIN --data $DATA");
  expect_failure(result, 1, {"--resume", "'gradus.resume': cannot be created"});
  EXPECT_EQ(result.out, "") << "must be found before training";
}

TEST_F(CliErrors, Device) {
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
                 1, {"gradus: out of memory: asked for ", " bytes on cpu, holding ", "are free"});
}

TEST_F(CliErrors, OutOfMemoryOfTheHost) {
  // The random images are 470 MB in one vector; the CUDA libraries alone map more than 600 MB.
  constexpr int64_t kMegabytes = GRADUS_HAS_CUDA ? 900 : 400;
  expect_failure(
      gradus({"bench", "step", "--device", "cpu", "--batch-size", "60000", "--threads", "1"},
             {.memory = kMegabytes << 20}),
      1, {"gradus: out of memory: "});
}
#endif

}  // namespace
}  // namespace gradus
