// The backward pass of the row norms for rows that no block can hold, and the choice between the
// two ways.
#pragma once

#include "cuda/row_norm_backward.cuh"

namespace gradus {

// Σ d and Σ d·xhat of a row or of a chunk, d = dy·gamma.
template <class A>
struct RowNormSums {
  A d, d_xhat;
};

// math   Σ d and Σ d·xhat of a chunk
// grid   one block per chunk of a row
// bytes  2Eb
// order  a thread's values, then pairwise
template <class T, int N, bool kMean>
__global__ void __launch_bounds__(SplitRowsPlan::kThreads)
    row_norm_chunk_sums(const RowNormBackward<T> f, const SplitRowsPlan plan,
                        RowNormSums<acc_t<T>>* parts) {
  using A = acc_t<T>;
  const int64_t row = blockIdx.x / plan.chunks, chunk = blockIdx.x - row * plan.chunks;
  const int64_t begin = chunk * SplitRowsPlan::kChunk;
  const int64_t end = min(begin + SplitRowsPlan::kChunk, f.m);
  const A mean = kMean ? f.mean[row] : A(0), rstd = f.rstd[row];
  A sum = A(0), product = A(0);
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x * N; i < end; i += SplitRowsPlan::kThreads * N) {
    A x[N], d[N], gamma[N];
    load_values<N>(x, f.x + row * f.m + i);
    load_values<N>(d, f.dy + row * f.m + i);
    load_parameter<N, 1>(gamma, f.gamma != nullptr ? f.gamma + i : nullptr, A(1), 0, 1, 1);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      d[j] *= gamma[j];
      sum += d[j];
      product += d[j] * norm_xhat(x[j], mean, rstd);
    }
  }
  sum = block_sum(sum);
  product = block_sum(product);
  if (threadIdx.x == 0) parts[blockIdx.x] = {sum, product};
}

// math   m1 and m2 of a row: the means of its d and of its d·xhat
// grid   one block per row
// order  a thread's chunks in turn, then pairwise
template <class A>
__global__ void __launch_bounds__(SplitRowsPlan::kThreads)
    row_norm_merge_sums(const RowNormSums<A>* parts, int64_t chunks, int64_t m,
                        RowNormSums<A>* means) {
  const int64_t row = blockIdx.x;
  A sum = A(0), product = A(0);
  for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += SplitRowsPlan::kThreads) {
    sum += parts[row * chunks + chunk].d;
    product += parts[row * chunks + chunk].d_xhat;
  }
  sum = block_sum(sum);
  product = block_sum(product);
  if (threadIdx.x == 0) means[row] = {sum / static_cast<A>(m), product / static_cast<A>(m)};
}

// math   dx = rstd·(d - m1 - xhat·m2); dgamma += dy·xhat, dbeta += dy over a run of rows
// grid   tiles of 256 packs of columns fastest, then runs of rows; a thread owns the columns of a
//        pack
// bytes  3Eb; 5Eb with the sums, which leave x and dy in L2 while they are few
// order  rows in turn
template <class T, int N, bool kMean>
__global__ void __launch_bounds__(SplitRowsPlan::kThreads)
    row_norm_backward_columns(const RowNormBackward<T> f, const SplitRowsPlan plan,
                              const RowNormSums<acc_t<T>>* means) {
  using A = acc_t<T>;
  const int64_t run = blockIdx.x / plan.tiles, tile = blockIdx.x - run * plan.tiles;
  const int64_t i = (tile * SplitRowsPlan::kThreads + threadIdx.x) * N;
  if (i >= f.m) return;
  const int64_t end = min((run + 1) * plan.rows_per_run, f.rows);
  A gamma[N], dgamma[N] = {}, dbeta[N] = {};
  load_parameter<N, 1>(gamma, f.gamma != nullptr ? f.gamma + i : nullptr, A(1), 0, 1, 1);
#pragma unroll 4
  for (int64_t row = run * plan.rows_per_run; row < end; ++row) {
    A x[N], dy[N];
    load_values<N>(x, f.x + row * f.m + i);
    load_values<N>(dy, f.dy + row * f.m + i);
    const A mean = kMean ? f.mean[row] : A(0), rstd = f.rstd[row];
    A m1 = A(0), m2 = A(0);
    if (f.dx != nullptr) m1 = kMean ? means[row].d : A(0), m2 = means[row].d_xhat;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A xhat = norm_xhat(x[j], mean, rstd);
      dgamma[j] += dy[j] * xhat;
      dbeta[j] += dy[j];
      x[j] = norm_dx(dy[j] * gamma[j], xhat, rstd, m1, m2);
    }
    if (f.dx != nullptr) store_rounded(f.dx + row * f.m + i, x);
  }
  if (f.parts != nullptr) write_part<N, kMean>(f, run, i, dgamma, dbeta);
}

