#include "nn/compare/differences.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "autograd/grad_mode.h"
#include "nn/compare/numbers.h"

namespace gradus {
namespace {

using Kind = ComparedLayer::Input::Kind;
using Vector = std::vector<double>;

constexpr double kNudge = 0x1p-30;     // of every input, for scales
constexpr double kSame = 0x1p-6;       // a move of a value that a shift of x does not change
constexpr double kStep = 0x1p-20;      // of one input's spread, for differences
constexpr double kTolerance = 1e-5;    // of a gradient along v
constexpr double kCorner = 0x1p-14;    // second difference as a share of the first
constexpr double kRounding = 0x1p-48;  // of an output in f64, of its own size

// +1 or -1: a bit of a hash (the finalizer of MurmurHash3), as this is most of the work; without a
// branch, which would be taken by chance.
double sign_of(uint64_t stream, uint64_t counter) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  uint64_t bits = counter ^ (stream * 0x9e3779b97f4a7c15);
  bits = (bits ^ (bits >> 33)) * 0xff51afd7ed558ccd;
  bits = (bits ^ (bits >> 33)) * 0xc4ceb9fe1a85ec53;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(1.0) | (~bits & kSign));
}

// Of an operand in f64 on the CPU: a copy in which `change(i, value)`, called on several threads,
// has changed each value.
template <class F>
Tensor changed(const Tensor& operand, const F& change) {
  Tensor result = operand.detach().clone().contiguous();
  double* values = result.raw().as<double>();
  map_parts(static_cast<size_t>(result.numel()), [&](size_t i, size_t end) {
    for (; i < end; ++i) change(i, values[i]);
    return end;
  });
  return result.contiguous(operand.options().format);
}

// By (1 + u·sign). Equal values of x move alike, so that those that tie in a maximum still do.
Tensor nudged(const Tensor& operand, bool is_x, uint64_t stream, double u) {
  return changed(operand, [&](size_t i, double& value) {
    const uint64_t which = std::bit_cast<uint64_t>(value) + (is_x ? 0 : 0x9e3779b97f4a7c15 * i);
    value *= 1 + u * sign_of(stream, which);
  });
}

// The few values of a set may all move to the same side by chance; of many sets some do not.
uint64_t rounds_for(int64_t values) {
  if (values <= 1024) return 8;
  return values <= 65536 ? 4 : 1;
}

// What a run gave, in the order of judge_layer; undefined where there is nothing.
std::vector<Tensor> values_of(const ComparedLayer& layer, const LayerRun& run) {
  std::vector<Tensor> values = run.outputs;
  size_t buffer = 0, grad = 0;
  for (const ComparedLayer::Input& input : layer.inputs) {
    if (input.kind == Kind::buffer) {
      values.push_back(run.buffers[buffer++]);
    } else if (input.wants_grad()) {
      values.push_back(run.grads[grad++]);
    }
  }
  return values;
}

// Keeps in `scales` how far each value has moved at most, divided by the nudge; moves of more than
// `most` of the largest value do not count.
void raise(std::vector<double>& scales, const std::vector<Tensor>& from,
           const std::vector<Tensor>& to, double most = HUGE_VAL) {
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!from[i].defined() || !to[i].defined() || !is_floating(from[i].dtype())) continue;
    const Numbers a(from[i]), b(to[i]);
    const double move = largest_of(
        a.size(), [&](size_t k) { return std::isfinite(a[k] - b[k]) ? std::abs(a[k] - b[k]) : 0; });
    if (move <= most * largest_size(a)) scales[i] = std::max(scales[i], move / kNudge);
  }
}

// A run from inputs that have all moved by some nudges.
LayerRun moved_run(const ComparedLayer& layer, const LayerRun& reference, uint64_t stream,
                   double nudges) {
  std::vector<Tensor> operands = operands_of(layer, kCpu, true);
  for (size_t i = 0; i < operands.size(); ++i) {
    const Kind kind = layer.inputs[i].kind;
    if (kind == Kind::constant || !is_floating(operands[i].dtype())) continue;
    operands[i] = nudged(operands[i], kind == Kind::x, stream + 2 + i, nudges * kNudge);
    if (layer.inputs[i].wants_grad()) operands[i].set_requires_grad(true);
  }
  std::vector<Tensor> upstream = reference.upstream;
  for (Tensor& dy : upstream) {
    if (dy.defined()) dy = nudged(dy, false, stream + 1, nudges * kNudge);
  }
  return run_layer(layer, operands, upstream);
}

