#include "autograd/tape.h"

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "core/launch.h"
#include "core/ops/arithmetic.h"
#include "core/ops/copy.h"

namespace gradus {
namespace {

using StatePtr = std::shared_ptr<GradState>;

// Whether a gradient may be added to in place, or kept as it is: nobody else sees it, and no
// element of it stands for several.
bool is_sole_owner(const Tensor& tensor) {
  return tensor.is_sole_owner() &&
         (tensor.is_contiguous() || tensor.is_contiguous(MemoryFormat::channels_last));
}

void add_into(Tensor& sum, const Tensor& term) {
  Tensor result = is_sole_owner(sum) ? sum : empty_like(sum);
  launch(Arithmetic{
      .kind = Arithmetic::Kind::add, .a = sum.raw(), .b = term.raw(), .y = result.raw()});
  sum = result;
}

void require_live(const StatePtr& state) {
  if (state->node == nullptr && !state->released_name.empty()) {
    fail(ErrorCode::autograd, state->released_name,
         "backward reached this operation a second time, but its graph was freed; pass "
         "retain_graph = true to the first backward (one that failed half-way counts)");
  }
}

// The gradients that have arrived so far, and the order in which they are finished.
class Pending {
 public:
  void add(const StatePtr& state, Tensor grad, std::string_view from) {
    if (grad.shape() != state->shape || grad.dtype() != state->dtype) {
      fail(ErrorCode::internal, from, "backward made a gradient ", grad, " for an input ",
           state->dtype, state->shape);
    }
    require_live(state);
    auto [entry, is_new] = grads_.try_emplace(state.get(), std::move(grad));
    if (is_new) {
      heap_.push({state->node ? state->node->sequence() : 0, state});
    } else {
      add_into(entry->second, grad);
    }
  }

  bool empty() const { return heap_.empty(); }

  std::pair<StatePtr, Tensor> pop() {
    StatePtr state = heap_.top().state;
    heap_.pop();
    auto entry = grads_.extract(state.get());
    return {std::move(state), std::move(entry.mapped())};
  }

 private:
  // The order is kept: a hook that runs a backward of its own may free the node of a waiting state.
  struct Waiting {
    uint64_t order;  // of the node; 0 for leaves
    StatePtr state;
    bool operator<(const Waiting& other) const { return order < other.order; }
  };

  std::unordered_map<GradState*, Tensor> grads_;
  std::priority_queue<Waiting> heap_;
};

Tensor run_hooks(const GradState& state, Tensor grad) {
  for (size_t i = 0; i < state.hooks.size(); ++i) {
    const Tensor::Hook hook = state.hooks[i];  // it may register another one
    const uint64_t version = grad.storage()->version();
    Tensor replaced = hook(grad);
    if (grad.storage()->version() != version) {
      fail(ErrorCode::autograd, "hook", "a hook wrote to the gradient ", grad,
           " in place, which other gradients may share; return a new tensor");
    }
    if (!replaced.defined()) continue;
    check(replaced.shape() == state.shape && replaced.dtype() == state.dtype &&
              replaced.device() == grad.device(),
          "hook", "expected a gradient like ", grad, ", got ", replaced);
    grad = replaced.detach();
  }
  return grad;
}

void add_to_leaf(GradState& leaf, Tensor grad) {
  if (!leaf.requires_grad) return;  // no longer, since the forward
  if (leaf.grad.defined()) {
    add_into(leaf.grad, grad);
  } else {
    leaf.grad = is_sole_owner(grad) ? std::move(grad) : grad.clone();
  }
}

void run_node(const StatePtr& state, const Tensor& dy, bool retain_graph, Pending& pending) {
  const std::shared_ptr<Node> node = state->node;
  Gradients grads(node->inputs());
  node->backward(dy, grads);
  if (!retain_graph) {
    state->released_name = node->name();
    state->node.reset();
  }
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads.wanted(i)) continue;
    Tensor grad = grads.take(i);
    if (!grad.defined()) {
      fail(ErrorCode::internal, node->name(), "backward made no gradient for input ", i);
    }
    // A tensor that the node made in its forward may have a history, which would lead back to the
    // leaf that keeps it.
    pending.add(node->inputs()[i], grad.requires_grad() ? grad.detach() : std::move(grad),
                node->name());
  }
}

