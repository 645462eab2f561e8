// Every op with more rows, channels or planes than one axis of a CUDA grid holds (65,535), in every
// dtype, against the references.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops/activation.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/avg_pool2d.h"
#include "autograd/ops/batch_norm.h"
#include "autograd/ops/conv2d.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/group_norm.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/local_response_norm.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/max_pool2d.h"
#include "autograd/ops/nll_loss.h"
#include "autograd/ops/pointwise_loss.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/sum.h"
#include "tests/support/gpu.h"
#include "tests/support/reference.h"

namespace gradus {
namespace {

using Tensors = std::span<const Tensor>;
using Arrays = std::span<const ref::Array>;
using Gradients = std::vector<ref::Array>;
using ref::Array;

constexpr int64_t kMany = 65'537;
constexpr double kEps = 0.1;     // keeps rstd below 3.2, however close three values lie
constexpr double kLargest = 16;  // no term of a sum of products of such values is larger

OpCase make_case(std::string name, std::vector<CaseInput> inputs, int64_t reduction) {
  OpCase result;
  result.name = std::move(name);
  result.inputs = std::move(inputs);
  result.reduction = reduction;
  // Partial sums of m such values reach about sqrt(m).
  result.scale = std::max(kLargest, std::sqrt(static_cast<double>(reduction)));
  return result;
}

template <class Forward, class Reference, class Backward>
OpCase unary(std::string name, const Shape& x, int64_t reduction, Forward forward,
             Reference reference, Backward backward) {
  OpCase result = make_case(std::move(name), {{.name = "x", .shape = x}}, reduction);
  result.forward = [forward](Tensors in) { return forward(in[0]); };
  result.reference = [reference](Arrays in) { return reference(in[0]); };
  result.reference_backward = [backward](Arrays in, const Array& dy) {
    return Gradients{backward(in[0], dy)};
  };
  return result;
}

// x with a gamma and a beta of `parameters` values.
template <class Forward, class Reference, class Backward>
OpCase norm(std::string name, const Shape& x, const Shape& parameters, Forward forward,
            Reference reference, Backward backward) {
  OpCase result = make_case(
      std::move(name),
      {{.name = "x", .shape = x},
       {.name = "gamma", .shape = parameters, .kind = CaseInput::Kind::parameter, .mean = 1},
       {.name = "beta", .shape = parameters, .kind = CaseInput::Kind::parameter}},
      x.numel());
  result.forward = [forward](Tensors in) { return forward(in[0], in[1], in[2]); };
  result.reference = [reference](Arrays in) { return reference(in[0], in[1], in[2]); };
  result.reference_backward = [backward](Arrays in, const Array& dy) {
    const auto grads = backward(in[0], in[1], dy);
    return Gradients{grads.dx, grads.dgamma, grads.dbeta};
  };
  return result;
}

OpCase activation_case(const std::string& name, const Shape& x) {
  return unary(
      name, x, 1, [=](const Tensor& in) { return activate(in, parse_activation(name)); },
      [=](const Array& in) { return ref::activation(name, in); },
      [=](const Array& in, const Array& dy) { return ref::activation_backward(name, in, dy); });
}

OpCase add_case(const Shape& x) {
  OpCase result = make_case(
      "add", {{.name = "a", .shape = x}, {.name = "b", .shape = {x[x.rank() - 1]}}}, x.numel());
  result.forward = [](Tensors in) { return in[0] + in[1]; };
  result.reference = [](Arrays in) { return ref::add(in[0], in[1]); };
  result.reference_backward = [](Arrays in, const Array& dy) {
    const auto grads = ref::add_backward(in[0], in[1], dy);
    return Gradients{grads.da, grads.db};
  };
  return result;
}

OpCase sum_case(const Shape& x, int axis) {
  return unary(
      "sum", x, x[axis], [=](const Tensor& in) { return sum(in, {axis}); },
      [=](const Array& in) { return ref::sum(in, {axis}); },
      [=](const Array& in, const Array& dy) { return ref::sum_backward(in.shape, dy, {axis}); });
}

OpCase max_case(const Shape& x, int axis) {
  return unary(
      "max", x, 1, [=](const Tensor& in) { return max(in, {axis}); },
      [=](const Array& in) { return ref::max(in, {axis}); },
      [=](const Array& in, const Array& dy) { return ref::max_backward(in, dy, {axis}); });
}

// Backward starts from y as stored, whose rounding exp takes as a factor.
OpCase logsumexp_case(const Shape& x, int axis) {
  OpCase result = unary(
      "logsumexp", x, x[axis], [=](const Tensor& in) { return logsumexp(in, {axis}); },
      [=](const Array& in) { return ref::logsumexp(in, {axis}); },
      [=](const Array& in, const Array& dy) { return ref::logsumexp_backward(in, dy, {axis}); });
  result.largest_stored_term = [](const Array& y, const Array& dy) {
    double largest = 0;
    for (int64_t i = 0; i < y.numel(); ++i) largest = std::max(largest, std::abs(y[i] * dy[i]));
    return largest;
  };
  return result;
}

OpCase var_case(const Shape& x, int axis) {
  return unary(
      "var", x, x[axis], [=](const Tensor& in) { return var(in, {axis}); },
      [=](const Array& in) { return ref::var(in, {axis}, 1); },
      [=](const Array& in, const Array& dy) { return ref::var_backward(in, dy, {axis}, 1); });
}

// Backward starts from y as stored; what its rounding enters is at most the sum of |dy| of a set.
OpCase softmax_case(const Shape& x, int axis, bool log) {
  OpCase result = unary(
      log ? "log_softmax" : "softmax", x, x[axis],
      [=](const Tensor& in) { return log ? log_softmax(in, axis) : softmax(in, axis); },
      [=](const Array& in) { return log ? ref::log_softmax(in, axis) : ref::softmax(in, axis); },
      [=](const Array& in, const Array& dy) {
        return log ? ref::log_softmax_backward(in, axis, dy) : ref::softmax_backward(in, axis, dy);
      });
  result.largest_stored_term = [=](const Array&, const Array& dy) {
    Array sizes = dy;
    for (double& value : sizes.data) value = std::abs(value);
    const Array sums = log ? ref::sum(sizes, {axis}) : ref::max(sizes, {axis});
    return *std::ranges::max_element(sums.data);
  };
  return result;
}

OpCase batch_norm_case(const Shape& x) {
  return norm(
      "batch_norm", x, {x[1]},
      [](const Tensor& in, const Tensor& gamma, const Tensor& beta) {
        return batch_norm(in, gamma, beta, {}, {.eps = kEps});
      },
      [](const Array& in, const Array& gamma, const Array& beta) {
        return ref::batch_norm_train(in, gamma, beta, kEps).y;
      },
      [](const Array& in, const Array& gamma, const Array& dy) {
        return ref::batch_norm_train_backward(in, gamma, dy, kEps);
      });
}

OpCase group_norm_case(const Shape& x, int64_t groups) {
  return norm(
      "group_norm", x, {x[1]},
      [=](const Tensor& in, const Tensor& gamma, const Tensor& beta) {
        return group_norm(in, groups, gamma, beta, kEps);
      },
      [=](const Array& in, const Array& gamma, const Array& beta) {
        return ref::group_norm(in, groups, gamma, beta, kEps).y;
      },
      [=](const Array& in, const Array& gamma, const Array& dy) {
        return ref::group_norm_backward(in, groups, gamma, dy, kEps);
      });
}

OpCase layer_norm_case(const Shape& x) {
  const Shape suffix = {x[x.rank() - 1]};
  return norm(
      "layer_norm", x, suffix,
      [=](const Tensor& in, const Tensor& gamma, const Tensor& beta) {
        return layer_norm(in, suffix, gamma, beta, kEps);
      },
      [](const Array& in, const Array& gamma, const Array& beta) {
        return ref::layer_norm(in, 1, gamma, beta, kEps).y;
      },
      [](const Array& in, const Array& gamma, const Array& dy) {
        return ref::layer_norm_backward(in, 1, gamma, dy, kEps);
      });
}

OpCase rms_norm_case(const Shape& x) {
  const Shape suffix = {x[x.rank() - 1]};
  OpCase result =
      make_case("rms_norm",
                {{.name = "x", .shape = x},
                 {.name = "gamma", .shape = suffix, .kind = CaseInput::Kind::parameter, .mean = 1}},
                x.numel());
  result.forward = [=](Tensors in) { return rms_norm(in[0], suffix, in[1], kEps); };
  result.reference = [](Arrays in) { return ref::rms_norm(in[0], 1, in[1], kEps).y; };
  result.reference_backward = [](Arrays in, const Array& dy) {
    const auto grads = ref::rms_norm_backward(in[0], 1, in[1], dy, kEps);
    return Gradients{grads.dx, grads.dgamma};
  };
  return result;
}

OpCase lrn_case(const Shape& x) {
  const ref::LrnOptions options{.size = 3, .alpha = 0.5};
  return unary(
      "local_response_norm", x, 3, [](const Tensor& in) { return local_response_norm(in, 3, 0.5); },
      [=](const Array& in) { return ref::local_response_norm(in, options).y; },
      [=](const Array& in, const Array& dy) {
        return ref::local_response_norm_backward(in, options, dy);
      });
}

// Losses of x [n, c] with one label per row.
OpCase label_case(const Shape& x, bool logits) {
  OpCase result = make_case(
      logits ? "cross_entropy" : "nll_loss",
      {{.name = "x", .shape = x},
       {.name = "labels", .shape = {x[0]}, .kind = CaseInput::Kind::label, .classes = x[1]}},
      x.numel());
  result.forward = [=](Tensors in) {
    return logits ? cross_entropy(in[0], in[1]) : nll_loss(in[0], in[1]);
  };
  result.reference = [=](Arrays in) {
    return logits ? ref::cross_entropy(in[0], in[1], {})
                  : ref::nll(in[0], in[1], {}, -100, ref::Reduction::mean);
  };
  result.reference_backward = [=](Arrays in, const Array& dy) {
    return Gradients{logits ? ref::cross_entropy_backward(in[0], in[1], dy, {})
                            : ref::nll_backward(in[0], in[1], {}, -100, ref::Reduction::mean, dy)};
  };
  return result;
}

OpCase mse_case(const Shape& x) {
  OpCase result =
      make_case("mse_loss", {{.name = "x", .shape = x}, {.name = "t", .shape = x}}, x.numel());
  result.forward = [](Tensors in) { return mse_loss(in[0], in[1]); };
  result.reference = [](Arrays in) { return ref::mse(in[0], in[1], ref::Reduction::mean); };
  result.reference_backward = [](Arrays in, const Array& dy) {
    return Gradients{ref::mse_backward(in[0], in[1], ref::Reduction::mean, dy),
                     ref::mse_backward(in[1], in[0], ref::Reduction::mean, dy)};
  };
  return result;
}

OpCase linear_case(const Shape& x) {
  OpCase result = make_case(
      "linear", {{.name = "x", .shape = x}, {.name = "w", .shape = {2, x[1]}}}, x.numel());
  result.forward = [](Tensors in) { return linear(in[0], in[1]); };
  result.reference = [](Arrays in) { return ref::linear(in[0], in[1], {}); };
  result.reference_backward = [](Arrays in, const Array& dy) {
    const auto grads = ref::linear_backward(in[0], in[1], dy);
    return Gradients{grads.dx, grads.dw};
  };
  return result;
}

OpCase conv2d_case(const Shape& x) {
  OpCase result =
      make_case("conv2d_depthwise",
                {{.name = "x", .shape = x}, {.name = "w", .shape = {x[1], 1, 2, 1}}}, x.numel());
  result.forward = [=](Tensors in) {
    return conv2d(in[0], in[1], {}, Conv2dOptions{.groups = x[1]});
  };
  const ref::Conv2dOptions options{.groups = x[1]};
  result.reference = [=](Arrays in) { return ref::conv2d(in[0], in[1], {}, options); };
  result.reference_backward = [=](Arrays in, const Array& dy) {
    const auto grads = ref::conv2d_backward(in[0], in[1], dy, options);
    return Gradients{grads.dx, grads.dw};
  };
  return result;
}

OpCase max_pool_case(const Shape& x) {
  return unary(
      "max_pool2d", x, 1,
      [](const Tensor& in) {
        return max_pool2d(in, Window{{2, 1}, {2, 1}});
      },
      [](const Array& in) { return ref::max_pool2d(in, {.kernel_w = 1, .stride_w = 1}).y; },
      [](const Array& in, const Array& dy) {
        return ref::max_pool2d_backward(in, dy, {.kernel_w = 1, .stride_w = 1});
      });
}

OpCase avg_pool_case(const Shape& x, bool adaptive) {
  const ref::AvgPool2dOptions options{.kernel = {2, 1}, .stride = {2, 1}};
  return unary(
      adaptive ? "adaptive_avg_pool2d" : "avg_pool2d", x, 2,
      [=](const Tensor& in) {
        return adaptive ? adaptive_avg_pool2d(in, 1) : avg_pool2d(in, {.kernel_size = {2, 1}});
      },
      [=](const Array& in) {
        return adaptive ? ref::adaptive_avg_pool2d(in, {1, 1}) : ref::avg_pool2d(in, options);
      },
      [=](const Array& in, const Array& dy) {
        return adaptive ? ref::adaptive_avg_pool2d_backward(in.shape, dy)
                        : ref::avg_pool2d_backward(in.shape, options, dy);
      });
}

// What takes [rows, columns].
std::vector<OpCase> of_matrix(const Shape& x) {
  return {activation_case("relu", x),
          activation_case("gelu", x),
          add_case(x),
          sum_case(x, 0),
          sum_case(x, 1),
          softmax_case(x, 0, false),
          softmax_case(x, 1, false),
          softmax_case(x, 1, true),
          batch_norm_case(x),
          layer_norm_case(x),
          group_norm_case(x, 1),
          rms_norm_case(x),
          lrn_case(x),
          label_case(x, true),
          label_case(x, false),
          mse_case(x),
          linear_case(x),
          max_case(x, 0),
          max_case(x, 1),
          logsumexp_case(x, 0),
          logsumexp_case(x, 1),
          var_case(x, 0),
          var_case(x, 1)};
}

// What takes images.
std::vector<OpCase> of_images(const Shape& x) {
  return {batch_norm_case(x),        group_norm_case(x, x[1]), lrn_case(x),
          softmax_case(x, 1, false), conv2d_case(x),           max_pool_case(x),
          avg_pool_case(x, false),   avg_pool_case(x, true)};
}

struct Limit {
  OpCase op_case;
  Device device;
};

void PrintTo(const Limit& limit, std::ostream* out) { PrintTo(limit.op_case, out); }

std::vector<Limit> on_both(const std::vector<OpCase>& matrices, const std::vector<OpCase>& images) {
  std::vector<Limit> limits;
  const auto take = [&](const std::vector<OpCase>& cases, const std::string& kind) {
    for (OpCase op_case : cases) {
      op_case.name += concat(kind, limits.size());
      for (const Device device : {kCpu, kCuda}) limits.push_back({op_case, device});
    }
  };
  take(matrices, "_matrix_");
  take(images, "_images_");
  return limits;
}

std::string name_of(const testing::TestParamInfo<Limit>& info) {
  return info.param.op_case.name + (info.param.device == kCpu ? "_Cpu" : "_Cuda");
}

class RowLimits : public testing::TestWithParam<Limit> {};
TEST_P(RowLimits, D101_D103_MoreRowsThanAGridAxisHolds) {
  check_reference(GetParam().op_case, GetParam().device);
}
INSTANTIATE_TEST_SUITE_P(Of, RowLimits,
                         testing::ValuesIn(on_both(of_matrix({kMany, 3}),
                                                   of_images({kMany, 1, 2, 1}))),
                         name_of);

class ChannelLimits : public testing::TestWithParam<Limit> {};
TEST_P(ChannelLimits, D102_MoreChannelsThanAGridAxisHolds) {
  check_reference(GetParam().op_case, GetParam().device);
}
INSTANTIATE_TEST_SUITE_P(Of, ChannelLimits,
                         testing::ValuesIn(on_both(of_matrix({3, kMany}),
                                                   of_images({1, kMany, 2, 1}))),
                         name_of);

}  // namespace
}  // namespace gradus
