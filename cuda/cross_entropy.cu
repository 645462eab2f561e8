#include "core/ops/cross_entropy.h"

#include "cuda/cross_entropy_rows.cuh"

namespace gradus {
namespace {

// ---- forward ------------------------------------------------------------------------------------

template <class T>
struct ForwardInput {
  const T* x;
  ClassRows shape;
  Targets<acc_t<T>> targets;
  acc_t<T>* max;
  acc_t<T>* log_sum;
};

// What has been seen of a row, about the largest of it.
template <class A>
struct RowPart {
  A max = A(-INFINITY);
  A sum = A(0);     // Σ exp(x - max)
  A smooth = A(0);  // Σ e/c·w·(x - max)
  A weight = A(0);  // Σ e/c·w, where label smoothing wants it

  // The same about a larger maximum. Terms and what is added to `smooth` have one sign: no digits
  // are lost.
  __device__ __forceinline__ void raise(A to) {
    const A base = base_of(to);
    sum *= exp(max - base);
    smooth += weight * (base_of(max) - base);
    max = to;
  }
  __device__ __forceinline__ void merge(RowPart other) {
    const A larger = SoftmaxMax{}(max, other.max);
    raise(larger);
    other.raise(larger);
    sum += other.sum;
    smooth += other.smooth;
    weight += other.weight;
  }
  // Adds a turn whose values are at most max.
  template <int Lanes, int N, int U, class T>
  __device__ __forceinline__ void add(const Turn<Lanes, N, U, T>& turn, const Targets<A>& targets) {
    const A base = base_of(max);
    A chain = 0, smooth_chain = 0, weight_chain = 0;
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (!turn.has(u)) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A z = turn.raw[u][j] - base;
        chain += exp(z);
        if (targets.share == A(0)) continue;
        const A w = targets.share * targets.weight_at(turn.place(u) + j);
        smooth_chain += w * z;
        weight_chain += w;
      }
    }
    sum += chain;
    smooth += smooth_chain;
    weight += weight_chain;
  }
};

// The whole row, to all its lanes, by one pass over it.
template <int Lanes, int N, class T>
__device__ __forceinline__ RowPart<acc_t<T>> part_of_row(const ForwardInput<T>& in, const T* x,
                                                         int lane) {
  using A = acc_t<T>;
  using Row = RowTurns<Lanes, N, T>;
  const Row row(x, in.shape);
  RowPart<A> all;
  if constexpr (Lanes == kCrossEntropyShortLanes) {
    const auto turn = row.turn(lane);
    all.max = reduce_group<Lanes>(turn.largest(all.max), SoftmaxMax{}, all.max);
    all.add(turn, in.targets);
  } else {
    const auto edge = row.edge(lane, N > 1);
    for (int64_t run = lane; run < row.count(); run += Row::kRun) {
      const int64_t end = min(run + Row::kRun, row.count());
      RowPart<A> part;
      for (int64_t i = run; i < end; i += Row::kTurn) {
        const auto turn = row.turn(i);
        part.raise(turn.largest(part.max));
        part.add(turn, in.targets);
      }
      all.merge(part);
    }
    if constexpr (N > 1) {
      all.raise(edge.largest(all.max));
      all.add(edge, in.targets);
    }
    all.raise(reduce_group<Lanes>(all.max, SoftmaxMax{}, A(-INFINITY)));
  }
  all.sum = reduce_group<Lanes>(all.sum, SumOp{}, A(0));
  if (in.targets.share != A(0)) {
    all.smooth = reduce_group<Lanes>(all.smooth, SumOp{}, A(0));
    all.weight = in.targets.weight == nullptr ? in.targets.share * static_cast<A>(in.shape.c)
                                              : reduce_group<Lanes>(all.weight, SumOp{}, A(0));
  }
  return all;
}

// math:  core/ops/cross_entropy.h, by a group of Lanes lanes; returns the row's loss to all
template <int Lanes, int N, class T>
__device__ __forceinline__ acc_t<T> forward_row(const ForwardInput<T>& in, int64_t row,
                                                int64_t label, int lane, bool writes) {
  using A = acc_t<T>;
  const int64_t c = in.shape.c;
  const T* x = in.x + row_begin<Lanes>(in.shape, row);
  A own = 0;
  if (label >= 0 && label < c) {
    own = static_cast<A>(x[Lanes == 1 ? label * in.shape.inner : label]);
  }
  const RowPart<A> part = part_of_row<Lanes, N>(in, x, lane);
  const A log_sum = log(part.sum);
  if (writes) {
    in.max[row] = part.max;
    in.log_sum[row] = log_sum;
  }
  if (in.targets.is_ignored(label)) return A(0);
  A loss = in.targets.direct(label, c) * (log_sum - (own - part.max));
  if (in.targets.share != A(0)) loss += part.weight * log_sum - part.smooth;
  return loss;
}

