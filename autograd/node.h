// The graph behind a result. Each recorded operation is one Node with one output; its inputs are
// the gradient states of its operands.
//
//   struct ReluNode final : Node {
//     Saved y;
//     std::string_view name() const override { return "relu"; }
//     void backward(const Tensor& dy, Gradients& grads) override;
//   };
//
//   Tensor relu(const Tensor& x) {
//     Tensor y = empty_like(x);
//     launch(...);
//     if (auto node = make_node<ReluNode>(x)) {
//       node->y = Saved(y);
//       attach(y, std::move(node));
//     }
//     return y;
//   }
#pragma once

#include <atomic>
#include <initializer_list>
#include <string>
#include <vector>

#include "autograd/grad_mode.h"
#include "autograd/saved.h"
#include "core/tensor.h"

namespace gradus {

class Node;

// What the slot of a tensor points to: a leaf that asks for a gradient, or a result's history.
struct GradState {
  bool requires_grad = false;
  Shape shape;  // of the tensor, and so of its gradient
  DType dtype = DType::f32;
  Tensor grad;                 // leaves only; the sum over all backward calls
  std::shared_ptr<Node> node;  // the operation that made the tensor; null for a leaf
  std::string released_name;   // set when backward has freed the node
  std::vector<Tensor::Hook> hooks;

  explicit GradState(const Tensor& tensor) : shape(tensor.shape()), dtype(tensor.dtype()) {}
  GradState(const GradState&) = delete;
  GradState& operator=(const GradState&) = delete;
  ~GradState();  // frees a graph of any depth without recursion
};

// Where Node::backward puts its results. Input i is numbered as in make_node(...); any other is
// refused, since a node is easily made without one of its operands.
class Gradients {
 public:
  explicit Gradients(const std::vector<std::shared_ptr<GradState>>& inputs);
  // Whether anyone asks for the gradient of input i; work for the others is skipped.
  bool wanted(size_t i) const { return wanted_[checked(i)]; }
  // A fresh tensor like `like` if input i is wanted, else an undefined one, whose view is not
  // given.
  Tensor allocate(size_t i, const Tensor& like) const {
    return wanted(i) ? empty_like(like) : Tensor();
  }
  void set(size_t i, Tensor grad) { grads_[checked(i)] = std::move(grad); }
  const Tensor& get(size_t i) const { return grads_[checked(i)]; }
  Tensor take(size_t i) { return std::move(grads_[checked(i)]); }
  size_t size() const { return grads_.size(); }

 private:
  size_t checked(size_t i) const;  // throws unless it is an input

  std::vector<bool> wanted_;
  std::vector<Tensor> grads_;
};

class Node {
 public:
  Node();
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  virtual std::string_view name() const = 0;
  // dy has the shape and dtype of the output, in any strides (dense(dy, ...) makes it readable by a
  // kernel). Kernels write; only the tape adds.
  virtual void backward(const Tensor& dy, Gradients& grads) = 0;

  uint64_t sequence() const { return sequence_; }
  const std::vector<std::shared_ptr<GradState>>& inputs() const { return inputs_; }
  void add_input(const Tensor& input);

 private:
  uint64_t sequence_;  // from one process-wide counter: operands always have smaller numbers
  std::vector<std::shared_ptr<GradState>> inputs_;  // null where no gradient is wanted
};

// A node over `inputs` (undefined tensors allowed), or null when nothing is to be recorded.
template <class N, class... Inputs>
std::shared_ptr<N> make_node(const Inputs&... inputs) {
  if (!grad_enabled() || !((inputs.defined() && inputs.requires_grad()) || ...)) return nullptr;
  auto node = std::make_shared<N>();
  (node->add_input(inputs), ...);
  return node;
}

// Makes `node` the history of `y`, which must be fresh.
void attach(const Tensor& y, std::shared_ptr<Node> node);

}  // namespace gradus
