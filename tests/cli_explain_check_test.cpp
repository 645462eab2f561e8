// `gradus explain --check`, run as a user runs it.

#include <cmath>
#include <cstring>
#include <fstream>

#include "autograd/explain/setting.h"
#include "nn/io/npz.h"
#include "tests/support/cli.h"
#include "tests/support/text.h"

namespace gradus {
namespace {

using namespace test;

// A learner's file: the saved input with a gradient of their own.
class CliExplainCheck : public Cli {
 protected:
  // Saves the input of `arguments` and adds the right gradients to it.
  void claim(const Arguments& arguments) {
    Arguments command{"explain"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    command.insert(command.end(), {"--save", "in.npz", "--json", "right.json"});
    const ProcessResult result = gradus(command);
    ASSERT_EQ(result.status, 0) << result.err;
    arrays = nn::read_npz(dir_.path("in.npz"));
    const Json derivation = Json::parse(read_text(dir_.path("right.json")));
    for (const Json& one : derivation.at("gradients")) {
      const std::vector<double> values = one.at("value").at("values");
      const std::vector<int64_t> shape = one.at("value").at("shape");
      set(one.at("name"), values, Shape(std::span(shape)));
    }
  }
  void set(const std::string& name, const std::vector<double>& values, const Shape& shape) {
    const auto bytes = std::as_bytes(std::span(values));
    arrays[name] = {.dtype = DType::f64, .shape = shape, .bytes = {bytes.begin(), bytes.end()}};
  }
  std::vector<double> values(const std::string& name) {
    std::vector<double> values(arrays.at(name).bytes.size() / sizeof(double));
    std::memcpy(values.data(), arrays.at(name).bytes.data(), arrays.at(name).bytes.size());
    return values;
  }
  ProcessResult check(const std::string& layer, const Arguments& more = {}) {
    nn::write_npz(dir_.path("mine.npz"), arrays);
    Arguments command{"explain", layer, "--check", "mine.npz"};
    command.insert(command.end(), more.begin(), more.end());
    return gradus(command);
  }
  nn::NpyArrays arrays;
};

TEST_F(CliExplainCheck, RightGradientsOfEveryLayer) {
  for (const std::string_view name : explain::kLayerNames) {
    SCOPED_TRACE(std::string(name));
    claim({std::string(name)});
    const ProcessResult result = check(std::string(name));
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    EXPECT_TRUE(result.out.starts_with("dx: right. ")) << result.out;
  }
  claim({"group_norm", "--shape", "2,6,3", "--groups", "3", "--eps", "0.5"});
  EXPECT_EQ(check("group_norm").status, 0);  // groups and eps are in the file
  EXPECT_TRUE(check("group_norm").out.starts_with("dx: "));
  const ProcessResult other = check("group_norm", {"--groups", "2"});
  EXPECT_EQ(other.status, 1);
  EXPECT_TRUE(other.out.starts_with("groups is taken from the option, not the files\n"));
  claim({"batch_norm", "--eval"});
  EXPECT_EQ(check("batch_norm").status, 0);
  EXPECT_TRUE(contains(check("batch_norm", {"--train"}).out, "evaluation_formula"));
}

TEST_F(CliExplainCheck, NamesWhatIsWrong) {
  claim({"rms_norm"});
  std::vector<double> dgamma = values("dgamma");
  for (double& value : dgamma) value /= 3;
  set("dgamma", dgamma, {5});
  const ProcessResult result = check("rms_norm");
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.err, "");  // of the two that end with 1, an error has its text there
  EXPECT_TRUE(contains(result.out, "dx: right. ")) << result.out;
  EXPECT_TRUE(contains(result.out, "\n  Largest difference ")) << result.out;
  EXPECT_TRUE(
      contains(result.out, "dgamma: WRONG, batch_mean: it is divided by the number of rows"))
      << result.out;
  EXPECT_FALSE(contains(result.out, "--values"));
  std::vector<double> dx = values("dx");
  dx[7] += 1;  // which is no usual slip
  set("dx", dx, {3, 5});
  EXPECT_TRUE(contains(check("rms_norm").out, "--values in place of --check shows each step"));
}

TEST_F(CliExplainCheck, ProposesAnInputThatShowsMore) {
  claim({"group_norm", "--shape", "1,4,3"});
  const ProcessResult result = check("group_norm", {"--save", "better.npz"});
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(contains(result.out, "This input cannot tell")) << result.out;
  EXPECT_EQ(nn::read_npz(dir_.path("better.npz")).at("x").shape, (Shape{3, 4, 3}));
  claim({"group_norm", "--shape", "3,4,3"});
  expect_failure(check("group_norm", {"--save", "none.npz"}), 1, {"there is none to propose"});
}

// Of one gamma any dgamma is a multiple: another input is proposed, though nothing is right.
TEST_F(CliExplainCheck, ProposesAnInputThatGivesAName) {
  claim({"batch_norm", "--shape", "3,1,4"});
  std::vector<double> dgamma = values("dgamma");
  dgamma[0] *= 1.37;
  set("dgamma", dgamma, {1});
  const ProcessResult result = check("batch_norm");
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(contains(result.out, "dgamma: WRONG, but this input cannot tell how")) << result.out;
  EXPECT_TRUE(contains(result.out, "--save FILE writes one.")) << result.out;
  EXPECT_EQ(check("batch_norm", {"--save", "better.npz"}).status, 1);
  EXPECT_EQ(nn::read_npz(dir_.path("better.npz")).at("x").shape, (Shape{3, 3, 4}));
}

// Integers, halves, and NumPy's column order.
TEST_F(CliExplainCheck, ArraysAsNumPyHasThem) {
  claim({"layer_norm", "--shape", "3,4"});
  const auto retyped = [&](const std::string& name, DType dtype) {
    nn::NpyArray& array = arrays.at(name);
    const Tensor cast = Tensor::from_vector(values(name), array.shape).to(dtype);
    const auto* bytes = static_cast<const std::byte*>(cast.raw().data);
    array = {dtype, array.shape, {bytes, bytes + cast.numel() * size_of(dtype)}};
  };
  for (const char* name : {"dx", "dgamma", "dbeta"}) retyped(name, DType::f16);
  const ProcessResult half = check("layer_norm");
  EXPECT_EQ(half.status, 0) << half.out;
  EXPECT_TRUE(contains(half.out, "\nRounding hides, here and ")) << half.out;
  EXPECT_TRUE(contains(half.out, "eps_missing")) << half.out;
  std::vector<double> x = values("x");
  for (double& value : x) value = std::round(10 * value);
  set("x", x, {3, 4});
  nn::write_npz(dir_.path("integers.npz"), arrays);
  const ProcessResult right = gradus({"explain", "layer_norm", "--values", "integers.npz", "--json",
                                      "right.json", "--save", "in.npz"});
  ASSERT_EQ(right.status, 0) << right.err;
  const Json gradients = Json::parse(read_text(dir_.path("right.json"))).at("gradients");
  const std::vector<double> dx = gradients.at(0).at("value").at("values");
  arrays.erase("dgamma");
  arrays.erase("dbeta");
  set("dx", dx, {3, 4});
  retyped("x", DType::i32);
  EXPECT_EQ(check("layer_norm").status, 0) << check("layer_norm").out;
  retyped("dx", DType::i64);
  expect_failure(check("layer_norm"), 1, {"'mine.npz': dx is i64: a gradient is floating"});
  // The columns of dx one after the other.
  std::string header = "{'descr': '<f8', 'fortran_order': True, 'shape': (3, 4), }";
  header.resize(117, ' ');
  std::string file = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n";
  for (size_t k = 0; k < 12; ++k) {
    const double value = dx[k % 3 * 4 + k / 3];
    file.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::ofstream(dir_.path("dx.npy"), std::ios::binary) << file;
  arrays.erase("dx");
  EXPECT_EQ(check("layer_norm", {"--check", "dx=dx.npy"}).status, 0);
}

TEST_F(CliExplainCheck, SingleArrays) {
  claim({"softmax2d"});
  for (const char* name : {"x", "dy", "dx"}) {
    const nn::NpyArray& one = arrays.at(name);
    nn::write_npy(dir_.path(std::string(name) + ".npy"), one.dtype, one.shape, one.bytes);
  }
  const ProcessResult result = gradus(
      {"explain", "softmax2d", "--check", "x.npy", "--check", "dy=dy.npy", "--check", "dx=dx.npy"});
  EXPECT_EQ(result.status, 0) << result.out << result.err;
}

// The verdict may rest on what nobody gave.
TEST_F(CliExplainCheck, SaysWhatIsNotInTheFiles) {
  claim({"group_norm"});
  EXPECT_TRUE(check("group_norm").out.starts_with("dx: right"));
  for (const char* name : {"gamma", "eps", "groups", "dgamma", "dbeta"}) arrays.erase(name);
  const std::string out = check("group_norm").out;
  EXPECT_TRUE(
      out.starts_with("gamma is not in the files: taken as 1\n"
                      "eps is not in the files: taken as 1e-05\n"
                      "groups is not in the files: taken as 2\n"
                      "dx: WRONG"))
      << out;
  EXPECT_FALSE(contains(check("group_norm", {"--eps", "1e-5"}).out, "eps is not"));
}

TEST_F(CliExplainCheck, RefusesFilesThatDoNotFit) {
  claim({"rms_norm"});
  const std::vector<double> dx = values("dx");
  arrays.erase("dx");
  arrays.erase("dgamma");
  expect_failure(check("rms_norm"), 1, {"nothing is claimed"});
  set("dX", dx, {3, 5});
  const ProcessResult unknown = check("rms_norm");
  expect_failure(unknown, 1, {"mine.npz", "'dX'", "none of rms_norm's names: x, dy, gamma, dx"});
  EXPECT_EQ(unknown.out, "");
  EXPECT_FALSE(contains(unknown.err, "beta") || contains(unknown.err, "groups")) << unknown.err;
  arrays.erase("dX");
  set("dbeta", dx, {3, 5});
  expect_failure(check("rms_norm"), 1, {"mine.npz", "rms_norm has no dbeta"});
  arrays.erase("dbeta");
  set("dx", dx, {3, 5});
  expect_failure(check("group_norm"), 1, {"do not fall into 2 groups"});
  for (const double groups : {1.5, -1.0, 1e300, static_cast<double>(NAN)}) {
    set("groups", {groups}, {});
    expect_failure(check("group_norm"), 1, {"groups cannot be "});
  }
  set("groups", {1, 2}, {2});
  expect_failure(check("group_norm"), 1, {"groups must be one number"});
  expect_failure(check("rms_norm", {"--check", "x=mine.npz"}), 1, {"mine.npz"});
  expect_failure(check("rms_norm", {"--check", "mine.npz"}), 1, {"is given twice"});
  expect_failure(check("rms_norm", {"--json", "a.json"}), 2, {"excludes"});
  arrays.erase("groups");
  arrays.erase("x");
  expect_failure(check("rms_norm"), 1, {"hold no x"});
}

// gamma of the last axis is what a row of [B,T,C] has in most networks.
TEST_F(CliExplainCheck, GammaOfTheLastAxis) {
  claim({"layer_norm", "--shape", "2,3,4", "--axes", "1"});
  arrays.erase("axes");
  expect_failure(check("layer_norm"), 1,
                 {"gamma must be f64[3,4] on the CPU, got f64[4]@cpu; --axes 1 normalizes"});
  EXPECT_EQ(check("layer_norm", {"--axes", "1"}).status, 0);
}

// Without gamma only the values tell what a row is.
TEST_F(CliExplainCheck, SaysWithWhichAxesItIsRight) {
  claim({"layer_norm", "--shape", "2,3,5", "--axes", "1"});
  const std::vector<double> ones(5, 1);
  set("gamma", ones, {5});
  nn::write_npz(dir_.path("ones.npz"), arrays);
  ASSERT_EQ(gradus({"explain", "layer_norm", "--values", "ones.npz", "--json", "ones.json"}).status,
            0);
  const Json gradients = Json::parse(read_text(dir_.path("ones.json"))).at("gradients");
  const std::vector<double> dx = gradients.at(0).at("value").at("values");
  set("dx", dx, {2, 3, 5});
  for (const char* name : {"axes", "gamma", "beta", "dgamma", "dbeta"}) arrays.erase(name);
  const ProcessResult result = check("layer_norm");
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(contains(result.out, "dx: WRONG, unknown")) << result.out;
  EXPECT_TRUE(contains(result.out, "\nIt is right with --axes 1.\n")) << result.out;
  EXPECT_EQ(check("layer_norm", {"--axes", "1"}).status, 0);
  EXPECT_FALSE(contains(check("layer_norm", {"--axes", "3"}).out, "right with --axes"));
  for (const char* name : {"x", "dy", "dx"}) arrays.at(name).shape = {6, 5, 1};
  EXPECT_EQ(check("layer_norm").status, 0) << "rows of the same values";
  std::vector<double> x = values("x");
  std::fill_n(x.begin(), 2, 1.0);
  set("x", x, {3, 5, 2});
  for (const char* name : {"dy", "dx"}) arrays.at(name).shape = {3, 5, 2};
  set("eps", {0}, {});
  const ProcessResult other = check("layer_norm");  // a row of equal values has no gradient
  EXPECT_EQ(other.status, 1);
  EXPECT_EQ(other.err, "");
}

// A forgotten gradient is right for rows of one element, which nobody meant.
TEST_F(CliExplainCheck, ApprovesNoZerosWithOtherAxes) {
  claim({"layer_norm", "--shape", "4,3,1", "--axes", "2"});
  for (const char* name : {"axes", "gamma", "beta", "dgamma", "dbeta"}) arrays.erase(name);
  set("dx", std::vector<double>(12, 0), {4, 3, 1});
  const ProcessResult result = check("layer_norm");
  EXPECT_EQ(result.status, 1);
  EXPECT_FALSE(contains(result.out, "right with --axes")) << result.out;
}

}  // namespace
}  // namespace gradus