// All nodes behind `y`, newest first.
std::vector<std::shared_ptr<Node>> reachable_nodes(const Tensor& y) {
  std::vector<std::shared_ptr<Node>> nodes;
  std::unordered_set<Node*> seen;
  std::vector<StatePtr> open{y.grad_state()};
  while (!open.empty()) {
    const StatePtr state = open.back();
    open.pop_back();
    if (state == nullptr || state->node == nullptr || !seen.insert(state->node.get()).second)
      continue;
    nodes.push_back(state->node);
    open.insert(open.end(), state->node->inputs().begin(), state->node->inputs().end());
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const auto& a, const auto& b) { return a->sequence() > b->sequence(); });
  return nodes;
}

std::string describe(const StatePtr& input) {
  if (input == nullptr) return "(no gradient)";
  if (input->node == nullptr && !input->released_name.empty()) {
    return concat("released ", input->released_name);
  }
  if (input->node == nullptr) return concat("leaf ", input->dtype, input->shape);
  return concat(input->node->sequence(), " ", input->node->name());
}

}  // namespace

void run_backward(const Tensor& y, const Tensor& dy, bool retain_graph) {
  if (!y.requires_grad()) {
    fail(ErrorCode::autograd, "backward",
         "expected a tensor with history, but nothing that led to ", y, " asks for a gradient");
  }
  const StatePtr root = y.grad_state();
  require_live(root);  // before anything is computed
  const NoGradGuard no_grad;
  Tensor grad = dy;
  if (!dy.defined()) {
    check(y.numel() == 1, "backward", "expected a tensor of one element or a gradient for it, got ",
          y);
    grad = Tensor::ones(y.shape(), y.options());
  }
  check(grad.shape() == y.shape() && grad.dtype() == y.dtype() && grad.device() == y.device(),
        "backward", "the gradient of ", y, " must be like it, got ", grad);

  Pending pending;
  pending.add(root, grad.detach(), "backward");
  grad = Tensor();
  while (!pending.empty()) {
    auto [state, arrived] = pending.pop();
    require_live(state);
    Tensor finished = run_hooks(*state, std::move(arrived));
    require_live(state);  // a hook may have run a backward through it
    if (state->node == nullptr) {
      add_to_leaf(*state, std::move(finished));
    } else {
      run_node(state, finished, retain_graph, pending);
    }
  }
}

std::string tape_text(const Tensor& y) {
  std::string text;
  for (const auto& node : reachable_nodes(y)) {
    text += concat(node->sequence(), " ", node->name(), " <-");
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      text += concat(i ? ", " : " ", describe(node->inputs()[i]));
    }
    text += "\n";
  }
  return text;
}

std::string tape_dot(const Tensor& y) {
  std::string text = "digraph tape {\n  rankdir=BT;\n";
  for (const auto& node : reachable_nodes(y)) {
    text += concat("  n", node->sequence(), " [label=\"", node->name(), "\"];\n");
    for (const StatePtr& input : node->inputs()) {
      if (input == nullptr || input->node == nullptr) continue;
      text += concat("  n", input->node->sequence(), " -> n", node->sequence(), ";\n");
    }
  }
  return text + "}\n";
}

Tensor dense(const Tensor& tensor, MemoryFormat format) {
  if (tensor.is_contiguous(format)) return tensor.detach();
  Tensor copy = Tensor::empty(
      tensor.shape(), {.dtype = tensor.dtype(), .device = tensor.device(), .format = format});
  launch(Copy{.x = tensor.raw(), .y = copy.raw()});
  return copy;
}

Tensor dense_either(const Tensor& tensor) {
  const bool is_ready = tensor.is_contiguous() || tensor.is_contiguous(MemoryFormat::channels_last);
  return is_ready ? tensor : tensor.contiguous();
}

}  // namespace gradus
