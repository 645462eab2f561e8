#include "nn/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>

#include "nn/io/safetensors.h"
#include "nn/optim/sgd.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/files.h"
#include "tests/support/toy.h"

namespace gradus::nn {
namespace {

using test::TempDir;
using test::toy_net;
using test::toy_set;

constexpr auto kInvalid = ErrorCode::invalid_argument;

struct Session {
  explicit Session(Device device = kCpu, uint64_t seed = 1)
      : net(moved(toy_net(seed), device)),
        loader(toy_set(40), {.batch_size = 8, .crop_padding = 1, .flip = true, .device = device}),
        optimizer(net.named_parameters(), {.lr = 0.05, .momentum = 0.9}),
        trainer(net, loader, optimizer, {.epochs = 3}) {}

  static Sequential moved(Sequential net, Device device) {
    net.to(device);
    return net;
  }

  Sequential net;
  DataLoader loader;
  SGD optimizer;
  Trainer trainer;
};

TEST(Weights, NamesOfTheFileAreThoseOfPyTorch) {
  const TempDir dir;
  Sequential net = toy_net();
  save_weights(dir.path("w.safetensors"), net);
  const SafeTensors file = read_safetensors(dir.path("w.safetensors"));
  for (const char* name : {"0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var",
                           "1.num_batches_tracked", "6.weight", "6.bias"}) {
    EXPECT_NE(file.find(name), nullptr) << name;
  }
  EXPECT_EQ(file.tensors.size(), 8u);
  EXPECT_EQ(file.find("1.num_batches_tracked")->shape, Shape{});
  EXPECT_EQ(file.find("1.num_batches_tracked")->dtype, DType::i64);
  EXPECT_EQ(dir.names(), std::vector<std::string>{"w.safetensors"});
}

TEST(Weights, RoundTripKeepsEveryBitInEveryDtype) {
  const TempDir dir;
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    Sequential net = toy_net(1), other = toy_net(2);
    net.to(dtype), other.to(dtype);
    save_weights(dir.path("w"), net);
    EXPECT_NE(parameter_hash(net), parameter_hash(other));
    EXPECT_TRUE(load_weights(dir.path("w"), other).ok());
    EXPECT_EQ(parameter_hash(net), parameter_hash(other));
  }
}

TEST(Weights, OfAnotherModelAreReported) {
  const TempDir dir;
  Sequential net = toy_net();
  save_weights(dir.path("w"), net);
  Sequential other(Conv2d(1, 4, 5, {}, false), Linear(4, 4));
  EXPECT_ERROR(load_weights(dir.path("w"), other), kInvalid,
               "mismatched 0.weight expected [4,1,5,5], got [4,1,3,3]", "unexpected 1.num_batches");
  EXPECT_FALSE(load_weights(dir.path("w"), other, false).ok());
}

TEST(Weights, DamagedFileIsRefusedAndChangesNothing) {
  const TempDir dir;
  Sequential net = toy_net();
  const std::string before = parameter_hash(net);
  save_weights(dir.path("w"), net);
  test::Bytes bytes = test::read_file(dir.path("w"));
  bytes.resize(bytes.size() - 5);
  EXPECT_ERROR(load_weights(dir.file("short", bytes), net), ErrorCode::io, "short");
  EXPECT_ERROR(load_weights(dir.path("absent"), net), ErrorCode::io, "absent");
  EXPECT_EQ(parameter_hash(net), before);
}

// A flipped bit anywhere: the header's length, names and numbers, its padding, every tensor.
TEST(Resume, AFlippedBitAnywhereIsNoticed) {
  const TempDir dir;
  Session run;
  run.trainer.step();
  save_resume(dir.path("run"), run.trainer.state());
  const test::Bytes good = test::read_file(dir.path("run"));
  const auto is_refused = [&](size_t at, int bit) {
    test::Bytes bad = good;
    bad[at] ^= static_cast<uint8_t>(1 << bit);
    dir.file("bad", bad);
    try {
      load_resume(dir.path("bad"));
    } catch (const Error& error) {
      return error.code() == ErrorCode::io;
    }
    return false;
  };
  uint64_t header = 0;
  std::memcpy(&header, good.data(), sizeof header);
  for (size_t at = 0; at < 8 + header; ++at) EXPECT_TRUE(is_refused(at, at % 8)) << at;
  for (size_t at = 8 + header; at < good.size(); at += 7) EXPECT_TRUE(is_refused(at, at % 8)) << at;
  EXPECT_TRUE(is_refused(good.size() - 1, 0));
  EXPECT_NO_THROW(load_resume(dir.path("run")));
}

TEST(Weights, AFlippedBitOfTheDataIsNoticed) {
  const TempDir dir;
  Sequential net = toy_net();
  save_weights(dir.path("w"), net);
  test::Bytes bytes = test::read_file(dir.path("w"));
  bytes.back() ^= 1;
  EXPECT_ERROR(load_weights(dir.file("bad", bytes), net), ErrorCode::io,
               "bad': the file is damaged: its checksum is ");
}

// As gradus wrote them before there was a checksum, and as others do.
TEST(Weights, FilesWithoutAChecksumAreRead) {
  const TempDir dir;
  Session run;
  TrainerState state = run.trainer.state();
  save_resume(dir.path("run"), state);
  const SafeTensors file = read_safetensors(dir.path("run"));
  std::vector<SafeTensorView> views;
  for (const SafeTensor& tensor : file.tensors)
    views.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
  std::map<std::string, std::string> metadata = file.metadata;
  metadata.erase("gradus.crc32");
  metadata["version"] = "1";
  write_safetensors(dir.path("old"), views, metadata);
  EXPECT_NO_THROW(run.trainer.restore(load_resume(dir.path("old"))));
  metadata["version"] = "2";
  write_safetensors(dir.path("lacks"), views, metadata);
  EXPECT_ERROR(load_resume(dir.path("lacks")), ErrorCode::io, "it lacks gradus.crc32");
}

class ResumeTest : public test::EachDevice {};

// Through a file, in the middle of the second epoch.
TEST_P(ResumeTest, InterruptedAndResumedIsUnbroken) {
  const TempDir dir;
  std::string unbroken_hash;
  {
    Session unbroken(GetParam());
    unbroken.trainer.run();
    unbroken_hash = parameter_hash(unbroken.net);
  }
  {
    Session first(GetParam());
    for (int i = 0; i < 7; ++i) first.trainer.step();
    save_resume(dir.path("run"), first.trainer.state());
  }
  Session second(GetParam(), 5);
  second.trainer.restore(load_resume(dir.path("run")));
  EXPECT_EQ(second.loader.position(), (LoaderPosition{.epoch = 1, .samples = 16, .drawn = 56}));
  second.trainer.run();
  EXPECT_EQ(parameter_hash(second.net), unbroken_hash);
}

GRADUS_ON_EACH_DEVICE(ResumeTest);

TEST(Resume, OtherFilesAndVersionsAreRefused) {
  const TempDir dir;
  Session run;
  save_weights(dir.path("weights"), run.net);
  EXPECT_ERROR(load_resume(dir.path("weights")), ErrorCode::io, "weights",
               "expected a file of format gradus-resume, got 'pt'");
  write_safetensors(dir.path("newer"), {}, {{"format", "gradus-resume"}, {"version", "3"}});
  EXPECT_ERROR(load_resume(dir.path("newer")), ErrorCode::io, "newer",
               "expected version 2, got '3'");
  write_safetensors(dir.path("empty"), {}, {{"format", "gradus-resume"}, {"version", "1"}});
  EXPECT_ERROR(run.trainer.restore(load_resume(dir.path("empty"))), kInvalid,
               "resume: the state lacks 'clipping'");
}

// The keys are a promise to later versions.
TEST(Resume, FormatIsFrozen) {
  const TempDir dir;
  Session run;
  run.optimizer.set_schedule(schedules::constant(0.1), 15);
  run.trainer.step();
  save_resume(dir.path("run"), run.trainer.state());
  const SafeTensors file = read_safetensors(dir.path("run"));
  std::vector<std::string> names;
  for (const SafeTensor& tensor : file.tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{
                       "generator", "model.0.weight", "model.1.bias", "model.1.num_batches_tracked",
                       "model.1.running_mean", "model.1.running_var", "model.1.weight",
                       "model.6.bias", "model.6.weight", "optimizer.born", "optimizer.lr",
                       "optimizer.momentum_buffer.0.weight", "optimizer.momentum_buffer.1.bias",
                       "optimizer.momentum_buffer.1.weight", "optimizer.momentum_buffer.6.bias",
                       "optimizer.momentum_buffer.6.weight", "optimizer.schedule", "optimizer.step",
                       "totals"}));
  const std::map<std::string, std::string> want{
      {"format", "gradus-resume"},
      {"version", "2"},
      {"gradus.crc32", file.metadata.at("gradus.crc32")},
      {"epoch", "0"},
      {"samples", "8"},
      {"drawn", "8"},
      {"layers",
       "layer 0 Conv2d, layer 1 BatchNorm2d, layer 2 ReLU, layer 3 MaxPool2d, layer 4 Flatten, "
       "layer 5 Dropout, layer 6 Linear"},
      {"clipping", "clip_value 0, clip_norm 0"},
      {"epochs", "3"},
      {"precision", "f32"},
      {"optimizer", "sgd: momentum 0.9, dampening 0, weight_decay 0, nesterov false"},
      {"loader",
       "data_set unnamed, images 40x1x8x8, labels b45b23a133c6d856, batch_size 8, shuffle true, "
       "drop_last true, seed 0, crop_padding 1, flip true, pixels d2ab6c18, mean 0.5, std 0.25, "
       "dtype f32, format channels_last"}};
  EXPECT_EQ(file.metadata, want);
}

