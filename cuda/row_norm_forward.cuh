// Layer and RMS normalization forward on CUDA over the rows of x [rows, m], with a mean (kMean) or
// without.
#pragma once

#include "cuda/fits_l2.h"
#include "cuda/row_norm_forward_rows.cuh"

namespace gradus {

// The moments of what a warp's threads hold of `count` packs of a row, in two passes. Where a sum
// of so many rounds, what is left of it corrects the mean.
template <int N, bool kMean, class T>
__device__ __forceinline__ Moments<acc_t<T>> held_row_moments(const T* held, int count) {
  using A = acc_t<T>;
  constexpr int kThreads = detail::kRowNormThreads;
  constexpr bool kCorrects = kMean && sizeof(T) > 2;
  A sum = A(0), square = A(0), residual = A(0), x[N];
  int own = 0;
  for (int i = threadIdx.x; i < count; i += kThreads, ++own) {
    if constexpr (!kMean) continue;
    load_values<N>(x, held + i * N);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += x[j];
  }
  const A values = warp_sum(static_cast<A>(own * N));
  sum = warp_sum(sum);
  const A mean = values > A(0) ? sum / values : A(0), share = values > A(0) ? A(1) / values : A(0);
  for (int i = threadIdx.x; i < count; i += kThreads) {
    load_values<N>(x, held + i * N);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A d = x[j] - mean;
      if constexpr (kCorrects) residual += d;
      square += d * d;
    }
  }
  square = warp_sum(square);
  if constexpr (kCorrects) return correct_moments(values, share, mean, square, warp_sum(residual));
  return {values, mean, square};
}

// What a block holds of rows: `count` packs of each, from pack `begin` on.
template <class T, int N>
struct HeldRows {
  T* at;
  int64_t first_row, begin;
  int pitch, rows, count;

  __device__ __forceinline__ T* place(int row, int i) const { return at + (row * pitch + i) * N; }
};

// gamma and beta of a thread's next pack: on their way while it waits for the others or writes.
template <class T, int N, bool kMean>
struct NextParameters {
  acc_t<T> gamma[N], beta[N] = {};

  __device__ __forceinline__ void load(const RowNormForward<T>& f, const HeldRows<T, N>& held,
                                       int i) {
    if (i < held.count) load_parameters<N, kMean>(f, (held.begin + i) * N, gamma, beta);
  }
};

// y of what a block holds.
template <int kRows, class T, int N, bool kMean>
__device__ __forceinline__ void write_held_rows(const RowNormForward<T>& f,
                                                const HeldRows<T, N>& held,
                                                NextParameters<T, N, kMean>& next,
                                                const acc_t<T> (&mean)[kRows],
                                                const acc_t<T> (&rstd)[kRows]) {
  constexpr int kThreads = detail::kRowNormThreads;
#pragma unroll 2
  for (int i = threadIdx.x; i < held.count; i += kThreads) {
    Raw<T, N> packs[kRows];
    acc_t<T> gamma[N], beta[N], in[N];
#pragma unroll
    for (int r = 0; r < kRows; ++r) packs[r] = load_raw<N>(held.place(r, i));
#pragma unroll
    for (int j = 0; j < N; ++j) gamma[j] = next.gamma[j], beta[j] = next.beta[j];
    next.load(f, held, i + kThreads);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= held.rows) break;
      packs[r].unpack(in);
      write_y<N, kMean>(f, held.first_row + r, (held.begin + i) * N, in, mean[r], rstd[r], gamma,
                        beta);
    }
  }
}