// A run whose x moves only after the forward, by some nudges: the backward reads it beside
// statistics that have not moved.
LayerRun torn_run(const ComparedLayer& layer, const LayerRun& reference, uint64_t stream,
                  double nudges) {
  const std::vector<Tensor> operands = operands_of(layer, kCpu, true);
  const auto tear = [&] {
    for (size_t i = 0; i < operands.size(); ++i) {
      if (layer.inputs[i].kind != Kind::x || !is_floating(operands[i].dtype())) continue;
      // Another handle of the memory: a write that the tape does not see.
      const Tensor& x = operands[i];
      Tensor memory = Tensor::wrap(x.raw().data, x.shape(), x.options());
      if (memory.strides() == x.strides())
        memory.copy_(nudged(x.detach(), true, stream + 2 + i, nudges * kNudge));
    }
  };
  return run_layer(layer, operands, reference.upstream, tear);
}

// A run whose x moves as a whole, so far that f64 keeps of each value no more than a nudge of the
// largest leaves: what does not depend on where x is shows how its mean is rounded.
LayerRun shifted_run(const ComparedLayer& layer, const LayerRun& reference, uint64_t round) {
  std::vector<Tensor> operands = operands_of(layer, kCpu, true);
  if (is_floating(operands[0].dtype())) {
    const double largest = std::max(largest_size(Numbers(operands[0])), 1e-300);
    const double unit = std::ldexp(1.0, std::ilogb(largest) + 1);
    // Half an ulp of it is a nudge of the unit.
    const double shift = unit * kNudge * 0x1p53 * (1 + static_cast<double>(round) / 16);
    operands[0] = changed(operands[0], [&](size_t, double& value) { value += shift; });
    if (layer.inputs[0].wants_grad()) operands[0].set_requires_grad(true);
  }
  return run_layer(layer, operands, reference.upstream);
}

bool is_all_finite(const LayerRun& run) {
  return std::ranges::all_of(run.outputs, [](const Tensor& y) {
    return std::ranges::all_of(Numbers(y), [](double v) { return std::isfinite(v); });
  });
}

// Of an input; 0 where none arrived.
Numbers gradient_of(const ComparedLayer& layer, const LayerRun& run, size_t input) {
  size_t grad = 0;
  for (size_t i = 0; i < input; ++i) grad += layer.inputs[i].wants_grad();
  if (run.grads[grad].defined()) return Numbers(run.grads[grad]);
  return Numbers(Tensor::zeros(layer.inputs[input].value.shape(), {.dtype = DType::f64}));
}

// ±(how far the values are spread); where they are all equal ±(their size), ±1 at most. 0 where the
// gradient is not finite since an output is not (the variance of one value).
Vector direction(const Numbers& x, const Numbers& gradient, bool outputs_are_finite) {
  double sum = 0, squares = 0;
  for (const double value : x) sum += value;
  const double n = static_cast<double>(x.size()), mean = sum / n;
  for (const double value : x) squares += (value - mean) * (value - mean);
  double size = std::sqrt(squares / n);
  if (!(size > 1e-12 * std::abs(mean))) size = mean == 0 ? 1 : std::min(1.0, std::abs(mean));
  Vector v(x.size());
  for (size_t i = 0; i < v.size(); ++i) {
    const bool moves = outputs_are_finite || std::isfinite(gradient[i]);
    v[i] = moves ? kStep * size * sign_of(1, i) : 0;
  }
  return v;
}

std::vector<Numbers> outputs_at(const ComparedLayer& layer, size_t input, const Vector& v,
                                double side) {
  std::vector<Tensor> operands = operands_of(layer, kCpu, true);
  operands[input] =
      changed(operands[input], [&](size_t i, double& value) { value += side * v[i]; });
  const NoGradGuard no_grad;
  std::vector<Numbers> outputs;
  for (const Tensor& y : run_layer(layer, operands).outputs) outputs.emplace_back(y);
  return outputs;
}