// As gradus wrote it before the last settings were added; the others are compared all the same.
TEST(Resume, SettingsThatAFileLacksAreNotCompared) {
  Session run;
  TrainerState state = run.trainer.state();
  std::string& loader = state.values["loader"];
  loader.resize(loader.find(", pixels "));
  EXPECT_NO_THROW(run.trainer.restore(state));
  loader.replace(loader.find("flip true"), 9, "flip false");
  EXPECT_ERROR(run.trainer.restore(state), kInvalid, "flip is true in this run and false in");
  loader.resize(loader.find(", batch_size "));
  EXPECT_ERROR(run.trainer.restore(state), kInvalid, "resume: loader is data_set unnamed");
  state = run.trainer.state();
  std::string& layers = state.values["layers"];
  layers.resize(layers.rfind(", "));
  EXPECT_ERROR(run.trainer.restore(state), kInvalid, "resume: layers is layer 0 Conv2d");
}

TEST(Resume, DamagedCountersAreRefused) {
  Session run;
  TrainerState state = run.trainer.state();
  state.values["samples"] = "12x";
  EXPECT_ERROR(run.trainer.restore(state), kInvalid, "'samples' must be a number, got '12x'");
  state.values["samples"] = "41";
  EXPECT_ERROR(run.trainer.restore(state), kInvalid,
               "samples must be a multiple of batch_size 8, got 41");
  state.values["samples"] = "48";
  EXPECT_ERROR(run.trainer.restore(state), kInvalid, "drawn must be samples to 2^53, got 0");
  state.values["drawn"] = "48";
  EXPECT_ERROR(run.trainer.restore(state), kInvalid, "an epoch has 40 samples");
  state.values["samples"] = "-8";
  EXPECT_ERROR(run.trainer.restore(state), kInvalid, "an epoch has 40 samples");
  state.values["samples"] = "8";
  for (const char* epoch : {"-1", "4"}) {
    state.values["epoch"] = epoch;
    EXPECT_ERROR(run.trainer.restore(state), kInvalid, "expected 0 to 3 epochs done, got ", epoch);
  }
  EXPECT_EQ(run.loader.position(), LoaderPosition{});
  state.values.erase("drawn");
  EXPECT_ERROR(run.trainer.restore(state), kInvalid, "lacks 'drawn'");
}

