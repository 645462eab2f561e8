// Batch normalization of channels-last tensors on CUDA. A thread holds a pack of neighbouring
// channels, whose sums stay in registers while it walks the rows.
#pragma once

#include "cuda/batch_norm_finish.cuh"
#include "cuda/batch_norm_plan.h"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// The thread's place: its first channel, and its row within a group of rows.
template <int N>
struct BatchNormPlace {
  int lane, row;
  int64_t c;
  __device__ __forceinline__ BatchNormPlace(const BatchNormColumns& plan, int64_t channel_block)
      : lane(static_cast<int>(threadIdx.x) % plan.lanes),
        row(static_cast<int>(threadIdx.x) / plan.lanes),
        c((channel_block * plan.lanes + lane) * N) {}
};

// Rows that a thread loads together to sum them; fewer where it may store as well.
template <class Of>
inline constexpr int kSumRows = kColumnSums / Of::kInputs / (Of::kEvaluates ? 2 : 1);

// math    parts[chunk, c] = moments or sums of every chunks-th group of rows, N channels a thread
// grid    blocks (channels, chunks)
// passes  1
// bytes   each input once; where the backward pass of evaluation writes dx, dx once
// smem    one part per thread and channel
// order   a thread's rows, then the threads of a column folded by halves: fixed by the plan
template <class Of, int N>
__global__ void __launch_bounds__(kBatchNormThreads, kColumnBlocks)
    batch_norm_parts_thread_per_column(const Of of, const BatchNormColumns plan,
                                       typename Of::Part* parts, int64_t* batches) {
  using Part = typename Of::Part;
  constexpr int U = kSumRows<Of>;
  extern __shared__ __align__(16) unsigned char batch_norm_shared[];
  Part* of_thread = reinterpret_cast<Part*>(batch_norm_shared);
  wait_for_previous_kernel();
  start_next_kernel();
  if (batches != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) ++*batches;
  const BatchNormPlace<N> place(plan, blockIdx.x);
  const bool used = place.c < plan.c;
  typename Of::template Columns<N> columns(of, used ? place.c : 0);
  const int64_t rows = used ? plan.m : 0;
  for (int64_t row = blockIdx.y * plan.group + place.row; row < rows;
       row += plan.chunks * plan.group) {
    if (row + (U - 1) * plan.rows < rows) {
      typename Of::template Item<N> items[U];
#pragma unroll
      for (int u = 0; u < U; ++u)
        items[u] = of.template load<N>((row + u * plan.rows) * plan.c + place.c);
      columns.take(items);
#pragma unroll
      for (int u = 0; u < U; ++u)
        of.write((row + u * plan.rows) * plan.c + place.c, items[u], columns);
    } else {
      for (int64_t last = row; last < rows; last += plan.rows) {
        typename Of::template Item<N> items[1] = {of.template load<N>(last * plan.c + place.c)};
        columns.take(items);
        of.write(last * plan.c + place.c, items[0], columns);
      }
    }
  }
  Part part[N];
#pragma unroll
  for (int j = 0; j < N; ++j) part[j] = columns.part(j);
  for (int width = plan.rows; width > 1; width /= 2) {
    if (place.row < width && place.row >= width / 2) {
#pragma unroll
      for (int j = 0; j < N; ++j) of_thread[j * kBatchNormThreads + threadIdx.x] = part[j];
    }
    __syncthreads();
    if (place.row < width / 2) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        part[j] =
            merge(part[j], of_thread[j * kBatchNormThreads + threadIdx.x + width / 2 * plan.lanes]);
      }
    }
  }
  if (place.row != 0 || !used) return;
#pragma unroll
  for (int j = 0; j < N; ++j) parts[blockIdx.y * plan.c + place.c + j] = part[j];
}

// math    the chunks' parts of each channel merged, then finish(c, part)
// grid    one block per kFinishLanes channels; threads (channels, chunks)
// smem    one part per thread
// order   a thread's chunks, then the threads of a channel folded by halves: fixed by the plan
template <class Part, class Finish>
__global__ void __launch_bounds__(kFinishThreads)
    batch_norm_finish_columns(int64_t c_count, int64_t chunks, const Part* parts,
                              const Finish finish) {
  constexpr int kDown = kFinishThreads / kFinishLanes;
  __shared__ __align__(16) unsigned char bytes[kFinishThreads * sizeof(Part)];
  Part* of_thread = reinterpret_cast<Part*>(bytes);
  const int lane = threadIdx.x % kFinishLanes, down = threadIdx.x / kFinishLanes;
  const int64_t c = int64_t{blockIdx.x} * kFinishLanes + lane;
  const bool finishes = down == 0 && c < c_count;
  start_next_kernel();  // which loads x before it waits
  wait_for_previous_kernel();
  typename Finish::Channel of_c{};
  if (finishes) of_c = finish.channel(c, true);
  Part part{};
  if (c < c_count) {
#pragma unroll 4
    for (int64_t chunk = down; chunk < chunks; chunk += kDown)
      part = merge(part, parts[chunk * c_count + c]);
  }
  for (int width = kDown; width > 1; width /= 2) {
    if (down < width && down >= width / 2) of_thread[threadIdx.x] = part;
    __syncthreads();
    if (down < width / 2) part = merge(part, of_thread[threadIdx.x + width / 2 * kFinishLanes]);
  }
  if (finishes) finish.finish(c, of_c, part, true);
}