// math   as above
// grid   a cluster of blocks per kRows neighbouring rows; each block has a piece of `packs` packs
//        of all of them
// passes 1 over x in DRAM, 3 over it in shared memory
// bytes  fewest 2Eb = actual, beside gamma and beta once per cluster, from L2
// smem   the pieces: each thread reads only what it copied itself
// order  a thread's packs in turn, lanes pairwise, then warps and blocks by Chan's formula: fixed
//        by the plan
template <class T, int N, int kRows, bool kMean>
__global__ void __launch_bounds__(detail::kRowNormThreads, 3)
    row_norm_forward_rows_in_cluster(const RowNormForward<T> f, const RowNormPlan plan) {
  using A = acc_t<T>;
  constexpr int kThreads = detail::kRowNormThreads, kWarps = kThreads / kWarp;
  __shared__ detail::SharedSlots<Moments<A>> of_warp;  // [row, warp]
  __shared__ ClusterMail<A, 3> mail[kRows];            // the moments of each block
  __shared__ A mean_of[kRows], rstd_of[kRows];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int rank = static_cast<int>(blockIdx.x) & (plan.cluster - 1);
  const int64_t first_row = blockIdx.x / plan.cluster * int64_t{kRows};
  const int rows = static_cast<int>(min(int64_t{kRows}, f.rows - first_row));
  const int64_t begin = int64_t{rank} * plan.packs;
  const int count = static_cast<int>(max(int64_t{0}, min(int64_t{plan.packs}, f.m / N - begin)));
  const T* const x = f.x + first_row * f.m + begin * N;
  const HeldRows<T, N> held{
      reinterpret_cast<T*>(dynamic_shared()), first_row, begin, plan.packs, rows, count};
  if (plan.cluster > 1) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) mail[r].prepare();
    cluster_meet();
  }
  wait_for_previous_kernel();
  start_next_kernel();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    for (int i = thread; r < rows && i < count; i += kThreads)
      start_copy<N>(held.place(r, i), x + r * f.m + i * N);
    commit_copies();
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    wait_copies_but(kRows - 1 - r);
    if (r >= rows) continue;
    const Moments<A> moments = held_row_moments<N, kMean>(held.place(r, 0), count);
    if (lane == 0) of_warp.get()[r * kWarps + warp] = moments;
  }
  NextParameters<T, N, kMean> next;
  next.load(f, held, thread);
  __syncthreads();
  if (warp < rows) {
    Moments<A> moments = merge_lanes<kWarps>(of_warp.get()[warp * kWarps + lane % kWarps]);
    if (plan.cluster > 1) {
      const A own[3] = {moments.count, moments.mean, moments.m2};
      mail[warp].send(0, own, plan.cluster, lane);
      mail[warp].wait(0, 0);
      const auto& of = mail[warp].of[0];
      moments = {};
      if (lane < plan.cluster) moments = {of[0][lane], of[1][lane], of[2][lane]};
      moments = merge_lanes<kMaxCluster>(moments);
    }
    if (lane == 0) {
      const A var = moments.m2 / moments.count, rstd = A(1) / sqrt(var + f.eps);
      mean_of[warp] = kMean ? moments.mean : A(0);
      rstd_of[warp] = rstd;
      if (rank == 0) {
        if constexpr (kMean) f.mean[first_row + warp] = norm_saved_mean(moments.mean, var);
        f.rstd[first_row + warp] = rstd;
      }
    }
  }
  __syncthreads();
  write_held_rows(f, held, next, mean_of, rstd_of);
}

// math   y = (x - mean)·rstd·gamma + beta, with the statistics of merge_moments
// grid   one block per chunk of a row
// bytes  2Eb; 3Eb with the first pass, whose rows are in L2 still while they are few and short
// order  element-wise
template <class T, int N, bool kMean>
__global__ void __launch_bounds__(SplitRowsPlan::kThreads)
    row_norm_forward_write_chunk(const RowNormForward<T> f, const SplitRowsPlan plan) {
  using A = acc_t<T>;
  const int64_t row = blockIdx.x / plan.chunks, chunk = blockIdx.x - row * plan.chunks;
  const int64_t begin = chunk * SplitRowsPlan::kChunk;
  const int64_t end = min(begin + SplitRowsPlan::kChunk, f.m);
  const A mean = kMean ? f.mean[row] : A(0), rstd = f.rstd[row];
  for (int64_t i = begin + threadIdx.x * N; i < end; i += SplitRowsPlan::kThreads * N) {
    A x[N], gamma[N], beta[N];
    load_values<N>(x, f.x + row * f.m + i);
    load_parameters<N, kMean>(f, i, gamma, beta);
    write_y<N, kMean>(f, row, i, x, mean, rstd, gamma, beta);
  }
}

