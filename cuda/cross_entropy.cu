#include "core/ops/cross_entropy.h"
#include "cuda/labels.cuh"

namespace gradus {
namespace {

constexpr int kForwardThreads = 1024;
constexpr int kBackwardThreads = 256;

// Calls f(first, end) for runs of a lane's classes first, first + Lanes, ...: each is summed by
// itself, so that long sums keep their digits.
template <int Lanes, class F>
__device__ __forceinline__ void for_each_chain(int64_t c, int lane, const F& f) {
  constexpr int64_t kStep = 256 * Lanes;
  for (int64_t first = lane; first < c; first += kStep) f(first, min(first + kStep, c));
}

// The targets t·w of a row, as core/ops/cross_entropy.h has them.
template <class A>
struct Targets {
  LabelView labels;
  const A* weight;  // null for 1
  int64_t ignore_index;
  A share;  // e/c
  A rest;   // 1 - e

  __device__ A weight_at(int64_t k) const { return weight == nullptr ? A(1) : weight[k]; }
  __device__ bool is_ignored(int64_t label) const { return label == ignore_index; }
  // Whether the label is neither a class nor ignored.
  __device__ bool is_wrong(int64_t label, int64_t c) const {
    return !is_ignored(label) && (label < 0 || label >= c);
  }
  // (1 - e)·w[label]; NaN for a wrong label.
  __device__ A direct(int64_t label, int64_t c) const {
    return is_wrong(label, c) ? A(NAN) : rest * weight_at(label);
  }
  // Σ_k e/c·w_k, by a group of Lanes lanes.
  template <int Lanes>
  __device__ A smoothed(int64_t c, int lane) const {
    if (share == A(0) || weight == nullptr) return share * static_cast<A>(c);
    A total = 0;
    for_each_chain<Lanes>(c, lane, [&](int64_t first, int64_t end) {
      A chain = 0;
      for (int64_t k = first; k < end; k += Lanes) chain += share * weight[k];
      total += chain;
    });
    return warp_sum<Lanes>(total);
  }
};

template <class A, class Args>
Targets<A> targets_of(const Args& args, const ClassRows& shape) {
  return {.labels = {args.labels.data, args.labels.dtype},
          .weight = args.weight.template as<A>(),
          .ignore_index = args.ignore_index,
          .share = static_cast<A>(args.label_smoothing / static_cast<double>(shape.c)),
          .rest = static_cast<A>(1 - args.label_smoothing)};
}

// ---- forward ------------------------------------------------------------------------------------

template <class T>
struct ForwardInput {
  const T* x;
  ClassRows shape;
  Targets<acc_t<T>> targets;
  acc_t<T>* max;
  acc_t<T>* log_sum;
};

// math:   core/ops/cross_entropy.h, by a group of Lanes lanes; returns the row's loss to all
// passes: max, then sum; the second reads the row from the first cache
template <int Lanes, class T>
__device__ acc_t<T> forward_row(const ForwardInput<T>& in, int64_t row, int64_t label, int lane,
                                bool writes) {
  using A = acc_t<T>;
  const int64_t c = in.shape.c, inner = in.shape.inner;
  const T* x = in.x + row_offset(in.shape, row);
  A max = A(-INFINITY);  // 1 max
  for (int64_t k = lane; k < c; k += Lanes) max = MaxOp{}(max, static_cast<A>(x[k * inner]));
  max = warp_max<Lanes>(max);
  A sum = 0, smooth = 0;  // 2 sum
  for_each_chain<Lanes>(c, lane, [&](int64_t first, int64_t end) {
    A chain = 0, smooth_chain = 0;
    for (int64_t k = first; k < end; k += Lanes) {
      const A z = static_cast<A>(x[k * inner]) - max;
      chain += exp(z);
      if (in.targets.share != A(0)) smooth_chain += in.targets.share * in.targets.weight_at(k) * z;
    }
    sum += chain, smooth += smooth_chain;
  });
  const A log_sum = log(warp_sum<Lanes>(sum));
  smooth = warp_sum<Lanes>(smooth);
  const A smoothed = in.targets.template smoothed<Lanes>(c, lane);
  if (writes) {
    in.max[row] = max;
    in.log_sum[row] = log_sum;
  }
  if (in.targets.is_ignored(label)) return A(0);  // 3 loss
  const A direct = in.targets.direct(label, c);
  const A own = in.targets.is_wrong(label, c) ? max : static_cast<A>(x[label * inner]);
  A loss = direct * (log_sum - (own - max));
  if (in.targets.share != A(0)) loss += smoothed * log_sum - smooth;
  return loss;
}

// grid:  1-D, one block per chunk of rows; a group of Lanes lanes per row
// bytes: fewest = x + labels + max + log_sum; x is read a second time from the first cache
// needs: chunk a multiple of the groups in a block
// order: rows of a chunk by the thread that takes them, then the block's tree
template <int Lanes, class T>
__global__ void __launch_bounds__(kForwardThreads)
    cross_entropy_forward_group_per_row(const ForwardInput<T> in, int64_t chunk,
                                        LabelResult<acc_t<T>> result, LabelPart* parts) {
  constexpr int groups = kForwardThreads / Lanes;
  const int group = static_cast<int>(threadIdx.x) / Lanes;
  const int lane = static_cast<int>(threadIdx.x) % Lanes;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk;
  LabelPart part;
  wait_for_previous_kernel();
  start_next_kernel();
  // All lanes of a warp stay in the loop together, for the shuffles.
  for (int64_t i = 0; i < chunk; i += groups) {
    const int64_t row = begin + i + group;
    const bool is_row = row < in.shape.rows;
    const int64_t safe = is_row ? row : in.shape.rows - 1;
    const int64_t label = in.targets.labels[safe];
    const bool is_writer = is_row && lane == 0;
    const acc_t<T> loss = forward_row<Lanes>(in, safe, label, lane, is_writer);
    if (!is_writer) continue;
    if (result.row_loss != nullptr) result.row_loss[row] = loss;
    part.loss += static_cast<double>(loss);
    if (in.targets.is_ignored(label)) continue;
    if (in.targets.is_wrong(label, in.shape.c)) {
      part.wrong = FirstOp{}(part.wrong, row);
    } else {
      part.weight += static_cast<double>(in.targets.weight_at(label));
    }
  }
  leave_part(result, part, parts);
}

template <int Lanes, class T>
void launch_forward(Cuda& cuda, const ForwardInput<T>& in, const LabelResult<acc_t<T>>& result) {
  constexpr int64_t groups = kForwardThreads / Lanes;
  const Chunks chunks = plan_chunks(in.shape.rows, groups, 1024, groups);
  launch_label_loss(cuda, chunks, kForwardThreads, CrossEntropyForward::name,
                    cross_entropy_forward_group_per_row<Lanes, T>, in, result);
}

// ---- backward -----------------------------------------------------------------------------------

template <class T>
struct BackwardInput {
  const T* x;
  ClassRows shape;
  Targets<acc_t<T>> targets;
  const acc_t<T>* max;
  const acc_t<T>* log_sum;
  const acc_t<T>* divisor;  // for mean, else null
  const acc_t<T>* dy;
  int64_t dy_stride;  // 1 for Reduction::none, else 0
};

// math:  core/ops/cross_entropy.h
// grid:  1-D; a group of Lanes lanes per row
// bytes: fewest = actual: x read once, dx written once
// order: none but Σ w
template <int Lanes, class T>
__global__ void __launch_bounds__(kBackwardThreads)
    cross_entropy_backward_group_per_row(const BackwardInput<T> in, T* dx) {
  using A = acc_t<T>;
  constexpr int groups = kBackwardThreads / Lanes;
  const int lane = static_cast<int>(threadIdx.x) % Lanes;
  const int64_t c = in.shape.c, inner = in.shape.inner;
  const A smoothed = in.targets.template smoothed<Lanes>(c, lane);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * groups + threadIdx.x / Lanes;
  if (row >= in.shape.rows) return;
  const int64_t label = in.targets.labels[row];
  const int64_t offset = row_offset(in.shape, row);
  if (in.targets.is_ignored(label)) {
    for (int64_t k = lane; k < c; k += Lanes) dx[offset + k * inner] = static_cast<T>(A(0));
    return;
  }
  A d = in.dy[row * in.dy_stride];
  if (in.divisor != nullptr) d /= *in.divisor;
  const A direct = in.targets.direct(label, c), all = direct + smoothed;
  const A max = in.max[row], log_sum = in.log_sum[row];
  for (int64_t k = lane; k < c; k += Lanes) {
    const A p = exp((static_cast<A>(in.x[offset + k * inner]) - max) - log_sum);
    const A target = in.targets.share * in.targets.weight_at(k) + (k == label ? direct : A(0));
    dx[offset + k * inner] = static_cast<T>(d * (p * all - target));
  }
}

template <int Lanes, class T>
void launch_backward(Cuda& cuda, const BackwardInput<T>& in, T* dx) {
  const int64_t blocks = ceil_div(in.shape.rows, kBackwardThreads / Lanes);
  cross_entropy_backward_group_per_row<Lanes>
      <<<exact_blocks(blocks, CrossEntropyBackward::name), kBackwardThreads, 0, cuda.stream()>>>(
          in, dx);
}

// One lane per row where neighbouring rows lie together, else as many as the classes can use.
template <class F>
void with_lanes(const ClassRows& shape, F&& f) {
  if (shape.inner > 1) return f(std::integral_constant<int, 1>{});
  if (shape.c <= 16) return f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, 32>{});
}

}  // namespace

