// What training needs beyond the layers, against PyTorch: a label per pixel, and clipping.
#include <limits>

#include "autograd/ops/cross_entropy.h"
#include "nn/optim/clip_grad.h"
#include "tests/support/golden_op.h"

namespace gradus {
namespace {

class GoldenTraining : public GoldenTest {};
GRADUS_ON_EACH_DEVICE(GoldenTraining);

TEST_P(GoldenTraining, CrossEntropyOfPixels) {
  check("cross_entropy_pixels", 4, [](const GoldenInputs& in) {
    return cross_entropy(in["x"], in.labels(),
                         {.weight = in["weight"],
                          .reduction = in.reduction(),
                          .label_smoothing = in.number("label_smoothing"),
                          .ignore_index = in.integer("ignore_index")});
  });
}

TEST_P(GoldenTraining, Clipping) {
  int cases = 0;
  for (const ref::Json& json : ref::golden_cases("clip_grad")) {
    ++cases;
    const double limit = json.at("limit");
    const std::string norm_type = json.at("norm_type");
    SCOPED_TRACE(norm_type);
    std::vector<Tensor> parameters;
    for (const ref::Json& before : json.at("before")) {
      const ref::Array grad = ref::golden_array(before);
      const TensorOptions options{.dtype = DType::f64, .device = GetParam()};
      parameters.push_back(Tensor::zeros(grad.shape, options).set_requires_grad(true));
      parameters.back().set_grad(Tensor::from_vector(grad.data, grad.shape, options));
    }
    if (json.at("name") == "norm") {
      const double kind =
          norm_type == "inf" ? std::numeric_limits<double>::infinity() : std::stod(norm_type);
      const Tensor norm = nn::clip_grad_norm_(parameters, limit, kind);
      EXPECT_NEAR(norm.item<double>(), json.at("norm"), 1e-14);
    } else {
      nn::clip_grad_value_(parameters, limit);
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(agrees_with_golden(parameters[i].grad(), json.at("after").at(i), 11, 2));
    }
  }
  EXPECT_EQ(cases, 5);
}

}  // namespace
}  // namespace gradus
