// Runs gradus's own functions on the golden cases, in f64:
//
//   class GoldenSoftmax : public GoldenTest {};
//   GRADUS_ON_EACH_DEVICE(GoldenSoftmax);
//   TEST_P(GoldenSoftmax, All) {
//     check("softmax", 10, [](const GoldenInputs& in) { return softmax(in["x"], in.arg("axis"));
//     });
//   }
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "core/ops/reduction.h"
#include "core/tensor.h"
#include "tests/support/each_device.h"
#include "tests/support/golden.h"

namespace gradus {

class GoldenInputs {
 public:
  GoldenInputs(const ref::Json& json, Device device);

  const std::string name;
  const ref::Json& args;
  const Device device;

  // Undefined where the case has no such input.
  Tensor operator[](const std::string& key) const;
  Tensor labels() const;  // i64
  int64_t integer(const std::string& key) const { return args.at(key).get<int64_t>(); }
  double number(const std::string& key) const { return args.value(key, 0.0); }
  ref::Json arg(const std::string& key) const { return args.at(key); }
  Reduction reduction() const;

 private:
  std::map<std::string, Tensor> tensors_;
};

class GoldenTest : public test::EachDevice {
 protected:
  using Call = std::function<Tensor(const GoldenInputs&)>;

  // Value and gradients of each of the `expected` cases of tests/golden/<file>.json that `wanted`
  // takes.
  void check(const std::string& file, int expected, const Call& call,
             const std::function<bool(const std::string& name)>& wanted = {});
};

// A tensor against a golden one; scale is the largest term that is added up.
testing::AssertionResult agrees_with_golden(const Tensor& got, const ref::Json& want, int64_t m,
                                            double scale);

}  // namespace gradus
