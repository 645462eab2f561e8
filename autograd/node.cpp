#include "autograd/node.h"

#include <utility>

#include "core/error.h"

namespace gradus {
namespace {
thread_local bool g_grad_enabled = true;
std::atomic<uint64_t> g_sequence{1};

// What waits to be destroyed by the outermost ~GradState of this thread.
struct Doomed {
  std::shared_ptr<Node> node;
  std::vector<Tensor::Hook> hooks;
};
thread_local std::vector<Doomed>* g_doomed = nullptr;
}  // namespace

bool grad_enabled() { return g_grad_enabled; }
bool detail::exchange_grad_enabled(bool enabled) { return std::exchange(g_grad_enabled, enabled); }

GradState::~GradState() {
  if (node == nullptr && hooks.empty()) return;
  Doomed own{std::move(node), std::move(hooks)};
  if (g_doomed != nullptr) {
    g_doomed->push_back(std::move(own));
    return;
  }
  // Destroying a node destroys the states of its operands, and a hook those of the tensors that it
  // holds: they push their own here.
  std::vector<Doomed> doomed;
  g_doomed = &doomed;
  doomed.push_back(std::move(own));
  while (!doomed.empty()) {
    const Doomed next = std::move(doomed.back());
    doomed.pop_back();
  }
  g_doomed = nullptr;
}

Gradients::Gradients(const std::vector<std::shared_ptr<GradState>>& inputs)
    : wanted_(inputs.size()), grads_(inputs.size()) {
  for (size_t i = 0; i < inputs.size(); ++i) wanted_[i] = inputs[i] != nullptr;
}

size_t Gradients::checked(size_t i) const {
  if (i >= size()) {
    fail(ErrorCode::internal, "gradients", "the node was made with ", size(),
         " inputs, and has none of number ", i);
  }
  return i;
}

Node::Node() : sequence_(g_sequence.fetch_add(1, std::memory_order_relaxed)) {}

void Node::add_input(const Tensor& input) {
  const bool wanted = input.defined() && input.requires_grad();
  inputs_.push_back(wanted ? input.grad_state() : nullptr);
}

void attach(const Tensor& y, std::shared_ptr<Node> node) {
  if (node == nullptr) {
    fail(ErrorCode::internal, "attach",
         "expected a node; make_node() gives none where nothing is to be recorded");
  }
  if (y.grad_state() != nullptr) {
    fail(ErrorCode::internal, node->name(), "a result must be a fresh tensor");
  }
  auto state = std::make_shared<GradState>(y);
  state->requires_grad = true;
  state->node = std::move(node);
  y.grad_state() = std::move(state);
}

}  // namespace gradus
