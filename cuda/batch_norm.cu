// Batch normalization on CUDA: which kernels run, for contiguous and for channels-last tensors.
#include "core/ops/batch_norm.h"

#include "cuda/batch_norm_bands.cuh"
#include "cuda/batch_norm_columns.cuh"
#include "cuda/batch_norm_held.cuh"
#include "cuda/batch_norm_rows.cuh"
#include "cuda/batch_norm_waves.cuh"
#include "cuda/check.h"
#include "cuda/context.h"
#include "cuda/fits_l2.h"
#include "cuda/launch_kernel.cuh"
#include "cuda/with_eviction.cuh"

namespace gradus {
namespace {

constexpr std::string_view kOp = "batch_norm";
constexpr int kThreads = kBatchNormThreads;

// Calls f(constant N) for the widest access that the shape and the pointers allow.
template <class T, class F>
void with_width(const BatchNormGeometry& g, std::initializer_list<const void*> pointers, F&& f) {
  constexpr int kWide = kFullPack<T>;
  if (pack_width(sizeof(T), pointers, {g.channels_last ? g.c : g.s}) == kWide) {
    f(std::integral_constant<int, kWide>());
  } else {
    f(std::integral_constant<int, 1>());
  }
}

template <class Part>
Part* reserve_parts(Cuda& cuda, int64_t count, size_t extra_bytes = 0) {
  return static_cast<Part*>(
      cuda.workspace(static_cast<size_t>(count) * sizeof(Part) + extra_bytes));
}

template <int N, class Of>
BatchNormColumns plan_sums(const BatchNormGeometry& g) {
  return plan_batch_norm_columns(g.m(), g.c, N, kSumRows<Of>);
}

template <int N, class Of>
void launch_columns(Cuda& cuda, const Of& of, const BatchNormColumns& plan,
                    typename Of::Part* parts, int64_t* batches) {
  const LaunchShape shape{
      {exact_blocks(plan.channel_blocks, kOp), static_cast<unsigned>(plan.chunks)},
      kThreads,
      kThreads * N * sizeof(typename Of::Part)};
  launch_overlapping(cuda, shape, batch_norm_parts_thread_per_column<Of, N>, of, plan, parts,
                     batches);
}

LaunchShape writing_shape(const BatchNormColumns& plan) {
  return {exact_blocks(plan.groups * plan.channel_blocks, kOp), kThreads};
}

template <class Part, class Finish>
void launch_finish(Cuda& cuda, const BatchNormColumns& plan, const Part* parts,
                   const Finish& finish) {
  const LaunchShape shape{exact_blocks(ceil_div(plan.c, kFinishLanes), kOp), kFinishThreads};
  launch_overlapping(cuda, shape, batch_norm_finish_columns<Part, Finish>, plan.c, plan.chunks,
                     parts, finish);
}

// Launches the kernel in which clusters hold the channels of contiguous tensors; false, and nothing
// launched, where they do not fit.
template <int N, class Of, class Finish>
bool launch_held(Cuda& cuda, const Of& of, typename Of::Element* to, const BatchNormRows& rows,
                 const Finish& finish, int64_t* batches) {
  if constexpr (N > 1) {
    if (!cuda.has_hopper_features()) return false;
    constexpr int kInputs = Of::kInputs, kWideKept = BatchNormHeld::kWidePacks / kInputs;
    constexpr int kNarrowKept = BatchNormHeld::kNarrowPacks / kInputs;
    const BatchNormHeld held = plan_batch_norm_held(
        rows, N * static_cast<int>(sizeof(typename Of::Element)), kInputs, shared_limit(cuda));
    if (held.cluster == 0) return false;
    const LaunchShape shape{.grid = exact_blocks(rows.c * held.cluster, kOp),
                            .threads = held.threads(),
                            .shared_bytes = static_cast<size_t>(held.bytes),
                            .cluster = held.cluster,
                            .carveout = cudaSharedmemCarveoutMaxShared};
    const auto kernel = held.wide
                            ? batch_norm_held<Of, Finish, N, BatchNormHeld::kWideThreads, kWideKept>
                        : held.kept > 0 ? batch_norm_held<Of, Finish, N, kThreads, kNarrowKept>
                                        : batch_norm_held<Of, Finish, N, kThreads, 0>;
    launch_overlapping(cuda, shape, kernel, of, to, held, finish, batches);
    return true;
  }
  return false;
}

// The same for bands of channels, where their planes do not divide into packs.
template <class Of, class Finish>
bool launch_bands(Cuda& cuda, const Of& of, typename Of::Element* to, const BatchNormGeometry& g,
                  std::initializer_list<const void*> pointers, const Finish& finish,
                  int64_t* batches) {
  using T = typename Of::Element;
  constexpr int N = kFullPack<T>;
  if (!cuda.has_hopper_features() || pack_width(sizeof(T), pointers, {}) != N) return false;
  const BatchNormBands bands =
      plan_batch_norm_bands(g.n, g.c, g.s, N, Of::kInputs, shared_limit(cuda));
  if (bands.held.cluster == 0) return false;
  const LaunchShape shape{.grid = exact_blocks(g.c / bands.channels * bands.held.cluster, kOp),
                          .threads = kThreads,
                          .shared_bytes = static_cast<size_t>(bands.held.bytes),
                          .cluster = bands.held.cluster,
                          .carveout = cudaSharedmemCarveoutMaxShared};
  launch_overlapping(cuda, shape, batch_norm_bands<Of, Finish, N>, of, to, bands, finish, batches);
  return true;
}

// Launches the kernel that reads memory once where the inputs do not fit L2; false, and nothing
// launched, where it does not suit.
template <int N, class Of, class Finish>
bool launch_waves(Cuda& cuda, const Of& of, typename Of::Element* to, BatchNormRows rows,
                  const Finish& finish, int64_t* batches) {
  if constexpr (N > 1) {
    using Board = BatchNormBoard<typename Of::Part, typename Finish::Terms>;
    constexpr int kPack = N * sizeof(typename Of::Element);
    const int64_t inputs = rows.c * rows.packs * kPack * Of::kInputs;
    if (fits_l2(cuda, inputs) || !fits_l2(cuda, 2 * kBatchNormLagBytes)) return false;
    const BatchNormWaves waves = plan_batch_norm_waves(rows, kPack, Of::kInputs);
    if (waves.lag == 0) return false;
    const Board board(cuda.workspace(Board::bytes(rows)), rows);
    launch_overlapping(cuda, {1, kThreads}, batch_norm_clear_board, board.summed, 2 * rows.c,
                       batches);
    launch_overlapping(cuda, {exact_blocks(waves.blocks, kOp), kThreads},
                       batch_norm_waves<Of, Finish, N>, of, to, rows, waves, finish, board);
    return true;
  }
  return false;
}

// ---- forward -----------------------------------------------------------------------------------

template <class T, int N>
void forward_rows(Cuda& cuda, const BatchNormForward& args, const BatchNormGeometry& g) {
  const BatchNormRows plan = plan_batch_norm_rows(g.n, g.c, g.s, N);
  ForwardFinish<T> finish = forward_finish<T>(args, g);
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  int64_t* batches = args.batches.as<int64_t>();
  const bool streams = batch_norm_streams(args.x.nbytes());
  if (!args.training) {
    constexpr int kGroup = batch_norm_evaluate_unroll(N) * kThreads;
    return with_eviction<N * sizeof(T)>(cuda, args.x.nbytes(), [&](auto evict) {
      launch_overlapping(cuda, {exact_blocks(ceil_div(plan.packs, kGroup) * g.c, kOp), kThreads},
                         batch_norm_forward_evaluate_rows<T, N, evict()>, x, y, plan, finish,
                         streams);
    });
  }
  // A cumulative average needs the count of batches before any block finishes a channel.
  if (!args.cumulative && launch_held<N>(cuda, finish.of, y, plan, finish, batches)) return;
  if constexpr (N == 1) {
    if (!args.cumulative && launch_bands(cuda, finish.of, y, g, {x, y}, finish, batches)) return;
  }
  if (launch_waves<N>(cuda, finish.of, y, plan, finish, batches)) return;
  auto* parts = reserve_parts<Moments<acc_t<T>>>(cuda, plan.chunks * g.c);
  finish.parts = parts;
  launch_overlapping(cuda, {exact_blocks(plan.chunks * g.c, kOp), kThreads},
                     batch_norm_parts_block_per_chunk<MomentsOf<T>, N>, finish.of, plan, parts,
                     batches);
  launch_overlapping(cuda, {exact_blocks(plan.slices * g.c, kOp), kThreads},
                     batch_norm_write_rows<MomentsOf<T>, ForwardFinish<T>, N>, finish.of, y, plan,
                     finish, streams);
}

template <class T, int N>
void forward_columns(Cuda& cuda, const BatchNormForward& args, const BatchNormGeometry& g) {
  ForwardFinish<T> finish = forward_finish<T>(args, g);
  if (args.training) {
    constexpr int kSumWidth = batch_norm_sum_width(N);
    const BatchNormColumns plan = plan_sums<kSumWidth, MomentsOf<T>>(g);
    auto* parts = reserve_parts<Moments<acc_t<T>>>(cuda, plan.chunks * g.c);
    launch_columns<kSumWidth>(cuda, finish.of, plan, parts, args.batches.as<int64_t>());
    launch_finish(cuda, plan, parts, finish);
  }
  const BatchNormColumns plan = plan_batch_norm_columns(g.m(), g.c, N, kColumnWrites);
  with_eviction<N * sizeof(T)>(cuda, args.x.nbytes(), [&](auto evict) {
    const auto write = args.training ? batch_norm_forward_write_columns<T, N, true, evict()>
                                     : batch_norm_forward_write_columns<T, N, false, evict()>;
    launch_overlapping(cuda, writing_shape(plan), write, args.x.as<T>(), args.y.as<T>(), plan,
                       finish, batch_norm_streams(args.x.nbytes()));
  });
}

// ---- backward ----------------------------------------------------------------------------------

// The first stage writes dx on the way in evaluation, where it needs no sums.
template <class T, int N>
void backward_rows(Cuda& cuda, const BatchNormBackward& args, const BatchNormGeometry& g) {
  using A = acc_t<T>;
  const BatchNormRows plan = plan_batch_norm_rows(g.n, g.c, g.s, N);
  const T *x = args.x.as<T>(), *dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  const bool wants_parameters = args.dgamma || args.dbeta;
  const bool second_pass = args.training && args.dx;
  BackwardFinish<A> finish = backward_finish<A>(args, g);
  const unsigned slices = exact_blocks(plan.slices * g.c, kOp);
  if (!second_pass && !wants_parameters) {
    launch_kernel(cuda, {slices, kThreads}, batch_norm_backward_scale_rows<T, N>, dy, dx, plan,
                  finish);
    return;
  }
  const SumsOf<T, false> sums{x, dy, finish.mean};
  const bool streams = batch_norm_streams(args.x.nbytes());
  int64_t* const none = nullptr;
  if (second_pass && launch_held<N>(cuda, sums, dx, plan, finish, none)) return;
  if constexpr (N == 1) {
    if (args.training && launch_bands(cuda, sums, dx, g, {x, dy, dx}, finish, none)) return;
  }
  if (second_pass && launch_waves<N>(cuda, sums, dx, plan, finish, none)) return;
  auto* parts = reserve_parts<BatchNormSums<A>>(cuda, plan.chunks * g.c);
  finish.parts = parts;
  const LaunchShape chunks{exact_blocks(plan.chunks * g.c, kOp), kThreads};
  if (args.dx && !args.training) {
    launch_overlapping(cuda, chunks, batch_norm_parts_block_per_chunk<SumsOf<T, true>, N>,
                       SumsOf<T, true>{x, dy, finish.mean, dx, finish.rstd, finish.gamma}, plan,
                       parts, none);
  } else {
    launch_overlapping(cuda, chunks, batch_norm_parts_block_per_chunk<SumsOf<T, false>, N>, sums,
                       plan, parts, none);
  }
  if (second_pass) {
    launch_overlapping(cuda, {slices, kThreads},
                       batch_norm_write_rows<SumsOf<T, false>, BackwardFinish<A>, N>, sums, dx,
                       plan, finish, streams);
  } else {
    launch_overlapping(cuda, {exact_blocks(ceil_div(g.c, kThreads / kWarp), kOp), kThreads},
                       batch_norm_backward_finish_rows<A>, g.c, plan.chunks, finish);
  }
}

template <class T, int N>
void backward_columns(Cuda& cuda, const BatchNormBackward& args, const BatchNormGeometry& g) {
  using A = acc_t<T>;
  const BatchNormColumns writing = plan_batch_norm_columns(g.m(), g.c, N, kColumnWrites / 2);
  const T *x = args.x.as<T>(), *dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  const bool wants_parameters = args.dgamma || args.dbeta;
  const bool second_pass = args.training && args.dx;
  BackwardFinish<A> finish = backward_finish<A>(args, g);
  const bool streams = batch_norm_streams(args.x.nbytes());
  const auto write_by = [&](auto training) {
    return fits_l2(cuda, args.x.nbytes() * (training() ? 2 : 1))
               ? batch_norm_backward_write_columns<T, N, training(), Evict::normal>
               : batch_norm_backward_write_columns<T, N, training(), Evict::last>;
  };
  if (!second_pass && !wants_parameters) {
    launch_kernel(cuda, writing_shape(writing), write_by(std::false_type()), x, dy, dx, writing,
                  finish, streams);
    return;
  }
  const auto sum_by = [&](const auto& of) {
    using Of = std::decay_t<decltype(of)>;
    constexpr int kSumWidth = batch_norm_sum_width(N);
    const BatchNormColumns plan = plan_sums<kSumWidth, Of>(g);
    auto* parts = reserve_parts<BatchNormSums<A>>(cuda, plan.chunks * g.c,
                                                  static_cast<size_t>(2 * g.c) * sizeof(A));
    if (second_pass) {
      finish.m1 = reinterpret_cast<A*>(parts + plan.chunks * g.c);
      finish.m2r = finish.m1 + g.c;
    }
    int64_t* const none = nullptr;
    launch_columns<kSumWidth>(cuda, of, plan, parts, none);
    launch_finish(cuda, plan, parts, finish);
  };
  if (args.training) {
    sum_by(SumsOf<T, false>{x, dy, finish.mean});
  } else {
    sum_by(SumsOf<T, true>{x, dy, finish.mean, dx, finish.rstd, finish.gamma});
  }
  if (second_pass) {
    launch_overlapping(cuda, writing_shape(writing), write_by(std::true_type()), x, dy, dx, writing,
                       finish, streams);
  }
}

}  // namespace

void run(Cuda& cuda, const BatchNormForward& args) {
  if (args.x.numel() == 0) return;
  const BatchNormGeometry g = batch_norm_geometry(args.x);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    with_width<T>(g, {args.x.data, args.y.data}, [&](auto width) {
      if (g.channels_last) {
        forward_columns<T, width()>(cuda, args, g);
      } else {
        forward_rows<T, width()>(cuda, args, g);
      }
    });
  });
}

void run(Cuda& cuda, const BatchNormBackward& args) {
  if (args.x.numel() == 0) {
    for (const AnyView& grad : {args.dgamma, args.dbeta}) {
      if (!grad || grad.nbytes() == 0) continue;
      cuda_check(cudaMemsetAsync(grad.data, 0, static_cast<size_t>(grad.nbytes()), cuda.stream()),
                 kOp);
    }
    return;
  }
  if (!args.dx && !args.dgamma && !args.dbeta) return;
  const BatchNormGeometry g = batch_norm_geometry(args.x);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    with_width<T>(g, {args.x.data, args.dy.data, args.dx.data}, [&](auto width) {
      if (g.channels_last) {
        backward_columns<T, width()>(cuda, args, g);
      } else {
        backward_rows<T, width()>(cuda, args, g);
      }
    });
  });
}

}  // namespace gradus