template <class T, int N, bool kMean>
void launch_split_forward(Cuda& cuda, const RowNormForward<T>& f) {
  using A = acc_t<T>;
  const SplitRowsPlan plan = plan_split_rows(f.rows, f.m, N);
  const auto bytes = static_cast<size_t>(f.rows * plan.chunks) * sizeof(Moments<A>);
  auto* parts = static_cast<Moments<A>*>(cuda.workspace(bytes));
  const unsigned blocks = exact_blocks(f.rows * plan.chunks, "row_norm");
  constexpr int kThreads = SplitRowsPlan::kThreads;
  row_norm_chunk_moments<T, N, kMean>
      <<<blocks, kThreads, 0, cuda.stream()>>>(f.x, f.m, plan, parts);
  row_norm_merge_moments<A><<<exact_blocks(f.rows, "row_norm"), kThreads, 0, cuda.stream()>>>(
      parts, plan.chunks, f.mean, f.rstd, f.eps);
  row_norm_forward_write_chunk<T, N, kMean><<<blocks, kThreads, 0, cuda.stream()>>>(f, plan);
}

template <class T, int N, bool kMean>
void launch_straight(Cuda& cuda, const RowNormForward<T>& f, const RowNormPlan& plan) {
  using std::integral_constant;
  const bool whole = plan.whole && f.gamma != nullptr && (!kMean || f.beta != nullptr);
  const bool large = !fits_l2(cuda, f.rows * f.m * int64_t{sizeof(T)});
  const auto launch = [&](auto packs, auto lanes) {
    constexpr int K = packs(), kRows = detail::straight_rows(sizeof(T), K);
    const auto launch_kernel_of = [&](auto is_whole, auto is_large) {
      launch_row_norm(
          cuda, plan,
          row_norm_forward_rows_straight<T, N, K, kRows, kMean, lanes(), is_whole(), is_large()>,
          f);
    };
    const auto launch_by_size = [&](auto is_whole) {
      large ? launch_kernel_of(is_whole, std::true_type())
            : launch_kernel_of(is_whole, std::false_type());
    };
    if constexpr (detail::has_whole_kernel(sizeof(T))) {
      if (whole) return launch_by_size(std::true_type());
    }
    launch_by_size(std::false_type());
  };
  if constexpr (sizeof(T) == 4) {
    constexpr integral_constant<int, 4> kPacks;
    if (plan.packs == 2) return launch(integral_constant<int, 2>(), integral_constant<int, 512>());
    if (plan.lanes == 128) return launch(kPacks, integral_constant<int, 128>());
    launch(kPacks, integral_constant<int, 64>());
  } else {
    constexpr integral_constant<int, 2> kPacks;
    if (plan.packs == 1) return launch(integral_constant<int, 1>(), integral_constant<int, 128>());
    if (plan.lanes == 128) return launch(kPacks, integral_constant<int, 128>());
    launch(kPacks, integral_constant<int, 256>());
  }
}

template <class T, int N, bool kMean>
void launch_forward(Cuda& cuda, const RowNormForward<T>& f) {
  const RowNormCard card = row_norm_card(cuda.info().compute_major, cuda.info().compute_minor,
                                         cuda.has_hopper_features());
  const RowNormPlan plan = plan_row_norm_forward(f.rows, f.m, sizeof(T), N, card);
  if (plan.group == RowGroup::split) return launch_split_forward<T, N, kMean>(cuda, f);
  if (plan.group == RowGroup::cluster) {
    constexpr int kMost = detail::most_rows(sizeof(T));
    return launch_row_norm(cuda, plan,
                           plan.slots == kMost
                               ? row_norm_forward_rows_in_cluster<T, N, kMost, kMean>
                               : row_norm_forward_rows_in_cluster<T, N, 1, kMean>,
                           f, plan);
  }
  if constexpr (sizeof(T) <= 4 && N > 1) {
    if (plan.straight) return launch_straight<T, N, kMean>(cuda, f, plan);
  }
  with_row_kernel<T, N, 1>(plan, [&](auto packs, auto group) {
    constexpr int kAll = group() == RowGroup::warps && N > 1 ? detail::kRowNormThreads : 0;
    launch_row_norm(cuda, plan,
                    plan.lanes == kAll
                        ? row_norm_forward_row_in_registers<T, N, packs(), group(), kMean, kAll>
                        : row_norm_forward_row_in_registers<T, N, packs(), group(), kMean, 0>,
                    f, plan);
  });
}

// y, mean and rstd of rows, with the widest access that x, y and the parameters allow.
template <bool kMean, class T>
void run_forward(Cuda& cuda, const RowNormForward<T>& f) {
  if (f.rows == 0 || f.m == 0) return;
  with_row_width<T>(f.m, {f.x, f.y}, {f.gamma, f.beta},
                    [&](auto width) { launch_forward<T, width(), kMean>(cuda, f); });
}

}  // namespace gradus