void run(Cuda& cuda, const CrossEntropyForward& args) {
  const ClassRows shape = class_rows(args.x, args.name);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    const auto result = label_result<A>(cuda, args, shape.c, Fault::Kind::label);
    const ForwardInput<T> in{.x = args.x.as<T>(),
                             .shape = shape,
                             .targets = targets_of<A>(args, shape),
                             .max = args.max.as<A>(),
                             .log_sum = args.log_sum.as<A>()};
    with_lanes(shape,
               [&](auto lanes) { launch_forward<decltype(lanes)::value>(cuda, in, result); });
  });
}

void run(Cuda& cuda, const CrossEntropyBackward& args) {
  if (args.dx.numel() == 0) return;
  const ClassRows shape = class_rows(args.x, args.name);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    const BackwardInput<T> in{.x = args.x.as<T>(),
                              .shape = shape,
                              .targets = targets_of<A>(args, shape),
                              .max = args.max.as<A>(),
                              .log_sum = args.log_sum.as<A>(),
                              .divisor = args.divisor.as<A>(),
                              .dy = args.dy.as<A>(),
                              .dy_stride = args.reduction == Reduction::none ? 1 : 0};
    with_lanes(shape, [&](auto lanes) {
      launch_backward<decltype(lanes)::value>(cuda, in, args.dx.as<T>());
    });
  });
}

}  // namespace gradus
