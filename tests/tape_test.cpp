// The tape: order, accumulation, aliasing, retained and freed graphs, hooks, versions, grad mode.
#include "autograd/tape.h"

#include <gtest/gtest.h>

#include <thread>

#include "autograd/ops/activation.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/sum.h"
#include "tests/support/expect_error.h"

namespace gradus {
namespace {

using Values = std::vector<double>;
constexpr auto kAutograd = ErrorCode::autograd;

Tensor f64(const Values& values, const Shape& shape) { return Tensor::from_vector(values, shape); }

Tensor leaf(const Values& values, const Shape& shape) {
  return f64(values, shape).set_requires_grad(true);
}

Values grad_of(const Tensor& x) { return x.grad().to_vector<double>(); }

TEST(Tape, AddsOverUsesAndOverCalls) {
  Tensor x = leaf({2, 3}, {2});
  const auto run = [&] { sum(x * x + x * 3 + x).backward(); };
  run();
  EXPECT_EQ(grad_of(x), (Values{8, 10}));
  run();
  run();
  EXPECT_EQ(grad_of(x), (Values{24, 30}));
  x.zero_grad();
  EXPECT_FALSE(x.grad().defined());
  run();
  EXPECT_EQ(grad_of(x), (Values{8, 10}));
}

// A node runs only after all users of its output, however long the detour.
TEST(Tape, WaitsForTheLastUse) {
  const Tensor x = leaf({3}, {1});
  const Tensor a = x * 2.0;
  Tensor b = a;
  for (int i = 0; i < 5; ++i) b = b * 2.0;
  (a * b + a).backward();  // 2x·64x + 2x
  EXPECT_EQ(grad_of(x), Values{2 * 128 * 3 + 2});
}

TEST(Tape, LeavesTheUpstreamGradientAlone) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor dy = f64({10, 20}, {2});
  (x + 0.0).backward(dy);
  x.backward(dy);  // a leaf is its own graph
  EXPECT_EQ(dy.to_vector<double>(), (Values{10, 20}));
  EXPECT_EQ(grad_of(x), (Values{20, 40}));
  EXPECT_NE(x.grad().storage(), dy.storage());
}

TEST(Tape, AGradientHeldByTheUserIsNotAddedTo) {
  const Tensor x = leaf({1, 2}, {2});
  sum(x).backward();
  const Tensor first = x.grad();
  sum(x).backward();
  EXPECT_EQ(first.to_vector<double>(), (Values{1, 1}));
  EXPECT_EQ(grad_of(x), (Values{2, 2}));
}

TEST(Tape, WrappedMemoryIsNotAddedTo) {
  std::vector<double> memory{5, 7};
  const auto wrapped = [&] { return Tensor::wrap(memory.data(), {2}, {.dtype = DType::f64}); };
  Tensor a = leaf({1, 2}, {2}), b = leaf({1, 2}, {2}), c = leaf({1, 2}, {2});
  a.register_hook([&](const Tensor&) { return wrapped(); });
  b.register_hook([&](const Tensor&) { return wrapped(); });
  c.set_grad(wrapped());
  sum(a + b).backward();
  EXPECT_NE(a.grad().storage()->data(), b.grad().storage()->data());
  sum(a + c).backward();
  EXPECT_EQ(grad_of(a), (Values{10, 14}));
  EXPECT_EQ(grad_of(b), (Values{5, 7}));
  EXPECT_EQ(grad_of(c), (Values{6, 8}));
  EXPECT_EQ(memory, (Values{5, 7}));
}

TEST(Tape, RetainedGraphsRunAgain) {
  const Tensor x = leaf({0.3, -0.7}, {2});
  const Tensor y = sum(relu(x * x) * x);
  y.backward({}, true);
  const Values once = grad_of(x);
  y.backward();
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(grad_of(x)[i], 2 * once[i]);
}

TEST(Tape, FreedGraphsSayWhichOperation) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor a = relu(x), y = sum(a);
  y.backward();
  EXPECT_ERROR(y.backward(), kAutograd,
               "sum: backward reached this operation a second time, but its graph was freed; pass "
               "retain_graph = true to the first backward");
  // Another graph that leads into the freed part: nothing is added to any leaf.
  const Tensor w = leaf({1, 1}, {2});
  EXPECT_ERROR(sum(a * w).backward(), kAutograd, "relu: backward reached this operation a second");
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(grad_of(x), (Values{1, 1}));
}