template <class T, int N, bool kMean>
void launch_split_backward(Cuda& cuda, RowNormBackward<T> f) {
  using A = acc_t<T>;
  using Sums = RowNormSums<A>;
  const SplitRowsPlan plan = plan_split_rows(f.rows, f.m, N);
  int64_t sums = f.dx != nullptr ? f.rows * (plan.chunks + 1) : 0;
  sums = ceil_div(sums, 2) * 2;  // what follows is aligned to 16 bytes
  const bool wants_parts = f.dgamma != nullptr || f.dbeta != nullptr;
  const int64_t values = wants_parts ? plan.runs * kRowNormPlanes<kMean> * f.m : 0;
  const size_t bytes =
      static_cast<size_t>(sums) * sizeof(Sums) + static_cast<size_t>(values) * sizeof(A);
  auto* chunk_sums = static_cast<Sums*>(cuda.workspace(bytes));
  Sums* means = chunk_sums + (f.dx != nullptr ? f.rows * plan.chunks : 0);
  if (wants_parts) f.parts = reinterpret_cast<A*>(chunk_sums + sums);
  constexpr int kThreads = SplitRowsPlan::kThreads;
  if (f.dx != nullptr) {
    row_norm_chunk_sums<T, N, kMean>
        <<<exact_blocks(f.rows * plan.chunks, "row_norm"), kThreads, 0, cuda.stream()>>>(
            f, plan, chunk_sums);
    row_norm_merge_sums<A><<<exact_blocks(f.rows, "row_norm"), kThreads, 0, cuda.stream()>>>(
        chunk_sums, plan.chunks, f.m, means);
  }
  row_norm_backward_columns<T, N, kMean>
      <<<exact_blocks(plan.tiles * plan.runs, "row_norm"), kThreads, 0, cuda.stream()>>>(f, plan,
                                                                                         means);
  launch_sum_parts<kMean>(cuda, f, plan.runs);
}

template <class T, int N, bool kMean>
void launch_backward(Cuda& cuda, RowNormBackward<T> f) {
  using A = acc_t<T>;
  const RowNormCard card = row_norm_card(cuda.info().compute_major, cuda.info().compute_minor,
                                         cuda.has_hopper_features());
  const RowNormPlan plan = plan_row_norm_backward(f.rows, f.m, sizeof(T), N, card);
  if (plan.group == RowGroup::split) return launch_split_backward<T, N, kMean>(cuda, f);
  if (f.dgamma != nullptr || f.dbeta != nullptr) {
    const int64_t values = plan.runs * kRowNormPlanes<kMean> * f.m;
    f.parts = static_cast<A*>(cuda.workspace(static_cast<size_t>(values) * sizeof(A)));
  }
  constexpr int kMost = detail::most_packs(sizeof(T), N);
  if (plan.group == RowGroup::blocks) {
    launch_row_norm(cuda, plan, row_norm_backward_row_in_cluster<T, N, kMost, kMean>, f, plan);
  } else if (plan.threads() == detail::kRowWideThreads) {
    if constexpr (detail::is_wide_row(64, sizeof(T), N)) {
      launch_row_norm(
          cuda, plan,
          row_norm_backward_row_in_registers<T, N, kMost / 2, RowGroup::warps, kMean,
                                             detail::kRowFewStages, detail::kRowWideThreads>,
          f, plan);
    }
  } else {
    constexpr int kFew = detail::kRowFewStages;
    with_row_kernel<T, N, 2>(plan, [&](auto packs, auto group) {
      launch_row_norm(cuda, plan,
                      plan.stages == kFew
                          ? row_norm_backward_row_in_registers<T, N, packs(), group(), kMean, kFew>
                          : row_norm_backward_row_in_registers<T, N, packs(), group(), kMean,
                                                               detail::row_stages(packs())>,
                      f, plan);
    });
  }
  launch_sum_parts<kMean>(cuda, f, plan.runs);
}

// dx, dgamma and dbeta of rows, with the widest access that tensors and parameters allow.
template <bool kMean, class T>
void run_backward(Cuda& cuda, const RowNormBackward<T>& f) {
  using A = acc_t<T>;
  if (f.m == 0) return;
  if (f.rows == 0) {
    A* const gradients[] = {f.dgamma, f.dbeta};
    for (A* gradient : gradients) {
      if (gradient == nullptr) continue;
      cuda_check(cudaMemsetAsync(gradient, 0, static_cast<size_t>(f.m) * sizeof(A), cuda.stream()),
                 "row_norm");
    }
    return;
  }
  with_row_width<T>(f.m, {f.x, f.dy, f.dx}, {f.gamma},
                    [&](auto width) { launch_backward<T, width(), kMean>(cuda, f); });
}

}  // namespace gradus
