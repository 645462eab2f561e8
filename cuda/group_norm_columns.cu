// Group normalization of channels-last tensors: the channels of a group are a few neighbours in
// each row, so a thread keeps a pack of channels and walks down the rows of a sample.
#include "cuda/device/shared.cuh"
#include "cuda/group_norm_launch.h"
#include "cuda/group_norm_samples.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/with_eviction.cuh"

namespace gradus {
namespace {

// What one thread works on.
struct ColumnThread {
  int64_t sample, chunk, channel;  // the first channel of its pack
  int64_t row, end, step;          // of the sample
  int y;                           // which of the block's rows
  bool active;
};

__device__ __forceinline__ ColumnThread column_thread(const GroupNormColumns& plan,
                                                      uint32_t block) {
  const uint32_t rest = plan.by_tiles.quotient(block), tile = block - rest * plan.tiles;
  const uint32_t sample = plan.by_chunks.quotient(rest), chunk = rest - sample * plan.chunks;
  const int y = threadIdx.x / plan.lanes, lane = threadIdx.x % plan.lanes;
  ColumnThread at;
  at.sample = sample;
  at.chunk = chunk;
  at.channel = (int64_t{tile} * plan.lanes + lane) * plan.width;
  at.row = chunk * plan.rows_per_chunk + y;
  at.end = min(plan.s, (chunk + 1) * plan.rows_per_chunk);
  at.step = GroupNormColumns::kThreads / plan.lanes;
  at.y = y;
  at.active = at.channel < plan.c;
  return at;
}

// Folds one part per channel of each thread onto the threads of the block's first row, by halves,
// and stores them at parts[sample, chunk, channel].
template <int N, class Part, class Merge>
__device__ __forceinline__ void store_parts(const GroupNormColumns& plan, const ColumnThread& at,
                                            Part (&part)[N], Part* parts, const Merge& merge) {
  Part* of_thread = reinterpret_cast<Part*>(dynamic_shared());
  constexpr int kThreads = GroupNormColumns::kThreads;
  for (int width = kThreads / plan.lanes; width > 1; width /= 2) {
    if (at.y < width && at.y >= width / 2) {
#pragma unroll
      for (int j = 0; j < N; ++j) of_thread[j * kThreads + threadIdx.x] = part[j];
    }
    __syncthreads();
    if (at.y < width / 2) {
#pragma unroll
      for (int j = 0; j < N; ++j)
        part[j] = merge(part[j], of_thread[j * kThreads + threadIdx.x + width / 2 * plan.lanes]);
    }
  }
  if (at.y != 0 || !at.active) return;
  Part* to = parts + (at.sample * plan.chunks + at.chunk) * plan.c + at.channel;
#pragma unroll
  for (int j = 0; j < N; ++j) to[j] = part[j];
}

// math    moments of each channel over a chunk of the rows of a sample
// grid    a block per (sample, chunk, tile of channels)
// passes  1: batches of 8 rows in two passes over registers, merged by Chan's formula
// bytes   Eb, and 3 numbers per chunk and channel
// smem    the moments of each thread's channels
// order   batches of a thread, then the threads of a column by halves: fixed by the shape
template <class T, int N>
__global__ void __launch_bounds__(GroupNormColumns::kThreads)
    group_norm_moments_columns(const T* x, const __grid_constant__ GroupNormColumns plan,
                               Moments<acc_t<T>>* parts) {
  using A = acc_t<T>;
  constexpr int kBatch = GroupNormColumns::kBatch;
  ColumnThread at = column_thread(plan, blockIdx.x);
  Moments<A> part[N] = {};
  x += at.sample * plan.s * plan.c + at.channel;
  const auto take = [&](auto is_full) {
    const auto is_row = [&](int k) { return is_full() || at.row + k * at.step < at.end; };
    Pack<T, N> in[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (is_row(k)) in[k] = load_pack<N>(x + (at.row + k * at.step) * plan.c);
    }
    const A count = is_full() ? A(kBatch) : static_cast<A>((at.end - at.row - 1) / at.step + 1);
    const A share = A(1) / count, before = part[0].count, of_total = count / (before + count);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      // About the first row, so that of equal rows the mean is their value.
      const A pivot = static_cast<A>(in[0][j]);
      A total = A(0), m2 = A(0);
#pragma unroll
      for (int k = 1; k < kBatch; ++k) total += is_row(k) ? static_cast<A>(in[k][j]) - pivot : A(0);
      const A mean = pivot + total * share;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const A d = is_row(k) ? static_cast<A>(in[k][j]) - mean : A(0);
        m2 += d * d;
      }
      const A delta = mean - part[j].mean;
      part[j].mean += delta * of_total;
      part[j].m2 += before > A(0) ? m2 + delta * delta * (before * of_total) : m2;
      part[j].count += count;
    }
  };
  for (; at.active && at.row < at.end; at.row += kBatch * at.step) {
    if (at.row + (kBatch - 1) * at.step < at.end) {
      take(std::true_type());
    } else {
      take(std::false_type());
    }
  }
  start_next_kernel();
  store_parts<N>(plan, at, part, parts, MergeMoments{});
}