TEST(Tape, ANameMayBelongToItsNode) {
  struct Named final : Node {
    std::string label = "a name that is longer than a string keeps inside";
    std::string_view name() const override { return label; }
    void backward(const Tensor& dy, Gradients& grads) override { grads.set(0, dy); }
  };
  const Tensor x = leaf({1}, {1}), y = f64({1}, {1});
  attach(y, make_node<Named>(x));
  y.backward();
  const std::vector<std::string> others(50, std::string(48, '#'));  // where the name was
  EXPECT_ERROR(y.backward(), kAutograd, "a name that is longer than a string keeps inside: ");
}

TEST(Tape, RefusesWhatItCannotRun) {
  const Tensor x = leaf({1, 2}, {2});
  constexpr auto invalid = ErrorCode::invalid_argument;
  EXPECT_ERROR(f64({1}, {1}).backward(), kAutograd, "expected a tensor with history");
  EXPECT_ERROR((x * x).backward(), invalid, "expected a tensor of one element or a gradient");
  EXPECT_ERROR((x * x).backward(f64({1}, {1})), invalid, "must be like it, got f64[1]@cpu");
  EXPECT_ERROR((x * x).backward(Tensor::ones({2})), invalid, "must be like it, got f32[2]@cpu");
  Tensor whole = Tensor::ones({2}, {.dtype = DType::i64});
  EXPECT_ERROR(whole.set_requires_grad(true), invalid, "only floating dtypes have gradients");
  // But a whole state_dict() can be frozen.
  EXPECT_FALSE(whole.set_requires_grad(false).requires_grad());
  Tensor result = x * 2.0;
  EXPECT_ERROR(result.set_requires_grad(false), kAutograd, "expected a leaf, got a result");
  EXPECT_ERROR(Tensor(x).set_grad(f64({1}, {1})), invalid, "set_grad: ");
}

struct BadNode final : Node {
  Tensor made;
  std::string_view name() const override { return "bad"; }
  void backward(const Tensor&, Gradients& grads) override { grads.set(0, made); }
};

// As in PyTorch: a leaf that is frozen after the forward gets no gradient, others do.
TEST(Tape, ALeafFrozenAfterTheForwardGetsNoGradient) {
  Tensor a = Tensor::ones({2}), b = Tensor::ones({2});
  a.set_requires_grad(true), b.set_requires_grad(true);
  const Tensor y = sum(a * b);
  a.set_requires_grad(false);
  y.backward({}, true);
  EXPECT_FALSE(a.grad().defined());
  EXPECT_EQ(b.grad().to_vector<float>(), (std::vector<float>{1, 1}));
  a.set_requires_grad(true);
  y.backward();
  EXPECT_EQ(a.grad().to_vector<float>(), (std::vector<float>{1, 1}));
}

TEST(Tape, ABackwardThatMakesNothingOrTheWrongThingIsADefect) {
  const Tensor x = leaf({1, 2}, {2});
  for (const bool nothing : {true, false}) {
    Tensor y = f64({1, 2}, {2});
    auto node = make_node<BadNode>(x);
    if (!nothing) node->made = f64({1}, {1});
    attach(y, node);
    EXPECT_ERROR(y.backward(f64({1, 1}, {2})), ErrorCode::internal,
                 nothing ? "bad: backward made no gradient for input 0"
                         : "bad: backward made a gradient f64[1]@cpu for an input f64[2]");
  }
}

// An operand that make_node() was not given: nothing is written where its gradient would be.
TEST(Tape, ABackwardForAnInputThatTheNodeHasNotIsADefect) {
  struct TwoGradients final : Node {
    std::string_view name() const override { return "two"; }
    void backward(const Tensor& dy, Gradients& grads) override {
      EXPECT_ERROR(grads.wanted(1), ErrorCode::internal, "and has none of number 1");
      grads.set(1, dy);
    }
  };
  const Tensor x = leaf({1}, {1}), y = f64({1}, {1});
  attach(y, make_node<TwoGradients>(x));
  EXPECT_ERROR(y.backward(), ErrorCode::internal,
               "gradients: the node was made with 1 inputs, and has none of number 1");
}

TEST(Tape, AResultWithoutANodeIsNoLeaf) {
  const Tensor y = f64({1}, {1});
  EXPECT_ERROR(attach(y, nullptr), ErrorCode::internal, "attach: expected a node; make_node()");
  EXPECT_FALSE(y.requires_grad());
}

