#include "tests/support/golden_op.h"

#include "tests/support/compare_gtest.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

// About the largest input: what PyTorch and gradus round in sums that cancel.
constexpr double kLargestTerm = 4;

}  // namespace

GoldenInputs::GoldenInputs(const ref::Json& json, Device on)
    : name(json.at("name")), args(json.at("args")), device(on) {
  for (const auto& [key, value] : json.at("inputs").items()) {
    const ref::Array array = ref::golden_array(value);
    Tensor tensor =
        Tensor::from_vector(array.data, array.shape, {.dtype = DType::f64, .device = device});
    if (json.at("gradients").contains(key)) tensor.set_requires_grad(true);
    tensors_.emplace(key, std::move(tensor));
  }
}

Tensor GoldenInputs::operator[](const std::string& key) const {
  const auto found = tensors_.find(key);
  return found == tensors_.end() ? Tensor() : found->second;
}

Tensor GoldenInputs::labels() const {
  const Tensor values = (*this)["labels"];
  return Tensor::from_vector(values.to_vector<double>(), values.shape(),
                             {.dtype = DType::i64, .device = device});
}

Reduction GoldenInputs::reduction() const {
  const std::string word = args.at("reduction");
  return word == "mean" ? Reduction::mean : word == "sum" ? Reduction::sum : Reduction::none;
}

testing::AssertionResult agrees_with_golden(const Tensor& got, const ref::Json& want, int64_t m,
                                            double scale) {
  const ref::Array array = ref::golden_array(want);
  if (got.shape() != array.shape) {
    return testing::AssertionFailure()
           << "shape " << to_string(got.shape()) << ", golden " << to_string(array.shape);
  }
  return agrees(got.to_vector<double>(), array.data, DType::f64, m, scale);
}

void GoldenTest::check(const std::string& file, int expected, const Call& call,
                       const std::function<bool(const std::string& name)>& wanted) {
  int cases = 0;
  for (const ref::Json& json : ref::golden_cases(file)) {
    const GoldenInputs inputs(json, GetParam());
    if (wanted && !wanted(inputs.name)) continue;
    SCOPED_TRACE(file + " " + inputs.name + " " + inputs.args.dump());
    ++cases;
    const Tensor y = call(inputs);
    const int64_t m = inputs["x"].numel();
    EXPECT_TRUE(agrees_with_golden(y, json.at("outputs").at("y"), m, kLargestTerm)) << "y";
    const ref::Array dy = ref::golden_array(json.at("dy"));
    y.backward(Tensor::from_vector(dy.data, dy.shape, {.dtype = DType::f64, .device = GetParam()}));
    for (const auto& [key, want] : json.at("gradients").items()) {
      EXPECT_TRUE(agrees_with_golden(inputs[key].grad(), want, m, kLargestTerm))
          << "gradient of " << key;
    }
  }
  EXPECT_EQ(cases, expected);
}

}  // namespace gradus
