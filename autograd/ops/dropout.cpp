#include "autograd/ops/dropout.h"

#include "autograd/ops/arithmetic.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/dropout.h"

namespace gradus {
namespace {

struct DropoutNode final : Node {
  Saved keep;  // in the format of x
  double p;

  std::string_view name() const override { return "dropout"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

}  // namespace

Tensor dropout(const Tensor& given, double p, bool training, Generator* generator) {
  check(is_floating(given.dtype()), "dropout", "expected a floating dtype, got ", given);
  check(p >= 0 && p <= 1, "dropout", "p must be in [0, 1], got ", p);
  if (!training || p == 0) return given;
  if (p == 1) return given * 0.0;
  Generator& source = generator == nullptr ? default_generator(given.device()) : *generator;
  check(source.device() == given.device(), "dropout", "expected a generator on ", given.device(),
        ", got one on ", source.device());
  const MemoryFormat format = given.options().format;
  const Tensor x = dense(given, format);
  Tensor y = empty_like(x);
  const Tensor keep =
      Tensor::empty(x.shape(), {.dtype = DType::u8, .device = x.device(), .format = format});
  launch(DropoutForward{
      .x = x.raw(), .y = y.raw(), .keep = keep.raw(), .state = source.tensor().raw(), .p = p});
  if (auto node = make_node<DropoutNode>(given)) {
    node->keep = Saved(keep);
    node->p = p;
    attach(y, std::move(node));
  }
  return y;
}

void DropoutNode::backward(const Tensor& upstream, Gradients& grads) {
  const Tensor keep = this->keep.get(name(), "keep");
  const Tensor dy = dense(upstream, keep.options().format);
  const Tensor dx = empty_like(dy);
  launch(DropoutBackward{.dy = dy.raw(), .keep = keep.raw(), .dx = dx.raw(), .p = p});
  grads.set(0, dx);
}

}  // namespace gradus