TEST(Hooks, SeeAndReplaceFinishedGradients) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor a = x * 2.0;
  Values seen;
  Tensor kept;
  a.register_hook([&](const Tensor& grad) {
    seen = grad.to_vector<double>();
    kept = grad;
    return Tensor();
  });
  a.register_hook([](const Tensor& grad) { return grad * 10.0; });
  x.register_hook([](const Tensor& grad) { return grad + 1.0; });
  sum(a * a + a).backward();
  EXPECT_EQ(seen, (Values{5, 9})) << "both uses, before the second hook";
  EXPECT_EQ(grad_of(x), (Values{101, 181}));
  EXPECT_EQ(kept.to_vector<double>(), (Values{5, 9})) << "a kept gradient is not written to";
}

TEST(Hooks, WhatTheyReturnCarriesNoHistory) {
  const Tensor x = leaf({1, 2}, {2});
  x.register_hook([](const Tensor&) { return leaf({3, 4}, {2}); });
  sum(x).backward();
  EXPECT_EQ(grad_of(x), (Values{3, 4}));
  EXPECT_FALSE(x.grad().requires_grad());
}

TEST(Hooks, WritingInPlaceIsRefused) {
  const Tensor a = leaf({1, 2}, {2}), b = leaf({3, 4}, {2});
  b.register_hook([](const Tensor& grad) {
    Tensor shared = grad;
    shared.mul_(10);
    return Tensor();
  });
  EXPECT_ERROR(sum((a + b) * f64({5, 6}, {2})).backward(), kAutograd,
               "hook: a hook wrote to the gradient");
}

TEST(Hooks, MayRegisterFurtherHooks) {
  const Tensor x = leaf({1, 2}, {2});
  x.register_hook([&](const Tensor&) {
    x.register_hook([](const Tensor& grad) { return grad * 3.0; });
    return Tensor();
  });
  sum(x).backward();
  EXPECT_EQ(grad_of(x), (Values{3, 3}));
}

// A hook's own backward frees part of the graph that the outer one has not reached yet.
TEST(Hooks, ABackwardInsideLosesNoGradient) {
  const Tensor w = leaf({2}, {1}), v = leaf({5}, {1});
  const Tensor a = w * w, c = v * 3.0;
  c.register_hook([&](const Tensor&) {
    a.backward();
    return Tensor();
  });
  EXPECT_ERROR((c + a).backward(), kAutograd, "mul: backward reached this operation a second");
  EXPECT_FALSE(a.grad().defined());
}

// Or the node that its own tensor comes from, which is next.
TEST(Hooks, ABackwardThroughTheTensorItself) {
  const Tensor v = leaf({1}, {1}), c = v * 3.0;
  bool retain = false, inside = false;
  c.register_hook([&](const Tensor&) {
    if (!inside) {
      inside = true;
      c.backward(Tensor(), retain);
      inside = false;
    }
    return Tensor();
  });
  const Tensor y = c * 2.0;
  retain = true;
  y.backward(Tensor(), true);
  EXPECT_EQ(grad_of(v), Values{9}) << "3 by the hook, 6";
  retain = false;
  EXPECT_ERROR(y.backward(), kAutograd, "backward reached this operation a second");
  EXPECT_FALSE(c.grad().defined());
}

TEST(Tape, AGradientThatIsSetCarriesNoHistory) {
  Tensor p = leaf({1, 2}, {2});
  p.set_grad(p * 2.0);
  EXPECT_EQ(grad_of(p), (Values{2, 4}));
  EXPECT_FALSE(p.grad().requires_grad());
}

TEST(Hooks, Refusals) {
  const Tensor x = leaf({1, 2}, {2});
  x.register_hook([](const Tensor&) { return f64({1}, {1}); });
  EXPECT_ERROR(sum(x).backward(), ErrorCode::invalid_argument,
               "hook: expected a gradient like f64[2]@cpu, got f64[1]@cpu");
  EXPECT_ERROR(f64({1}, {1}).register_hook([](const Tensor&) { return Tensor(); }), kAutograd,
               "register_hook: f64[1]@cpu does not require a gradient");
  EXPECT_ERROR(x.register_hook(Tensor::Hook()), ErrorCode::invalid_argument,
               "register_hook: expected a hook");
}

