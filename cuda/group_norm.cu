#include "core/ops/group_norm.h"

#include "cuda/check.h"
#include "cuda/group_norm_launch.h"
#include "cuda/group_norm_row.cuh"
#include "cuda/group_norm_rows.cuh"
#include "cuda/group_norm_samples.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/with_eviction.cuh"

namespace gradus {
namespace {

template <class... Params, class... Args>
void launch_slab(Cuda& cuda, const GroupNormSlab& plan, int shared_bytes, bool in_clusters,
                 void (*kernel)(Params...), const Args&... args) {
  launch_overlapping(cuda,
                     {.grid = exact_blocks(plan.blocks(), "group_norm"),
                      .threads = plan.threads,
                      .shared_bytes = static_cast<size_t>(shared_bytes),
                      .cluster = in_clusters ? plan.pieces : 1,
                      .carveout = cudaSharedmemCarveoutMaxShared},
                     kernel, args...);
}

// Of the loads of the kernels that hold regions: packs of one element are moved as runs.
template <class T, int N>
inline constexpr int kLoadBytes = N == 1 ? 16 : int{sizeof(T)} * N;

// Of a lane.
template <class T>
inline constexpr int kMostRowPacks = GroupNormSlab::kMostRowElements / (kWarp * kFullPack<T>);

template <class T, int N>
void launch_rows(Cuda& cuda, const SlabForward<T>& f) {
  const LaunchShape shape{
      .grid = exact_blocks(ceil_div(f.plan.sets, GroupNormSlab::kRowThreads / kWarp), "group_norm"),
      .threads = GroupNormSlab::kRowThreads};
  constexpr int kMost = kMostRowPacks<T>;
  const int64_t bytes = f.plan.numel() * int64_t{sizeof(T)};
  with_eviction<sizeof(T) * N>(cuda, bytes, [&](auto evict) {
    launch_overlapping(cuda, shape,
                       f.plan.row_packs == 1   ? group_norm_forward_warp_per_row<T, N, 1, evict()>
                       : f.plan.row_packs == 2 ? group_norm_forward_warp_per_row<T, N, 2, evict()>
                       : f.plan.row_packs == 4
                           ? group_norm_forward_warp_per_row<T, N, 4, evict()>
                           : group_norm_forward_warp_per_row<T, N, kMost, evict()>,
                       f);
  });
}

// Sets of several rows, each in the registers of a warp: of the kernels for 2, 4 and the most packs
// of a lane the one that the plan wants.
template <class Arg, class Kernel>
void launch_set_rows(Cuda& cuda, const Arg& arg, Kernel of_two, Kernel of_four, Kernel of_most) {
  const LaunchShape shape{.grid = exact_blocks(arg.plan.sets, "group_norm"),
                          .threads = static_cast<int>(arg.plan.rows) * kWarp};
  launch_overlapping(cuda, shape,
                     arg.plan.row_packs == 2   ? of_two
                     : arg.plan.row_packs == 4 ? of_four
                                               : of_most,
                     arg);
}

template <class T, int N>
void forward(Cuda& cuda, const GroupNormForward& args, const GroupNormGeometry& g) {
  using A = acc_t<T>;
  SlabForward<T> f = slab_forward<T>(args);
  f.plan = plan_group_norm_slab(g, N, sizeof(T), 1, cuda.has_hopper_features());
  const int shared = f.plan.tensor_bytes;
  if constexpr (sizeof(T) <= 4 && N == kFullPack<T>) {
    if (f.plan.row_packs > 0 && f.plan.rows == 1) return launch_rows<T, N>(cuda, f);
    if (f.plan.row_packs > 0) {
      return launch_set_rows(cuda, f, group_norm_forward_warp_of_set<T, N, 2>,
                             group_norm_forward_warp_of_set<T, N, 4>,
                             group_norm_forward_warp_of_set<T, N, kMostRowPacks<T>>);
    }
  }
  if constexpr (sizeof(T) == 2) {
    if (f.plan.is_block_row(sizeof(T))) {
      const LaunchShape shape{.grid = exact_blocks(f.plan.sets, "group_norm"),
                              .threads = GroupNormSlab::kBlockRowThreads};
      return launch_overlapping(cuda, shape, group_norm_forward_block_per_row<T>, f);
    }
  }
  if (f.plan.on_chip) {
    with_eviction<kLoadBytes<T, N>>(cuda, args.x.nbytes(), [&](auto evict) {
      launch_slab(cuda, f.plan, shared, f.plan.pieces > 1,
                  f.plan.by_block ? group_norm_forward_slab<T, N, true, evict()>
                                  : group_norm_forward_slab<T, N, false, evict()>,
                  f);
    });
    return;
  }
  const PartsOfSets of(g.n, g.g, 1, f.plan.pieces);
  f.parts =
      static_cast<Moments<A>*>(cuda.workspace(static_cast<size_t>(of.numel()) * sizeof(*f.parts)));
  launch_slab(cuda, f.plan, shared, false, group_norm_forward_slab<T, N, true, Evict::normal>, f);
  finish_moments(cuda, args, of, f.parts);
  const PacksOfRows packs(g, N);
  launch_overlapping(cuda, {.grid = stepping_blocks(packs.packs, 256 * 4), .threads = 256},
                     group_norm_forward_write<T, N>, f, packs);
}

// The kernel that holds x and dy on chip; without a cluster to hold a set it makes the parts alone.
template <class T, int N>
void backward_held(Cuda& cuda, const SlabBackward<T>& b) {
  if constexpr (sizeof(T) <= 4 && N == kFullPack<T>) {
    if (b.plan.row_packs > 0) {
      return launch_set_rows(cuda, b, group_norm_backward_warp_of_set<T, N, 2>,
                             group_norm_backward_warp_of_set<T, N, 4>,
                             group_norm_backward_warp_of_set<T, N, kMostRowPacks<T>>);
    }
  }
  const int64_t bytes = b.plan.numel() * int64_t{sizeof(T)};
  with_eviction<kLoadBytes<T, N>>(cuda, bytes, [&](auto evict) {
    launch_slab(cuda, b.plan, 2 * b.plan.tensor_bytes, b.plan.on_chip && b.plan.pieces > 1,
                b.plan.by_block ? group_norm_backward_slab<T, N, true, evict()>
                                : group_norm_backward_slab<T, N, false, evict()>,
                b, !b.plan.on_chip);
  });
}

template <class T, int N>
void backward(Cuda& cuda, const GroupNormBackward& args, const GroupNormGeometry& g) {
  using A = acc_t<T>;
  SlabBackward<T> b = slab_backward<T>(args);
  b.plan = plan_group_norm_slab(g, N, sizeof(T), 2, cuda.has_hopper_features());
  const bool wants_parameters = args.dgamma || args.dbeta, only_parts = !b.plan.on_chip;
  const PartsOfSets of(g.n, g.g, g.channels(), b.plan.segments);
  if (b.plan.on_chip && !wants_parameters) return backward_held<T, N>(cuda, b);
  const BackwardWorkspace<A> space(cuda, args, of);
  b.parts = space.parts;
  backward_held<T, N>(cuda, b);
  if (only_parts && args.dx) {
    finish_sums(cuda, args, of, g.m(), space);
    const PacksOfRows packs(g, N);
    launch_overlapping(cuda, {.grid = stepping_blocks(packs.packs, 256 * 4), .threads = 256},
                       group_norm_backward_write<T, N>, b, space.terms, packs);
  }
  sum_samples(cuda, args, g.c, b.plan.on_chip && b.plan.row_packs == 0, space);
}

// Calls f(the widest pack) that s and the pointers allow. 16-bit planes of 14 x 14 are of packs
// of 4.
template <class T, class F>
void with_width(const GroupNormGeometry& g, std::initializer_list<const void*> pointers, F&& f) {
  const int width = pack_width(sizeof(T), pointers, {g.s});
  if (width == kFullPack<T>) return f(std::integral_constant<int, kFullPack<T>>());
  if constexpr (sizeof(T) == 2) {
    if (width == 4) return f(std::integral_constant<int, 4>());
  }
  f(std::integral_constant<int, 1>());
}

void check_extents(const GroupNormGeometry& g) {
  constexpr int64_t kMost = int64_t{1} << 31;
  if (g.c <= kMost && g.s <= kMost) return;
  fail(ErrorCode::unsupported, "group_norm", "CUDA takes at most 2^31 channels of 2^31 elements, ",
       "got ", g.c, " of ", g.s);
}

void zero(Cuda& cuda, std::initializer_list<const AnyView*> views) {
  for (const AnyView* view : views) {
    if (view->nbytes() == 0) continue;
    cuda_check(cudaMemsetAsync(view->data, 0, static_cast<size_t>(view->nbytes()), cuda.stream()),
               "group_norm");
  }
}

}  // namespace

void run(Cuda& cuda, const GroupNormForward& args) {
  const GroupNormGeometry g = group_norm_geometry(args.x, args.groups);
  if (args.x.numel() == 0) return zero(cuda, {&args.mean, &args.rstd, &args.var});
  check_extents(g);
  if (g.channels_last) return detail::group_norm_columns_forward(cuda, args, g);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    with_width<T>(g, {args.x.data, args.y.data},
                  [&](auto width) { forward<T, width()>(cuda, args, g); });
  });
}

void run(Cuda& cuda, const GroupNormBackward& args) {
  const GroupNormGeometry g = group_norm_geometry(args.x, args.groups);
  if (args.x.numel() == 0) return zero(cuda, {&args.dgamma, &args.dbeta});
  check_extents(g);
  if (g.channels_last) return detail::group_norm_columns_backward(cuda, args, g);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    with_width<T>(g, {args.x.data, args.dy.data, args.dx.data},
                  [&](auto width) { backward<T, width()>(cuda, args, g); });
  });
}

}  // namespace gradus
