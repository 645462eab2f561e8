// One step of Muon over many parameters at once, in three kinds of launch with matrix products
// (core/ops/matmul.h) between them.
//
// A parameter of rank 2 or more is the matrix [rows, cols], rows its first axis and cols all others
// together. With g its gradient:
//   buf = momentum·buf + (1 - momentum)·g
//   u   = (1 - momentum)·g + momentum·buf   under nesterov, else buf
//   o   = u / max(‖u‖, eps)                                             MuonMomentum
//   ns_steps times, on the smaller side of o:
//     A = o·oᵀ,  o = (a·I + b·A + c·A²)·o      or, where rows > cols,   MuonPolynomial
//     A = oᵀ·o,  o = o·(a·I + b·A + c·A²)
//   p   = p·(1 - lr·weight_decay) - lr·adjust·o                         MuonApply
// All in acc_dtype(p.dtype), strictly (no TF32); p is rounded once.
// Source: https://pytorch.org/docs/stable/generated/torch.optim.Muon.html, which rounds o to bf16.
//
// Nothing is changed once failed_step is 0 or more: a step whose loss was not finite has set it.
#pragma once

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "core/backend.h"

namespace gradus {

// One parameter: p, dp and buf are dense in the same format, of which the first axis is outermost.
struct MuonTensor {
  AnyView p;
  AnyView dp;           // like p
  AnyView buf;          // like p, acc_dtype(p.dtype)
  AnyView o;            // as many elements, contiguous, acc
  double adjust = 1.0;  // of the rate, for the shape
};

struct MuonMomentum {
  static constexpr std::string_view name = "muon_momentum";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  std::span<const MuonTensor> tensors;  // at least one, all of one dtype
  AnyView failed_step;                  // [1], i64; may be not given
  double momentum = 0.95;
  double eps = 1e-7;
  bool nesterov = true;

  DType dtype() const { return tensors.front().p.dtype; }
  std::vector<const AnyView*> views() const {
    std::vector<const AnyView*> all{&failed_step};
    for (const MuonTensor& t : tensors) all.insert(all.end(), {&t.dp, &t.buf, &t.o});
    return all;
  }
  int64_t bytes() const {
    int64_t total = 0;
    for (const MuonTensor& t : tensors) {
      total += t.dp.nbytes() + 2 * t.buf.nbytes() + 3 * t.o.nbytes();
    }
    return total;
  }
  int64_t flops() const {
    int64_t total = 0;
    for (const MuonTensor& t : tensors) total += 9 * t.dp.numel();
    return total;
  }
  static Guarantee guarantee() { return {.accumulator = "acc_t, f64 for the norm"}; }
};

// p = a·I + b·A + c·S for square matrices.
struct MuonPolynomial {
  static constexpr std::string_view name = "muon_polynomial";
  static constexpr DTypeSet kWide = dtype_set(TypeList<float, double>{});
  static constexpr Support support{.cpu = kWide, .cuda = kWide};

  AnyView product;  // A, [batch, k, k], contiguous
  AnyView square;   // S = A², the same
  AnyView p;        // the same; may be S itself
  double a = 0, b = 0, c = 0;

  DType dtype() const { return p.dtype; }
  auto views() const { return list_views(product, square, p); }
  int64_t bytes() const { return product.nbytes() + square.nbytes() + p.nbytes(); }
  int64_t flops() const { return 3 * p.numel(); }
  static Guarantee guarantee() { return {}; }
};

struct MuonApply {
  static constexpr std::string_view name = "muon_apply";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  std::span<const MuonTensor> tensors;  // at least one, all of one dtype
  AnyView lr;                           // [1], f64
  AnyView failed_step;                  // [1], i64; may be not given
  double weight_decay = 0.0;

  DType dtype() const { return tensors.front().p.dtype; }
  std::vector<const AnyView*> views() const {
    std::vector<const AnyView*> all{&lr, &failed_step};
    for (const MuonTensor& t : tensors) all.insert(all.end(), {&t.p, &t.o});
    return all;
  }
  int64_t bytes() const {
    int64_t total = 0;
    for (const MuonTensor& t : tensors) total += 2 * t.p.nbytes() + t.o.nbytes();
    return total;
  }
  int64_t flops() const {
    int64_t total = 0;
    for (const MuonTensor& t : tensors) total += 3 * t.p.numel();
    return total;
  }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const MuonMomentum&);
void run(Cpu&, const MuonPolynomial&);
void run(Cpu&, const MuonApply&);
void run(Cuda&, const MuonMomentum&);
void run(Cuda&, const MuonPolynomial&);
void run(Cuda&, const MuonApply&);

// The formulas for one element, written once.
template <class A>
struct MuonNumbers {
  A momentum, one_minus_momentum;
  bool nesterov;
};

template <class A>
GRADUS_HD MuonNumbers<A> muon_numbers(double momentum, bool nesterov) {
  return {static_cast<A>(momentum), static_cast<A>(1.0 - momentum), nesterov};
}

// Gives u and writes the new buf.
template <class A>
GRADUS_HD A muon_direction(const MuonNumbers<A>& k, A g, A& buf) {
  buf = k.momentum * buf + k.one_minus_momentum * g;
  return k.nesterov ? k.one_minus_momentum * g + k.momentum * buf : buf;
}

// The factor that makes o of u, finite where A cannot hold 1/eps: o of 0 is 0.
template <class A>
GRADUS_HD A muon_scale(double squares, double eps) {
  constexpr A largest = std::numeric_limits<A>::max();
  const double norm = std::sqrt(squares), scale = 1.0 / (norm > eps ? norm : eps);
  return scale > largest ? largest : static_cast<A>(scale);
}

}  // namespace gradus
