#include "tests/support/op_modes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "autograd/grad_mode.h"
#include "core/launch.h"
#include "cpu/context.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/coverage.h"
#include "tests/support/guard_allocator.h"
#if GRADUS_HAS_CUDA
#include "cuda/context.h"
#endif

namespace gradus {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

ref::Array to_array(const Tensor& tensor) { return {tensor.shape(), tensor.to_vector<double>()}; }

// The bytes of a tensor in row-major order.
std::vector<char> bits(const Tensor& tensor) {
  const Tensor host = tensor.detach().to(kCpu).contiguous();
  std::vector<char> bytes(static_cast<size_t>(host.nbytes()));
  if (!bytes.empty()) std::memcpy(bytes.data(), host.raw().data, bytes.size());
  return bytes;
}

void expect_same_bits(const CaseRun& a, const CaseRun& b, std::string_view what) {
  EXPECT_TRUE(bits(a.y) == bits(b.y)) << "y differs between " << what;
  for (size_t i = 0; i < a.grads.size(); ++i) {
    EXPECT_TRUE(bits(a.grads[i]) == bits(b.grads[i]))
        << "gradient " << i << " differs between " << what;
  }
}

void check_one_dtype(const OpCase& op_case, DType dtype, Device device) {
  SCOPED_TRACE(std::string(to_string(dtype)));
  const std::vector<ref::Array> arrays = draw_inputs(op_case, dtype, 1);
  const ref::Array want = op_case.reference(arrays);
  const DType y_dtype = op_case.forward(make_inputs(op_case, arrays, dtype, device)).dtype();
  const ref::Array dy =
      op_case.reference_backward ? draw_upstream(want.shape, y_dtype, 2) : ref::Array();
  const CaseRun got = run_case(op_case, arrays, dy, dtype, device);
  ASSERT_EQ(to_string(got.y.shape()), to_string(want.shape));
  const std::vector<double> got_y = got.y.to_vector<double>();
  EXPECT_TRUE(agrees(got_y, want.data, y_dtype, op_case.reduction, op_case.scale)) << "y";
  MeasuredError forward, backward, parameters;
  forward.add(got_y, want.data, y_dtype, op_case, Direction::forward);
  record_coverage(op_case, dtype, device, Direction::forward, forward);
  if (!op_case.reference_backward) {
    return record_coverage(op_case, dtype, device, Direction::backward, std::nullopt);
  }
  const std::vector<ref::Array> want_grads = op_case.reference_backward(arrays, dy);
  ASSERT_EQ(got.grads.size(), want_grads.size());
  size_t i = 0;
  for (const CaseInput& input : op_case.inputs) {
    if (!input.is_differentiable()) continue;
    const DType grad_dtype = input.dtype(dtype);
    const std::vector<double> got_grad = got.grads[i].to_vector<double>();
    EXPECT_TRUE(agrees(got_grad, want_grads[i].data, grad_dtype,
                       gradient_tolerance(op_case, grad_dtype, want, dy), op_case.scale))
        << "gradient of " << input.name;
    const bool is_parameter = input.kind == CaseInput::Kind::parameter;
    (is_parameter ? parameters : backward)
        .add(got_grad, want_grads[i].data, grad_dtype, op_case, Direction::backward);
    ++i;
  }
  record_coverage(op_case, dtype, device, Direction::backward, backward);
  if (parameters.values > 0) {
    record_coverage(op_case, dtype, device, Direction::parameters, parameters);
  }
}

}  // namespace

bool has_gpu() {
#if GRADUS_HAS_CUDA
  return !cuda_devices().empty();
#else
  return false;
#endif
}

CaseRun run_case(const OpCase& op_case, std::span<const ref::Array> arrays, const ref::Array& dy,
                 DType dtype, Device device) {
  std::vector<Tensor> inputs = make_inputs(op_case, arrays, dtype, device);
  CaseRun run{.y = op_case.forward(inputs), .grads = {}};
  if (dy.shape != run.y.shape() || !op_case.reference_backward) return run;
  run.y.backward(
      Tensor::from_vector(dy.data, dy.shape, {.dtype = run.y.dtype(), .device = device}));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (op_case.inputs[i].is_differentiable()) run.grads.push_back(inputs[i].grad());
  }
  return run;
}

void check_reference(const OpCase& op_case, Device device) {
  if (device.type == DeviceType::cuda && !has_gpu()) GTEST_SKIP() << "no GPU";
  GuardAllocatorScope guard(device);
  for (const DType dtype : kDTypes) check_one_dtype(op_case, dtype, device);
  EXPECT_EQ(guard.damage(), "");
}

void check_repeat(const OpCase& op_case, Device device) {
  if (device.type == DeviceType::cuda && !has_gpu()) GTEST_SKIP() << "no GPU";
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(std::string(to_string(dtype)));
    const std::vector<ref::Array> arrays = draw_inputs(op_case, dtype, 3);
    const Tensor y = op_case.forward(make_inputs(op_case, arrays, dtype, device));
    const ref::Array dy = draw_upstream(y.shape(), y.dtype(), 4);
    const CaseRun first = run_case(op_case, arrays, dy, dtype, device);
    expect_same_bits(first, run_case(op_case, arrays, dy, dtype, device), "two runs");
    if (device.type == DeviceType::cuda) continue;
    const int before = cpu().threads();
    for (const int threads : {1, 2, 3}) {
      cpu().set_threads(threads);
      expect_same_bits(first, run_case(op_case, arrays, dy, dtype, device),
                       concat(before, " and ", threads, " threads"));
    }
    cpu().set_threads(before);
  }
}

void check_gradients(const OpCase& op_case) {
  if (!op_case.reference_backward) GTEST_SKIP() << "not differentiable";
  int64_t values = 0;
  for (const CaseInput& input : op_case.inputs) values += input.shape.numel();
  if (values > 600) GTEST_SKIP() << "too large for finite differences";
  const std::vector<ref::Array> arrays = draw_inputs(op_case, DType::f64, 5);
  const Tensor y = op_case.forward(make_inputs(op_case, arrays, DType::f64, kCpu));
  const ref::Array dy = draw_upstream(y.shape(), DType::f64, 6);
  const CaseRun run = run_case(op_case, arrays, dy, DType::f64, kCpu);
  size_t gradient = 0;
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (!op_case.inputs[i].is_differentiable()) continue;
    const auto forward = [&](const ref::Array& x) {
      std::vector<ref::Array> moved = arrays;
      moved[i] = x;
      const NoGradGuard no_grad;
      return to_array(op_case.forward(make_inputs(op_case, moved, DType::f64, kCpu)));
    };
    const ref::Array want = ref::numeric_gradient(forward, arrays[i], dy);
    const std::vector<double> got = run.grads[gradient++].to_vector<double>();
    double largest = 0;
    for (const double value : want.data) largest = std::max(largest, std::abs(value));
    EXPECT_TRUE(largest > 1e-3 || want.data.empty())
        << "no power: the gradient of " << op_case.inputs[i].name << " is near zero everywhere";
    for (size_t k = 0; k < got.size(); ++k) {
      ASSERT_NEAR(got[k], want.data[k], 1e-7 + 1e-6 * std::max(1.0, largest))
          << op_case.inputs[i].name << "[" << k << "]";
    }
  }
}

std::vector<OpCase> test_cases_of(std::string_view op) {
  std::vector<OpCase> cases = cases_of(op);
  std::erase_if(cases, [](const OpCase& c) { return c.benchmark; });
  return cases;
}

}  // namespace gradus