// The last batch of an epoch may be a small one, and a state be taken after it.
TEST(Resume, AfterABatchThatIsNotFull) {
  DataLoader loader(toy_set(20), {.batch_size = 8, .drop_last = false});
  Sequential net = toy_net(1);
  SGD optimizer(net.named_parameters(), {.lr = 0.05});
  Trainer trainer(net, loader, optimizer, {.epochs = 2});
  for (int step = 0; step < 3; ++step) trainer.step();
  const TrainerState state = trainer.state();
  EXPECT_EQ(state.values.at("samples"), "20");
  trainer.step();
  const std::string unbroken = parameter_hash(net);
  trainer.restore(state);
  trainer.step();
  EXPECT_EQ(parameter_hash(net), unbroken);
}

// Kernels index the schedule by the step, so a wrong one would read outside it.
TEST(Resume, DamagedOptimizerCountersAreRefusedAndChangeNothing) {
  Session run;
  run.optimizer.set_schedule(schedules::constant(0.1), 15);
  run.trainer.step();
  const TrainerState good = run.trainer.state();
  const auto expect_refused = [&](const std::string& name, int64_t value, std::string_view text) {
    TrainerState state = run.trainer.state();
    for (NamedTensor& entry : state.tensors) {
      if (entry.name == name) {
        const size_t count = static_cast<size_t>(entry.tensor.numel());
        entry.tensor =
            Tensor::from_vector(std::vector<int64_t>(count, value), entry.tensor.shape());
      }
      if (entry.name == "model.0.weight") entry.tensor = Tensor::zeros(entry.tensor.shape(), {});
    }
    EXPECT_ERROR(run.trainer.restore(state), kInvalid, text, "in the saved state");
  };
  const std::string before = parameter_hash(run.net);
  expect_refused("optimizer.step", -1, "sgd: step must be 0 to 2^62, got -1");
  expect_refused("optimizer.step", -1000000000, "sgd: step must be 0 to 2^62, got -1000000000");
  expect_refused("optimizer.step", INT64_MAX, "sgd: step must be 0 to 2^62, got 92");
  expect_refused("optimizer.born", -2, "sgd: born must be -1 to 1, the steps done, got -2");
  expect_refused("optimizer.born", 2, "sgd: born must be -1 to 1, the steps done, got 2");
  EXPECT_EQ(parameter_hash(run.net), before);
  EXPECT_EQ(run.optimizer.steps(), 1);
  run.trainer.restore(good);
  run.trainer.step();
  run.trainer.synchronize();
}

}  // namespace
}  // namespace gradus::nn