// What of_channel() says of each of the thread's N channels, asked once per block and channel. All
// threads of the block call.
template <int N, class Terms, class OfChannel>
__device__ __forceinline__ void share_terms(const BatchNormColumns& plan,
                                            const BatchNormPlace<N>& place, Terms (&terms)[N],
                                            const OfChannel& of_channel) {
  using A = decltype(Terms::mean);
  constexpr int kFields = sizeof(Terms) / sizeof(A);
  static_assert(sizeof(Terms) == kFields * sizeof(A) && kColumnLanes * N <= kBatchNormThreads);
  __shared__ __align__(16) A fields[kFields][kColumnLanes * N];
  const int mine = static_cast<int>(threadIdx.x), channels = plan.lanes * N;
  const int64_t c = place.c - place.lane * N + mine;
  if (mine < channels && c < plan.c) {
    const Terms term = of_channel(c);
    A values[kFields];
    memcpy(values, &term, sizeof term);
#pragma unroll
    for (int f = 0; f < kFields; ++f) fields[f][mine] = values[f];
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < N; ++j) {
    A values[kFields];
#pragma unroll
    for (int f = 0; f < kFields; ++f) values[f] = fields[f][place.lane * N + j];
    memcpy(&terms[j], values, sizeof values);
  }
}

// Where a block that writes is: groups from the last to the first, since the first stage has just
// left the last ones in L2, and in each group the channels.
template <int N>
struct BatchNormWritePlace {
  int64_t group;
  BatchNormPlace<N> in_group;
  int64_t row;  // the thread's first; the others are plan.rows apart
  __device__ __forceinline__ explicit BatchNormWritePlace(const BatchNormColumns& plan)
      : group(plan.groups - 1 - blockIdx.x / static_cast<uint32_t>(plan.channel_blocks)),
        in_group(plan, blockIdx.x % static_cast<uint32_t>(plan.channel_blocks)),
        row(group * plan.group + in_group.row) {}
  __device__ __forceinline__ bool has(const BatchNormColumns& plan, int u) const {
    return in_group.c < plan.c && row + u * plan.rows < plan.m;
  }
  __device__ __forceinline__ int64_t at(const BatchNormColumns& plan, int u) const {
    return (row + u * plan.rows) * plan.c + in_group.c;
  }
};

// math    y = (x - mean)·rstd·gamma + beta
// grid    a block per group of rows and channels
// passes  1 moments (x read), 2 finish (per channel), 3 this one (x read, y written); evaluation:
//         this one alone. x is on its way while the first two end: whoever wrote it has ended,
//         since they and this one start only after every block of the first has waited.
//         Loads are given up last where x does not fit L2 (bench/log_batch_norm.md).
// smem    the terms of the block's channels
// bytes   fewest 2Eb; 3Eb in training when x does not fit L2
// order   element-wise
template <class T, int N, bool kTraining, Evict kEvict>
__global__ void __launch_bounds__(kBatchNormThreads, 4)
    batch_norm_forward_write_columns(const T* x, T* __restrict__ y, const BatchNormColumns plan,
                                     const ForwardFinish<T> f, bool streams) {
  using A = acc_t<T>;
  constexpr int U = kColumnWrites;
  const BatchNormWritePlace<N> place(plan);
  const L2Policy<kEvict> policy;
  if constexpr (!kTraining) wait_for_previous_kernel();  // it may have written x
  Raw<T, N> in[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (place.has(plan, u)) policy.load(in[u], x + place.at(plan, u));
  }
  if constexpr (kTraining) wait_for_previous_kernel();
  BatchNormForwardTerms<A> terms[N];
  share_terms(plan, place.in_group, terms, [&](int64_t c) {
    return kTraining ? f.transform(c, f.mean[c], f.rstd[c]) : f.use_running(c, place.group == 0);
  });
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (!place.has(plan, u)) continue;
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j)
      out[j] = (in[u][j] - terms[j].mean) * terms[j].scale + terms[j].shift;
    store_result(y + place.at(plan, u), round_raw<T, N>(out), streams);
  }
}

// math    dx = gamma·rstd·(dy - m1 - (x - mean)·m2r); evaluation: dx = gamma·rstd·dy, x not read
// grid    as forward
// passes  1 sums (x, dy read), 2 finish (per channel), 3 this one (x, dy read, dx written), whose
//         loads begin as in the forward pass
// smem    the terms of the block's channels
// bytes   fewest 3Eb; 5Eb when x and dy do not fit L2; evaluation 2Eb
// order   element-wise
template <class T, int N, bool kTraining, Evict kEvict>
__global__ void __launch_bounds__(kBatchNormThreads, 4)
    batch_norm_backward_write_columns(const T* x, const T* dy, T* __restrict__ dx,
                                      const BatchNormColumns plan, const BackwardFinish<acc_t<T>> f,
                                      bool streams) {
  using A = acc_t<T>;
  constexpr int U = kColumnWrites / 2;
  const BatchNormWritePlace<N> place(plan);
  const L2Policy<kEvict> policy;
  Raw<T, N> x_in[U], dy_in[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (!place.has(plan, u)) continue;
    if constexpr (kTraining) policy.load(x_in[u], x + place.at(plan, u));
    policy.load(dy_in[u], dy + place.at(plan, u));
  }
  wait_for_previous_kernel();
  BatchNormBackwardTerms<A> terms[N];
  share_terms(plan, place.in_group, terms, [&](int64_t c) {
    using Terms = BatchNormBackwardTerms<A>;
    return kTraining ? Terms{f.mean[c], f.scale(c), f.m1[c], f.m2r[c]}
                     : Terms{A(0), f.scale(c), A(0), A(0)};
  });
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (!place.has(plan, u)) continue;
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      A direct = dy_in[u][j];
      if constexpr (kTraining) direct -= terms[j].m1 + (x_in[u][j] - terms[j].mean) * terms[j].m2r;
      out[j] = terms[j].scale * direct;
    }
    store_result(dx + place.at(plan, u), round_raw<T, N>(out), streams);
  }
}

}  // namespace gradus
