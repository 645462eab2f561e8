#include "nn/compare/differences.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "autograd/grad_mode.h"
#include "core/random.h"

namespace gradus {
namespace {

using Kind = ComparedLayer::Input::Kind;
using Numbers = std::vector<double>;

constexpr double kNudge = 0x1p-30;     // of every input, for scales
constexpr double kStep = 0x1p-20;      // of one input's spread, for differences
constexpr double kTolerance = 1e-5;    // of a gradient along v
constexpr double kCorner = 0x1p-14;    // second difference as a share of the first
constexpr double kRounding = 0x1p-48;  // of an output in f64, of its own size

// +1 or -1.
double sign_of(uint64_t stream, uint64_t counter) {
  return philox(0, stream, counter).words[0] & 1u ? 1.0 : -1.0;
}

Tensor like(const Numbers& values, const Tensor& tensor) {
  return Tensor::from_vector(values, tensor.shape(), tensor.options());
}

// By (1 + u·sign). Equal values of x move alike, so that those that tie in a maximum still do.
Tensor nudged(const Tensor& operand, bool is_x, uint64_t stream) {
  Numbers values = operand.to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t which = std::bit_cast<uint64_t>(values[i]) + (is_x ? 0 : 0x9e3779b97f4a7c15 * i);
    values[i] *= 1 + kNudge * sign_of(stream, which);
  }
  return like(values, operand);
}

void append_moves(std::vector<double>& moves, const std::vector<Tensor>& from,
                  const std::vector<Tensor>& to) {
  for (size_t i = 0; i < from.size(); ++i) {
    double largest = 0;
    if (from[i].defined() && to[i].defined() && is_floating(from[i].dtype())) {
      const Numbers a = from[i].to_vector<double>(), b = to[i].to_vector<double>();
      for (size_t k = 0; k < a.size(); ++k) {
        const double move = std::abs(a[k] - b[k]);
        if (std::isfinite(move)) largest = std::max(largest, move);
      }
    }
    moves.push_back(largest / kNudge);
  }
}

// ±(how far the values are spread); where they are all equal ±(their size), ±1 at most.
Numbers direction(const Numbers& x) {
  double sum = 0, squares = 0;
  for (const double value : x) sum += value;
  const double n = static_cast<double>(x.size()), mean = sum / n;
  for (const double value : x) squares += (value - mean) * (value - mean);
  double size = std::sqrt(squares / n);
  if (!(size > 1e-12 * std::abs(mean))) size = mean == 0 ? 1 : std::min(1.0, std::abs(mean));
  Numbers v(x.size());
  for (size_t i = 0; i < v.size(); ++i) v[i] = kStep * size * sign_of(1, i);
  return v;
}

std::vector<Numbers> outputs_at(const ComparedLayer& layer, size_t input, const Numbers& x,
                                const Numbers& v, double side) {
  std::vector<Tensor> operands = operands_of(layer, kCpu, true);
  Numbers moved = x;
  for (size_t i = 0; i < x.size(); ++i) moved[i] += side * v[i];
  operands[input] = like(moved, operands[input]);
  const NoGradGuard no_grad;
  std::vector<Numbers> outputs;
  for (const Tensor& y : run_layer(layer, operands).outputs) {
    outputs.push_back(y.to_vector<double>());
  }
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
  Numbers dy = upstream.to_vector<double>();
  const double typical = root_mean_square(high, low);
  Side side;
  long double slope = 0;
  double squares = 0;
  for (size_t i = 0; i < dy.size(); ++i) {
    const double first = high[i] - low[i], second = high[i] - 2 * y[i] + low[i];
    const double noise = kRounding * std::abs(y[i]);
    if (!(std::abs(second) <= kCorner * std::max(std::abs(first), typical) + noise)) {  // NaN too
      dy[i] = 0, side.has_corners = true;
      continue;
    }
    slope += static_cast<long double>(dy[i]) * first / 2;
    squares += (dy[i] * noise) * (dy[i] * noise);
  }
  side.slope = static_cast<double>(slope);
  side.rounding = std::sqrt(squares);
  side.dy = like(dy, upstream);
  return side;
}

}  // namespace

std::vector<double> measured_scales(const ComparedLayer& layer, const LayerRun& reference) {
  std::vector<Tensor> operands = operands_of(layer, kCpu, true);
  for (size_t i = 0; i < operands.size(); ++i) {
    const Kind kind = layer.inputs[i].kind;
    if (kind == Kind::constant || !is_floating(operands[i].dtype())) continue;
    operands[i] = nudged(operands[i], kind == Kind::x, 2 + i);
    if (layer.inputs[i].wants_grad()) operands[i].set_requires_grad(true);
  }
  std::vector<Tensor> upstream = reference.upstream;
  for (Tensor& dy : upstream) {
    if (dy.defined()) dy = nudged(dy, false, 1);
  }
  const LayerRun moved = run_layer(layer, operands, upstream);
  std::vector<double> moves;
  append_moves(moves, reference.outputs, moved.outputs);
  size_t buffer = 0, grad = 0;
  for (const ComparedLayer::Input& input : layer.inputs) {  // the order of judge_layer
    if (input.kind == Kind::buffer) {
      append_moves(moves, {reference.buffers[buffer]}, {moved.buffers[buffer]});
      ++buffer;
    } else if (input.wants_grad()) {
      append_moves(moves, {reference.grads[grad]}, {moved.grads[grad]});
      ++grad;
    }
  }
  return moves;
}

CompareDifferences differences_of(const ComparedLayer& layer, size_t input,
                                  const LayerRun& reference) {
  const Numbers x = layer.inputs[input].value.to_vector<double>();
  const Numbers v = direction(x);
  const auto high = outputs_at(layer, input, x, v, 1), low = outputs_at(layer, input, x, v, -1);
  std::vector<Tensor> upstream = reference.upstream;
  double want = 0, rounding = 0;
  bool has_corners = false;
  for (size_t i = 0; i < upstream.size(); ++i) {
    if (!upstream[i].defined()) continue;
    const Side side =
        side_of(upstream[i], reference.outputs[i].to_vector<double>(), high[i], low[i]);
    upstream[i] = side.dy;
    want += side.slope, rounding += side.rounding;
    has_corners |= side.has_corners;
  }
  const LayerRun without_corners =
      has_corners ? run_layer(layer, operands_of(layer, kCpu, true), upstream) : LayerRun();
  const LayerRun& run = has_corners ? without_corners : reference;
  size_t grad = 0;
  for (size_t i = 0; i < input; ++i) grad += layer.inputs[i].wants_grad();
  Numbers g(x.size());
  if (run.grads[grad].defined()) g = run.grads[grad].to_vector<double>();
  long double got = 0;
  double squares = 0;
  for (size_t i = 0; i < g.size(); ++i) {
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
