// The references of all layers without tests of their own kind against PyTorch.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/reference.h"
#include "tests/support/reference_check.h"

namespace gradus::ref {
namespace {

struct Case {
  const Json& json;
  const Json& args;
  Array x, dy;
  std::string name;

  explicit Case(const Json& j)
      : json(j),
        args(j.at("args")),
        x(input("x")),
        dy(golden_array(j.at("dy"))),
        name(j.at("name")) {}

  Array input(const std::string& key) const { return golden_array(json.at("inputs"), key); }
  int64_t integer(const std::string& key) const { return args.at(key).get<int64_t>(); }
  double number(const std::string& key) const { return args.value(key, 0.0); }
  std::pair<int64_t, int64_t> pair(const std::string& key) const {
    return args.at(key).get<std::pair<int64_t, int64_t>>();
  }

  // PyTorch rounds terms of the size of the inputs, about 2.
  void expect_y(const Array& got) const {
    EXPECT_TRUE(agrees_with_golden(got, json.at("outputs").at("y"), x.numel(), 2)) << "y";
  }
  void expect_gradient(const std::string& key, const Array& got) const {
    if (!json.at("gradients").contains(key)) return;
    EXPECT_TRUE(agrees_with_golden(got, json.at("gradients").at(key), x.numel(), 2)) << "d" << key;
  }
  void expect_gradients(const NormGradients& got) const {
    expect_gradient("x", got.dx);
    expect_gradient("gamma", got.dgamma);
    expect_gradient("beta", got.dbeta);
  }
};

// f(case) for every case of a file.
template <class F>
void each_case(const std::string& file, int expected, F f) {
  int cases = 0;
  for (const Json& json : golden_cases(file)) {
    const Case c(json);
    SCOPED_TRACE(file + " " + c.name + " " + json.at("args").dump());
    f(c);
    ++cases;
  }
  EXPECT_EQ(cases, expected);
}

TEST(ReferenceGolden, GroupNorm) {
  each_case("group_norm", 5, [](const Case& c) {
    const Array gamma = c.input("gamma");
    const int64_t groups = c.integer("groups");
    c.expect_y(group_norm(c.x, groups, gamma, c.input("beta"), c.number("eps")).y);
    c.expect_gradients(group_norm_backward(c.x, groups, gamma, c.dy, c.number("eps")));
  });
}

// Instance norm is group norm with a group per channel; with running statistics, batch norm's eval.
TEST(ReferenceGolden, InstanceNorm) {
  each_case("instance_norm", 6, [](const Case& c) {
    const Array gamma = c.input("gamma"), beta = c.input("beta");
    const double eps = c.number("eps");
    if (c.name.ends_with("_train")) {
      c.expect_y(group_norm(c.x, c.x.shape[1], gamma, beta, eps).y);
      c.expect_gradients(group_norm_backward(c.x, c.x.shape[1], gamma, c.dy, eps));
      return;
    }
    const Array mean = c.input("running_mean"), var = c.input("running_var");
    c.expect_y(batch_norm_eval(c.x, gamma, beta, eps, mean, var));
    const auto got = batch_norm_eval_backward(c.x, gamma, c.dy, eps, mean, var);
    c.expect_gradients({got.dx, got.dgamma, got.dbeta});
  });
}

TEST(ReferenceGolden, LayerNorm) {
  each_case("layer_norm", 6, [](const Case& c) {
    const Array gamma = c.input("gamma");
    const int axes = static_cast<int>(c.integer("normalized_axes"));
    c.expect_y(layer_norm(c.x, axes, gamma, c.input("beta"), c.number("eps")).y);
    c.expect_gradients(layer_norm_backward(c.x, axes, gamma, c.dy, c.number("eps")));
  });
}

TEST(ReferenceGolden, RmsNorm) {
  each_case("rms_norm", 5, [](const Case& c) {
    const Array gamma = c.input("gamma");
    const int axes = static_cast<int>(c.integer("normalized_axes"));
    c.expect_y(rms_norm(c.x, axes, gamma, c.number("eps")).y);
    c.expect_gradients(rms_norm_backward(c.x, axes, gamma, c.dy, c.number("eps")));
  });
}

TEST(ReferenceGolden, LocalResponseNorm) {
  each_case("local_response_norm", 7, [](const Case& c) {
    const LrnOptions options{c.integer("size"), c.number("alpha"), c.number("beta"), c.number("k")};
    c.expect_y(local_response_norm(c.x, options).y);
    c.expect_gradient("x", local_response_norm_backward(c.x, options, c.dy));
  });
}

TEST(ReferenceGolden, Softmax) {
  each_case("softmax", 10, [](const Case& c) {
    const int axis = static_cast<int>(c.integer("axis"));
    const bool log = c.name == "log_softmax";
    c.expect_y(log ? log_softmax(c.x, axis) : softmax(c.x, axis));
    c.expect_gradient(
        "x", log ? log_softmax_backward(c.x, axis, c.dy) : softmax_backward(c.x, axis, c.dy));
  });
}

TEST(ReferenceGolden, Activations) {
  each_case("activation", 13, [](const Case& c) {
    const ActivationParameters parameters{c.number("a"), c.number("b")};
    c.expect_y(activation(c.name, c.x, parameters));
    c.expect_gradient("x", activation_backward(c.name, c.x, c.dy, parameters));
  });
}

TEST(ReferenceGolden, AveragePooling) {
  each_case("avg_pool2d", 8, [](const Case& c) {
    const AvgPool2dOptions options{.kernel = c.pair("kernel"),
                                   .stride = c.pair("stride"),
                                   .padding = c.pair("padding"),
                                   .ceil_mode = c.args.at("ceil_mode"),
                                   .count_include_pad = c.args.at("count_include_pad"),
                                   .divisor = c.integer("divisor")};
    c.expect_y(avg_pool2d(c.x, options));
    c.expect_gradient("x", avg_pool2d_backward(c.x.shape, options, c.dy));
  });
  each_case("adaptive_avg_pool2d", 5, [](const Case& c) {
    c.expect_y(adaptive_avg_pool2d(c.x, c.pair("size")));
    c.expect_gradient("x", adaptive_avg_pool2d_backward(c.x.shape, c.dy));
  });
}

TEST(ReferenceGolden, Reductions) {
  using Axes = std::vector<int>;
  using Forward = Array (*)(const Array&, const Axes&, bool);
  using Backward = Array (*)(const Array&, const Array&, const Axes&);
  const std::map<std::string, std::pair<Forward, Backward>> table = {
      {"max", {max, max_backward}},
      {"min", {min, min_backward}},
      {"prod", {prod, prod_backward}},
      {"norm2", {norm2, norm2_backward}},
      {"logsumexp", {logsumexp, logsumexp_backward}}};
  each_case("reductions", 50, [&](const Case& c) {
    const Axes axes = c.args.at("axes");
    const bool keepdim = c.args.at("keepdim");
    if (const auto found = table.find(c.name); found != table.end()) {
      c.expect_y(found->second.first(c.x, axes, keepdim));
      c.expect_gradient("x", found->second.second(c.x, c.dy, axes));
      return;
    }
    const double correction = c.number("correction");
    const bool root = c.name == "std";
    c.expect_y(root ? std_(c.x, axes, correction, keepdim) : var(c.x, axes, correction, keepdim));
    c.expect_gradient("x", root ? std_backward(c.x, c.dy, axes, correction)
                                : var_backward(c.x, c.dy, axes, correction));
  });
}

TEST(ReferenceGolden, Losses) {
  each_case("losses", 33, [](const Case& c) {
    const std::string word = c.args.at("reduction");
    const Reduction reduction = word == "none"   ? Reduction::none
                                : word == "mean" ? Reduction::mean
                                                 : Reduction::sum;
    const Array t = c.input("t"), weight = c.input("weight"), positive = c.input("pos_weight");
    const Array labels = c.input("labels");
    if (c.name == "mse") {
      c.expect_y(mse(c.x, t, reduction));
      c.expect_gradient("x", mse_backward(c.x, t, reduction, c.dy));
    } else if (c.name == "l1") {
      c.expect_y(l1(c.x, t, reduction));
      c.expect_gradient("x", l1_backward(c.x, t, reduction, c.dy));
    } else if (c.name == "smooth_l1") {
      c.expect_y(smooth_l1(c.x, t, c.number("beta"), reduction));
      c.expect_gradient("x", smooth_l1_backward(c.x, t, c.number("beta"), reduction, c.dy));
    } else if (c.name == "bce_with_logits") {
      c.expect_y(bce_with_logits(c.x, t, weight, positive, reduction));
      c.expect_gradient("x", bce_with_logits_backward(c.x, t, weight, positive, reduction, c.dy));
    } else {
      ASSERT_EQ(c.name, "nll");
      const int64_t ignored = c.integer("ignore_index");
      c.expect_y(nll(c.x, labels, weight, ignored, reduction));
      c.expect_gradient("x", nll_backward(c.x, labels, weight, ignored, reduction, c.dy));
    }
  });
}

TEST(ReferenceGolden, Optimizers) {
  int cases = 0;
  for (const Json& json : golden_cases("optimizers")) {
    const std::string name = json.at("name");
    const Json& args = json.at("args");
    SCOPED_TRACE(name + " " + args.dump());
    ++cases;
    Array w = golden_array(json.at("initial")), buffer;
    AdamState state;
    AdamOptions adam{.eps = args.value("eps", 1e-8),
                     .weight_decay = args.value("weight_decay", 0.0)};
    if (args.contains("betas")) {
      adam.beta1 = args.at("betas").at(0);
      adam.beta2 = args.at("betas").at(1);
    }
    MuonOptions muon;
    muon.momentum = args.value("momentum", 0.0);
    muon.nesterov = args.value("nesterov", false);
    muon.weight_decay = adam.weight_decay;
    if (args.value("adjust", "original") != "original") {
      muon.adjust = MuonOptions::Adjust::match_rms_adamw;
    }
    for (const Json& step : json.at("steps")) {
      const Array gradient = golden_array(step.at("gradient"));
      const double lr = step.at("lr");
      if (name == "muon") {
        muon_step(w, gradient, buffer, lr, muon);
      } else {
        (name == "adam" ? adam_step : adamw_step)(w, gradient, state, lr, adam);
      }
      EXPECT_TRUE(agrees_with_golden(w, step.at("w"), 100));
    }
  }
  EXPECT_EQ(cases, 7);
}

}  // namespace
}  // namespace gradus::ref