double root_mean_square(const Numbers& a, const Numbers& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares / std::max<double>(1, static_cast<double>(a.size())));
}

// The upstream gradient of one output without its corners, and what it says of the forward.
struct Side {
  Tensor dy;
  double slope = 0;     // Σ dy·(high - low) / 2
  double rounding = 0;  // of that, in f64
  bool has_corners = false;
};

Side side_of(const Tensor& upstream, const Numbers& y, const Numbers& high, const Numbers& low) {
  const double typical = root_mean_square(high, low);
  Side side;
  long double slope = 0;
  double squares = 0;
  Tensor without_corners = upstream.detach().clone().contiguous();
  double* const dy = without_corners.raw().as<double>();
  for (size_t i = 0; i < y.size(); ++i) {
    const double first = high[i] - low[i], second = high[i] - 2 * y[i] + low[i];
    const double noise = kRounding * std::abs(y[i]);
    const bool is_smooth = std::abs(second) <= kCorner * std::max(std::abs(first), typical) + noise;
    if (!is_smooth || !std::isfinite(dy[i])) {  // NaN is not smooth
      dy[i] = 0, side.has_corners = true;
      continue;
    }
    slope += static_cast<long double>(dy[i]) * first / 2;
    squares += (dy[i] * noise) * (dy[i] * noise);
  }
  side.dy = without_corners.contiguous(upstream.options().format);
  side.slope = static_cast<double>(slope);
  side.rounding = std::sqrt(squares);
  return side;
}

}  // namespace

std::vector<double> measured_scales(const ComparedLayer& layer, const LayerRun& reference) {
  const std::vector<Tensor> values = values_of(layer, reference);
  std::vector<double> scales(values.size());
  const bool has_backward = std::ranges::any_of(reference.upstream, &Tensor::defined);
  const uint64_t rounds = rounds_for(layer.inputs.front().value.numel());
  for (uint64_t round = 0; round < rounds; ++round) {
    const uint64_t stream = round << 32;
    // Between one nudge and two: a value that jumps (a threshold that x is equal to, a maximum that
    // it no longer is) has done so in both.
    const auto raise_between = [&](const auto& run) {
      raise(scales, values_of(layer, run(layer, reference, stream, 1)),
            values_of(layer, run(layer, reference, stream, 2)));
    };
    raise_between(moved_run);
    if (has_backward) raise_between(torn_run);
    raise(scales, values, values_of(layer, shifted_run(layer, reference, round)), kSame);
  }
  return scales;
}

CompareDifferences differences_of(const ComparedLayer& layer, size_t input,
                                  const LayerRun& reference) {
  const Vector v = direction(Numbers(layer.inputs[input].value),
                             gradient_of(layer, reference, input), is_all_finite(reference));
  const auto high = outputs_at(layer, input, v, 1), low = outputs_at(layer, input, v, -1);
  std::vector<Tensor> upstream = reference.upstream;
  double want = 0, rounding = 0;
  bool has_corners = false;
  for (size_t i = 0; i < upstream.size(); ++i) {
    if (!upstream[i].defined()) continue;
    const Side side = side_of(upstream[i], Numbers(reference.outputs[i]), high[i], low[i]);
    upstream[i] = side.dy;
    want += side.slope, rounding += side.rounding;
    has_corners |= side.has_corners;
  }
  const LayerRun without_corners =
      has_corners ? run_layer(layer, operands_of(layer, kCpu, true), upstream) : LayerRun();
  const LayerRun& run = has_corners ? without_corners : reference;
  const Numbers g = gradient_of(layer, run, input);
  long double got = 0;
  double squares = 0;
  for (size_t i = 0; i < g.size(); ++i) {
    if (v[i] == 0) continue;
    got += static_cast<long double>(g[i]) * v[i];
    squares += g[i] * v[i] * g[i] * v[i];
  }
  CompareDifferences result{.got = static_cast<double>(got), .want = want};
  const double size = std::max(std::sqrt(squares), std::abs(want));
  result.error = std::abs(result.got - want);
  result.allowed = kTolerance * size + 4 * rounding;
  result.has_power = result.allowed < 1e-2 * size;
  result.ok = result.error <= result.allowed || (std::isnan(result.got) && std::isnan(want));
  return result;
}

}  // namespace gradus
