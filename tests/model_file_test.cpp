// load_model: finds the network that a resume file is of, among all that make_model can make.
#include "nn/model_file.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/generator.h"
#include "cpu/host_allocator.h"
#include "nn/checkpoint.h"
#include "tests/support/expect_error.h"
#include "tests/support/files.h"

namespace gradus::nn {
namespace {

TrainerState state_of(Sequential& network, const std::string& images) {
  TrainerState state;
  state.values = {{"layers", layers_text(network)}, {"loader", "images " + images}};
  for (const NamedTensor& entry : network.state_dict()) {
    state.tensors.push_back({"model." + entry.name, entry.tensor.detach()});
  }
  return state;
}

// Images of 8x8 are too small for lenet, which is tried, too.
TEST(ModelFile, FindsTheNetworkOfSmallImages) {
  const test::TempDir dir;
  for (const std::string name : {"small_cnn", "resnet8"}) {
    const ModelOptions options{.channels = 3,
                               .height = 8,
                               .width = 8,
                               .classes = 7,
                               .norm = "group",
                               .activation = "silu"};
    Sequential network = make_model(name, options);
    save_resume(dir.path("run"), state_of(network, "5x3x8x8, and more"));
    ModelFile found = load_model(dir.path("run"));
    EXPECT_EQ(found.name, name);
    EXPECT_EQ(found.options.norm, "group");
    EXPECT_EQ(found.options.activation, "silu");
    EXPECT_EQ(found.options.classes, 7);
    const Tensor x = randn({2, 3, 8, 8}, {});
    EXPECT_EQ(found.network(x).to_vector<float>(), network(x).to_vector<float>());
  }
}

TEST(ModelFile, ADataSetMayHaveAnyName) {
  const test::TempDir dir;
  Sequential network = make_model("small_cnn");
  for (const std::string name : {"cat images 2024", "a, images 5x3x8x8"}) {
    TrainerState state = state_of(network, "5x1x28x28, and more");
    state.values["loader"] = "data_set " + name + ", " + state.values["loader"];
    save_resume(dir.path("run"), state);
    EXPECT_EQ(load_model(dir.path("run")).options.height, 28) << name;
  }
}

TEST(ModelFile, RefusesANetworkOfAnotherProgram) {
  const test::TempDir dir;
  for (const std::string images : {"5x1x8x8", "5x1x28x28", "none"}) {
    Sequential network = make_model("lenet");
    network.add(make_model("lenet"));
    save_resume(dir.path("run"), state_of(network, images));
    EXPECT_ERROR(load_model(dir.path("run")), ErrorCode::unsupported,
                 "holds no network that gradus makes");
  }
}

// Nothing is made of a size that the file only claims.
TEST(ModelFile, ImagesLargerThanTheFile) {
  const test::TempDir dir;
  Sequential network = make_model("small_cnn");
  for (const std::string images :
       {"5x1x2000000x2000000", "5x1x9000000000x1", "5x0x28x28", "512x2000000x28x28", "5x2x28x28"}) {
    save_resume(dir.path("run"), state_of(network, images));
    EXPECT_ERROR(load_model(dir.path("run")), ErrorCode::unsupported,
                 "holds no network that gradus makes");
  }
  EXPECT_LT(host_allocator()->stats().peak_bytes_in_use, 100'000'000);
}

}  // namespace
}  // namespace gradus::nn
