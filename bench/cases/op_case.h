// One case of one op: inputs, the gradus call and the naive f64 reference. The same list drives the
// accuracy tests, the gradient checks, CPU against CUDA, the benchmarks and `gradus compare`.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "tests/support/reference.h"

namespace gradus {

struct CaseInput {
  enum class Kind : uint8_t {
    value,      // floating, in the dtype under test
    parameter,  // floating, in acc_dtype of the dtype under test
    state,      // like parameter, but never differentiated (running statistics)
    label,      // i64, uniform in [0, classes)
  };
  std::string name;  // "x", "gamma": for messages
  Shape shape;
  Kind kind = Kind::value;
  double mean = 0.0;  // values are drawn from mean + std · N(0, 1), or
  double std = 1.0;   // for state with `positive`, |.| + 0.5
  bool positive = false;
  int64_t classes = 0;
  bool channels_last = false;  // rank 4 only

  // Of the tensor, when `tested` is the dtype under test.
  DType dtype(DType tested) const {
    if (kind == Kind::label) return DType::i64;
    return kind == Kind::value ? tested : acc_dtype(tested);
  }
  bool is_differentiable() const { return kind == Kind::value || kind == Kind::parameter; }
};

struct OpCase {
  std::string name;  // "train_nchw_8x3x5x7"
  std::vector<CaseInput> inputs;
  // The op under test; must not change its inputs other than `state` ones.
  std::function<Tensor(std::span<const Tensor>)> forward;
  std::function<ref::Array(std::span<const ref::Array>)> reference;
  // Gradients of every value and parameter input, in order.
  std::function<std::vector<ref::Array>(std::span<const ref::Array>, const ref::Array& dy)>
      reference_backward;
  int64_t reduction = 1;  // longest sum behind one output or gradient, for the tolerance
  double scale = 0;       // largest term that cancels in a sum; 0: no more than the results
  // Where backward starts from y as stored: the largest term of a gradient that its rounding
  // enters.
  std::function<double(const ref::Array& y, const ref::Array& dy)> largest_stored_term;
  // The same case for an x of other sizes, which the op may refuse when it is called. All take
  // another shape of the same rank; with `any_rank` of any rank.
  std::function<OpCase(const Shape& x)> of_shape;
  bool any_rank = false;
  bool benchmark = false;  // large: used by bench only
  // Of a benchmark: how often memory of the size of x must be read or written where a set of x fits
  // no on-chip memory and is read twice; 0: the launches' own count, each operand once.
  double forward_passes = 0;
  double backward_passes = 0;
  bool pointwise =
      false;             // a value of y comes from one of x: docs/coverage.md judges it for itself
  std::string op;        // as in CMakeLists.txt; cases_of fills it in
  std::string function;  // a row of docs/coverage.md: "gelu"; not given: the op
};

// All cases of one op, by the name it has in CMakeLists.txt; throws on an unknown name.
std::vector<OpCase> cases_of(std::string_view op);
// The names of all ops that have cases, in CMakeLists.txt's order.
std::vector<std::string> ops_with_cases();
// For of_shape: make() of the variant with another shape of x, which is this member of it.
template <class Variant, class Make>
std::function<OpCase(const Shape& x)> with_shape(const Variant& variant, Shape Variant::*shape,
                                                 Make make) {
  return [=](const Shape& x) {
    Variant other = variant;
    other.*shape = x;
    return make(other);
  };
}
// The case for an x of another shape, of a rank that it takes.
OpCase resized(const OpCase& op_case, const Shape& x);

}  // namespace gradus