// math    Σ dy and Σ dy·xhat of each channel over a chunk of the rows of a sample
// grid    a block per (sample, chunk, tile of channels)
// passes  1
// bytes   2Eb, and 2 numbers per chunk and channel
// smem    the sums of each thread's channels
// order   rows of a thread, then the threads of a column by halves: fixed by the shape
template <class T, int N>
__global__ void __launch_bounds__(GroupNormColumns::kThreads)
    group_norm_sums_columns(const T* x, const T* dy, const acc_t<T>* mean, const acc_t<T>* rstd,
                            const __grid_constant__ GroupNormColumns plan,
                            ChannelSums<acc_t<T>>* parts) {
  using A = acc_t<T>;
  constexpr int kBatch = 4;
  ColumnThread at = column_thread(plan, blockIdx.x);
  ChannelSums<A> part[N] = {};
  A mean_of[N] = {};
  const int64_t first = at.sample * plan.groups;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (at.active) mean_of[j] = mean[first + quotient(plan.by_channels, at.channel + j)];
  }
  const int64_t base = at.sample * plan.s * plan.c + at.channel;
  for (; at.active && at.row < at.end; at.row += kBatch * at.step) {
    Pack<T, N> x_in[kBatch], dy_in[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int64_t row = at.row + k * at.step;
      if (row < at.end) {
        x_in[k] = load_pack<N>(x + base + row * plan.c);
        dy_in[k] = load_pack<N>(dy + base + row * plan.c);
      }
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (at.row + k * at.step >= at.end) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A d = static_cast<A>(dy_in[k][j]);
        part[j].dy += d;
        part[j].dy_xhat += d * (static_cast<A>(x_in[k][j]) - mean_of[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (at.active) part[j].dy_xhat *= rstd[first + quotient(plan.by_channels, at.channel + j)];
  }
  start_next_kernel();
  store_parts<N>(plan, at, part, parts, AddChannelSums{});
}

// math    y = (x - mean)·rstd·gamma + beta
// grid    as the moments kernel, last block first: that has just left the rows in L2
//         kEvict: last where x does not fit L2 (bench/log_batch_norm.md, 4)
// bytes   2Eb, after a pass of Eb
// order   element-wise
template <class T, int N, Evict kEvict>
__global__ void __launch_bounds__(GroupNormColumns::kThreads)
    group_norm_forward_write_columns(const __grid_constant__ SlabForward<T> f,
                                     const __grid_constant__ GroupNormColumns plan) {
  using A = acc_t<T>;
  constexpr int kBatch = 4;
  const L2Policy<kEvict> policy;
  ColumnThread at = column_thread(plan, gridDim.x - 1 - blockIdx.x);
  if (!at.active) return;
  wait_for_previous_kernel();
  A mean[N], scale[N], beta[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int64_t c = at.channel + j;
    const int64_t set = at.sample * plan.groups + quotient(plan.by_channels, c);
    mean[j] = f.mean[set];
    scale[j] = f.rstd[set] * (f.gamma != nullptr ? f.gamma[c] : A(1));
    beta[j] = f.beta != nullptr ? f.beta[c] : A(0);
  }
  const int64_t base = at.sample * plan.s * plan.c + at.channel;
  for (; at.row < at.end; at.row += kBatch * at.step) {
    Pack<T, N> in[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int64_t row = at.row + k * at.step;
      if (row < at.end) in[k] = policy.template load_pack<N>(f.x + base + row * plan.c);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int64_t row = at.row + k * at.step;
      if (row >= at.end) break;
      A out[N];
#pragma unroll
      for (int j = 0; j < N; ++j)
        out[j] = norm_scaled(static_cast<A>(in[k][j]), mean[j], scale[j], beta[j]);
      store_pack(f.y + base + row * plan.c, round_pack<T, N>(out));
    }
  }
}

// math    dx = rstd·(d - m1 - xhat·m2), d = gamma·dy
// grid    as the sums kernel, last block first: that has just left the rows in L2
// bytes   3Eb, after a pass of 2Eb
// order   element-wise
template <class T, int N, Evict kEvict>
__global__ void __launch_bounds__(GroupNormColumns::kThreads)
    group_norm_backward_write_columns(const __grid_constant__ SlabBackward<T> b,
                                      const ChannelSums<acc_t<T>>* terms,
                                      const __grid_constant__ GroupNormColumns plan) {
  using A = acc_t<T>;
  constexpr int kBatch = 4;
  const L2Policy<kEvict> policy;
  ColumnThread at = column_thread(plan, gridDim.x - 1 - blockIdx.x);
  if (!at.active) return;
  wait_for_previous_kernel();
  NormGradient<A> gradient[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int64_t c = at.channel + j;
    const int64_t set = at.sample * plan.groups + quotient(plan.by_channels, c);
    const A rstd = b.rstd[set];
    const A scale = rstd * (b.gamma != nullptr ? b.gamma[c] : A(1));
    gradient[j] = {b.mean[set], scale, rstd * terms[set].dy, rstd * terms[set].dy_xhat * rstd};
  }
  const int64_t base = at.sample * plan.s * plan.c + at.channel;
  for (; at.row < at.end; at.row += kBatch * at.step) {
    Pack<T, N> x[kBatch], dy[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int64_t row = at.row + k * at.step;
      if (row < at.end) {
        x[k] = policy.template load_pack<N>(b.x + base + row * plan.c);
        dy[k] = policy.template load_pack<N>(b.dy + base + row * plan.c);
      }
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int64_t row = at.row + k * at.step;
      if (row >= at.end) break;
      A out[N];
#pragma unroll
      for (int j = 0; j < N; ++j)
        out[j] = gradient[j](static_cast<A>(x[k][j]), static_cast<A>(dy[k][j]));
      store_pack(b.dx + base + row * plan.c, round_pack<T, N>(out));
    }
  }
}

template <class T, int N>
void forward(Cuda& cuda, const GroupNormForward& args, const GroupNormGeometry& g) {
  using A = acc_t<T>;
  const GroupNormColumns plan = plan_group_norm_columns(g, N);
  const PartsOfSets of(g.n, g.g, g.channels(), plan.chunks);
  Moments<A>* parts =
      static_cast<Moments<A>*>(cuda.workspace(static_cast<size_t>(of.numel()) * sizeof(*parts)));
  const LaunchShape shape{.grid = exact_blocks(plan.blocks(), "group_norm"),
                          .threads = GroupNormColumns::kThreads,
                          .shared_bytes = GroupNormColumns::kThreads * N * sizeof(*parts)};
  launch_kernel(cuda, shape, group_norm_moments_columns<T, N>, args.x.as<T>(), plan, parts);
  finish_moments(cuda, args, of, parts);
  const LaunchShape write{.grid = shape.grid, .threads = shape.threads};
  with_eviction<N * sizeof(T)>(cuda, args.x.nbytes(), [&](auto evict) {
    launch_overlapping(cuda, write, group_norm_forward_write_columns<T, N, evict()>,
                       slab_forward<T>(args), plan);
  });
}

template <class T, int N>
void backward(Cuda& cuda, const GroupNormBackward& args, const GroupNormGeometry& g) {
  using A = acc_t<T>;
  const GroupNormColumns plan = plan_group_norm_columns(g, N);
  const PartsOfSets of(g.n, g.g, g.channels(), plan.chunks);
  const BackwardWorkspace<A> space(cuda, args, of);
  const LaunchShape shape{.grid = exact_blocks(plan.blocks(), "group_norm"),
                          .threads = GroupNormColumns::kThreads,
                          .shared_bytes = GroupNormColumns::kThreads * N * sizeof(*space.parts)};
  launch_kernel(cuda, shape, group_norm_sums_columns<T, N>, args.x.as<T>(), args.dy.as<T>(),
                args.mean.as<A>(), args.rstd.as<A>(), plan, space.parts);
  if (args.dx) {
    finish_sums(cuda, args, of, g.m(), space);
    const LaunchShape write{.grid = shape.grid, .threads = shape.threads};
    with_eviction<N * sizeof(T)>(cuda, 2 * args.x.nbytes(), [&](auto evict) {
      launch_overlapping(cuda, write, group_norm_backward_write_columns<T, N, evict()>,
                         slab_backward<T>(args), space.terms, plan);
    });
  }
  sum_samples(cuda, args, g.c, false, space);
}

// Calls f(the widest pack) that c and the pointers allow.
template <class T, class F>
void with_width(const GroupNormGeometry& g, std::initializer_list<const void*> pointers, F&& f) {
  if (pack_width(sizeof(T), pointers, {g.c}) == kFullPack<T>) {
    f(std::integral_constant<int, kFullPack<T>>());
  } else {
    f(std::integral_constant<int, 1>());
  }
}

}  // namespace

namespace detail {

void group_norm_columns_forward(Cuda& cuda, const GroupNormForward& args,
                                const GroupNormGeometry& g) {
  if (group_norm_held_forward(cuda, args, g)) return;
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    with_width<T>(g, {args.x.data, args.y.data},
                  [&](auto width) { forward<T, width()>(cuda, args, g); });
  });
}

void group_norm_columns_backward(Cuda& cuda, const GroupNormBackward& args,
                                 const GroupNormGeometry& g) {
  if (group_norm_held_backward(cuda, args, g)) return;
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    with_width<T>(g, {args.x.data, args.dy.data, args.dx.data},
                  [&](auto width) { backward<T, width()>(cuda, args, g); });
  });
}

}  // namespace detail
}  // namespace gradus