// grid:   1-D, one block per chunk of rows; a group of Lanes lanes per row
// passes: 1, with the sums so far about the largest value so far
// bytes:  fewest = actual = x + labels + max + log_sum
// smem:   that of block reductions
// needs:  chunk a multiple of the groups in a block
// order:  a lane's turns in chains of kClassChain classes, its class beside the packs last; lanes
//         pairwise, warps pairwise. Losses: rows of a chunk by the thread that takes them, then the
//         block's tree
template <int Lanes, int N, class T>
__global__ void __launch_bounds__(cross_entropy_most_threads(Lanes),
                                  Lanes < kWarp || sizeof(T) == 8 ? 1 : 2)
    cross_entropy_forward_group_per_row(const ForwardInput<T> in, int64_t chunk,
                                        LabelResult<acc_t<T>> result, LabelPart* parts) {
  const int groups = static_cast<int>(blockDim.x) / Lanes;
  const int group = static_cast<int>(threadIdx.x) / Lanes;
  const int lane = static_cast<int>(threadIdx.x) % Lanes;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk;
  const int64_t end = min(begin + chunk, in.shape.rows);
  wait_for_previous_kernel();
  start_next_kernel();
  LabelPart part;
  // All lanes of a block stay in the loop together, for the reductions.
  for (int64_t first = begin; first < end; first += groups) {
    const int64_t row = first + group;
    const bool is_row = row < in.shape.rows;
    const int64_t safe = is_row ? row : in.shape.rows - 1;
    const int64_t label = in.targets.labels[safe];
    const bool is_writer = is_row && lane == 0;
    const acc_t<T> loss = forward_row<Lanes, N>(in, safe, label, lane, is_writer);
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

// What the gradients of a row share.
template <class A>
struct RowTerms {
  int64_t label;
  bool is_ignored;
  A d = A(0), direct = A(0), all = A(0), max = A(0), log_sum = A(0);

  __device__ __forceinline__ A dx(A x, int64_t k, const Targets<A>& targets) const {
    const A p = exp((x - max) - log_sum);
    const A target = targets.share * targets.weight_at(k) + (k == label ? direct : A(0));
    return is_ignored ? A(0) : d * (p * all - target);
  }
};

template <class T>
__device__ __forceinline__ RowTerms<acc_t<T>> terms_of(const BackwardInput<T>& in, int64_t row,
                                                       acc_t<T> smoothed) {
  const int64_t label = in.targets.labels[row];
  RowTerms<acc_t<T>> terms{.label = label, .is_ignored = in.targets.is_ignored(label)};
  if (terms.is_ignored) return terms;
  terms.d = in.dy[row * in.dy_stride];
  if (in.divisor != nullptr) terms.d /= *in.divisor;
  terms.direct = in.targets.direct(label, in.shape.c);
  terms.all = terms.direct + smoothed;
  terms.max = in.max[row];
  terms.log_sum = in.log_sum[row];
  return terms;
}

// Writes the gradients of a turn to dx, whose classes lie `step` apart.
template <int Lanes, int N, int U, class T>
__device__ __forceinline__ void write_turn(const Turn<Lanes, N, U, T>& turn,
                                           const RowTerms<acc_t<T>>& terms,
                                           const Targets<acc_t<T>>& targets, T* dx, int64_t step) {
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (!turn.has(u)) continue;
    acc_t<T> values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      values[j] = terms.dx(turn.raw[u][j], turn.place(u) + j, targets);
    }
    round_raw<T, N>(values).store(dx + turn.place(u) * step);
  }
}

// math:  core/ops/cross_entropy.h
// grid:  1-D; a group of Lanes lanes per row
// bytes: fewest = actual: x read once, dx written once
// smem:  that of block reductions
// needs: for N > 1, x and dx that lie alike towards 16-byte boundaries
// order: none but Σ w
template <int Lanes, int N, class T>
__global__ void __launch_bounds__(kCrossEntropyThreads)
    cross_entropy_backward_group_per_row(const BackwardInput<T> in, T* dx) {
  using Row = RowTurns<Lanes, N, T>;
  const int lane = static_cast<int>(threadIdx.x) % Lanes;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / Lanes) + threadIdx.x / Lanes;
  wait_for_previous_kernel();
  start_next_kernel();
  const acc_t<T> smoothed = in.targets.template smoothed<Lanes>(in.shape.c, lane);
  if (row >= in.shape.rows) return;
  const int64_t begin = row_begin<Lanes>(in.shape, row);
  const auto terms = terms_of(in, row, smoothed);
  const Row turns(in.x + begin, in.shape);
  const int64_t step = Lanes == 1 ? in.shape.inner : 1;
  for (int64_t i = lane; i < turns.count(); i += Row::kTurn) {
    write_turn(turns.turn(i, !terms.is_ignored), terms, in.targets, dx + begin, step);
  }
  if constexpr (N > 1) {
    write_turn(turns.edge(lane, !terms.is_ignored), terms, in.targets, dx + begin, step);
  }
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
    const CrossEntropyPlan plan = plan_cross_entropy_forward(shape, sizeof(T));
    with_lanes<T>(plan, [&](auto lanes, auto width) {
      // Rows may begin anywhere: the width is 1 for few lanes only.
      if constexpr (lanes() != kWarp || width() > 1) {
        launch_label_loss(cuda, plan.chunks, plan.threads, args.name,
                          cross_entropy_forward_group_per_row<lanes(), width(), T>, in, result);
      }
    });
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
    T* dx = args.dx.as<T>();
    const auto past = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16; };
    const CrossEntropyPlan plan =
        plan_cross_entropy_backward(shape, sizeof(T), past(in.x) == past(dx));
    const LaunchShape launch{.grid = exact_blocks(plan.chunks.count, args.name),
                             .threads = plan.threads};
    with_lanes<T>(plan, [&](auto lanes, auto width) {
      launch_overlapping(cuda, launch, cross_entropy_backward_group_per_row<lanes(), width(), T>,
                         in, dx);
    });
  });
}

}  // namespace gradus