TEST(Versions, D077_ChangesOfSavedTensorsAreNoticedThroughViews) {
  const auto bump = [](Tensor view) { view.detach().add_(Tensor::ones({}, view.options())); };
  Tensor base = f64({1, 2, 3, 4}, {2, 2});
  const Tensor x = leaf({1, 1, 1, 1}, {2, 2});
  const Tensor y = sum(x * base.transpose(0, 1));
  bump(base);
  EXPECT_ERROR(y.backward(), kAutograd,
               "mul: its saved b f64[2,2]@cpu was changed in place: version 0 when saved, 1 in "
               "backward");
  const Tensor z = sum(x * base);
  bump(base.slice(0, 0, 1));
  EXPECT_ERROR(z.backward(), kAutograd, "mul: its saved b", "version 1 when saved, 2 in");
  EXPECT_FALSE(x.grad().defined());
  // Not needed by any wanted gradient, so not saved: no error.
  const Tensor c = f64({1, 2, 3, 4}, {2, 2});
  const Tensor w = sum(x + c);
  bump(c);
  w.backward();
}

TEST(GradMode, NothingIsRecordedUnderNoGrad) {
  const Tensor x = leaf({1, 2}, {2});
  {
    const NoGradGuard no_grad;
    EXPECT_FALSE((x * x).requires_grad());
    EXPECT_FALSE(x.reshape({2, 1}).requires_grad());
    const NoGradGuard inner;
  }
  EXPECT_TRUE(grad_enabled());
  EXPECT_TRUE((x * x).requires_grad());
  EXPECT_FALSE((f64({1}, {1}) * 2.0).requires_grad());
}

TEST(GradMode, BelongsToItsThread) {
  const NoGradGuard no_grad;
  bool enabled = false;
  std::thread([&] { enabled = grad_enabled(); }).join();
  EXPECT_TRUE(enabled);
  EXPECT_FALSE(grad_enabled());
}

// Forwards share the parameters; so do whole steps whose leaves are their own. For the thread
// sanitizer as well.
TEST(GradMode, ThreadsMayShareParameters) {
  const Tensor w = leaf({1, 2, 3, 4}, {2, 2}), x = f64({1, -1, 2, 0.5}, {2, 2});
  const Values want = relu(matmul(x, w)).to_vector<double>();
  std::vector<std::thread> threads;
  std::vector<Values> values(4), grads(4);
  for (size_t t = 0; t < values.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        {
          const NoGradGuard no_grad;
          values[t] = relu(matmul(x, w)).to_vector<double>();
        }
        Tensor own = w.detach().clone().set_requires_grad(true);
        sum(own * x).backward();
        grads[t] = grad_of(own);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 0; t < values.size(); ++t) {
    EXPECT_EQ(values[t], want);
    EXPECT_EQ(grads[t], x.to_vector<double>());
  }
}

TEST(GradMode, DetachCutsHistoryAndSharesData) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor a = x * 2.0, b = a.detach();
  EXPECT_EQ(a.storage(), b.storage());
  EXPECT_TRUE(b.is_leaf());
  sum(b * x).backward();
  EXPECT_EQ(grad_of(x), (Values{2, 4}));
}

TEST(GradMode, GradientsCarryNoHistory) {
  const Tensor x = leaf({1, 2}, {2});
  sum(x * x * x).backward();
  EXPECT_FALSE(x.grad().requires_grad());
}

TEST(GradMode, AForwardThatThrowsLeavesNoNode) {
  const Tensor x = leaf({1, 2}, {2});
  const auto before = x.grad_state().use_count();
  EXPECT_ERROR(x * f64({1, 2, 3}, {3}), ErrorCode::invalid_argument, "mul: ");
  EXPECT_EQ(x.grad_state().use_count(), before);
  EXPECT_EQ(x.storage()->version(), 0u);
}

TEST(TapePrint, TextAndDot) {
  const Tensor a = leaf({1, 2}, {2}), b = leaf({3}, {1});
  const Tensor y = relu(a * b) + f64({1, 2}, {2});
  const uint64_t last = std::stoull(tape_text(y));
  const auto number = [&](uint64_t back) { return concat(last - back); };
  EXPECT_EQ(tape_text(y), number(0) + " add <- " + number(1) + " relu, (no gradient)\n" +
                              number(1) + " relu <- " + number(2) + " mul\n" + number(2) +
                              " mul <- leaf f64[2], leaf f64[1]\n");
  EXPECT_EQ(tape_dot(y), "digraph tape {\n  rankdir=BT;\n  n" + number(0) +
                             " [label=\"add\"];\n  n" + number(1) + " -> n" + number(0) + ";\n  n" +
                             number(1) + " [label=\"relu\"];\n  n" + number(2) + " -> n" +
                             number(1) + ";\n  n" + number(2) + " [label=\"mul\"];\n}\n");
  EXPECT_EQ(tape_text(a), "");
  sum(y).backward();
  EXPECT_EQ(tape_text(-y), concat(last + 2, " affine <- released add\n"));
}

}  // namespace
}  // namespace gradus
