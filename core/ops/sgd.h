// One step of stochastic gradient descent over many parameters at once.
#pragma once

#include <span>
#include <vector>

#include "core/backend.h"

namespace gradus {

// One parameter: p and dp are dense in the same format.
struct SgdTensor {
  AnyView p;         // any shape
  AnyView dp;        // like p
  AnyView buf;       // like p, acc_dtype(p.dtype); not given where momentum is 0
  int64_t born = 0;  // steps begun without this parameter
};

// With all arithmetic in acc_dtype(p.dtype) and one rounding to p's dtype:
//   d   = dp + weight_decay·p                dp itself without decay, also where p is infinite
//   buf = d                                  in the parameter's first step, step = born + 1
//   buf = momentum·buf + (1 - dampening)·d   afterwards
//   d   = buf, or d + momentum·buf under nesterov   (d itself where momentum is 0)
//   p   = p - lr·d
// Source: https://pytorch.org/docs/stable/generated/torch.optim.SGD.html
//
// Nothing is changed once failed_step is 0 or more: a step whose loss was not finite has set it.
struct SgdStep {
  static constexpr std::string_view name = "sgd_step";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  std::span<const SgdTensor> tensors;  // at least one, all of one dtype
  AnyView lr;                          // [1], f64
  AnyView step;                        // [1], i64: steps begun, this one included
  AnyView failed_step;                 // [1], i64; may be not given
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;

  DType dtype() const { return tensors.front().p.dtype; }
  std::vector<const AnyView*> views() const {
    std::vector<const AnyView*> all{&lr, &step, &failed_step};
    for (const SgdTensor& tensor : tensors) {
      all.insert(all.end(), {&tensor.p, &tensor.dp, &tensor.buf});
    }
    return all;
  }
  int64_t bytes() const {
    int64_t total = 0;
    for (const SgdTensor& t : tensors) {
      total += 2 * t.p.nbytes() + t.dp.nbytes() + 2 * t.buf.nbytes();
    }
    return total;
  }
  int64_t flops() const {
    int64_t total = 0;
    for (const SgdTensor& tensor : tensors) total += 9 * tensor.p.numel();
    return total;
  }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const SgdStep&);
void run(Cuda&, const SgdStep&);

// The numbers of a step in the type that they are computed in.
template <class A>
struct SgdNumbers {
  A momentum, one_minus_dampening, weight_decay;
  bool nesterov;
};

template <class A>
GRADUS_HD SgdNumbers<A> sgd_numbers(const SgdStep& args) {
  return {static_cast<A>(args.momentum), static_cast<A>(1.0 - args.dampening),
          static_cast<A>(args.weight_decay), args.nesterov};
}

// The formula for one element, written once: gives the new p and writes the new buf.
template <class A>
GRADUS_HD A sgd_element(const SgdNumbers<A>& k, A lr, A p, A dp, A* buf, bool first) {
  A d = k.weight_decay == 0 ? dp : dp + k.weight_decay * p;
  if (buf != nullptr) {
    const A moved = first ? d : k.momentum * *buf + k.one_minus_dampening * d;
    *buf = moved;
    d = k.nesterov ? d + k.momentum * moved : moved;
  }
  return p - lr * d;
}

}  // namespace gradus
