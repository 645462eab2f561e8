#include "core/ops/adam.h"

#include "cuda/context.h"
#include "cuda/multi_tensor.cuh"

namespace gradus {
namespace {

template <class T>
struct AdamEntry {
  T* p;
  const T* dp;
  acc_t<T>* exp_avg;
  acc_t<T>* exp_avg_sq;
  int64_t count;
  int64_t born;
};

// math:   adam_element, core/ops/adam.h; the powers of beta by one thread per block, in f64
// grid:   one block per 1024 elements of one tensor; 256 threads of 4 neighbours
// passes: one
// bytes:  fewest = actual: p, dp and both moments read once, p and the moments written once
// smem:   the numbers of the step
// needs:  16-byte accesses where all four are aligned and the thread has 4 elements
// order:  none
// expects: the copy bandwidth for 10^7 parameters and more; about 3 us for a small net
template <class T>
__global__ void __launch_bounds__(kTensorThreads)
    adam_step_block_per_chunk(const __grid_constant__ TensorBatch<AdamEntry<T>> batch,
                              AdamSettings settings, const double* lr, const int64_t* step,
                              const int64_t* failed_step) {
  using A = acc_t<T>;
  if (failed_step != nullptr && *failed_step >= 0) return;
  const TensorChunk chunk = chunk_of(batch);
  const AdamEntry<T> entry = batch.entries[chunk.tensor];
  const int64_t valid = entry.count - chunk.begin;
  const bool whole =
      valid >= kPerThread && are_vectors(entry.p, entry.dp, entry.exp_avg, entry.exp_avg_sq);
  TensorVector<T> p{}, dp{};
  TensorVector<A> first{}, second{};
  if (valid > 0) {  // asked for before the numbers are waited for
    p = load_vector(entry.p + chunk.begin, whole, valid);
    dp = load_vector(entry.dp + chunk.begin, whole, valid);
    first = load_vector(entry.exp_avg + chunk.begin, whole, valid);
    second = load_vector(entry.exp_avg_sq + chunk.begin, whole, valid);
  }
  __shared__ AdamNumbers<A> shared;
  if (threadIdx.x == 0) shared = adam_numbers<A>(settings, *lr, *step - entry.born);
  __syncthreads();
  if (valid <= 0) return;
  const AdamNumbers<A> k = shared;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    p.values[i] =
        static_cast<T>(adam_element<A>(k, static_cast<A>(p.values[i]), static_cast<A>(dp.values[i]),
                                       first.values[i], second.values[i]));
  }
  store_vector(entry.p + chunk.begin, p, whole, valid);
  store_vector(entry.exp_avg + chunk.begin, first, whole, valid);
  store_vector(entry.exp_avg_sq + chunk.begin, second, whole, valid);
}

}  // namespace

void run(Cuda& cuda, const AdamStep& args) {
  visit(Floating{}, args.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    using Entry = AdamEntry<T>;
    const auto make = [](const AdamTensor& tensor) {
      return Entry{tensor.p.as<T>(),          tensor.dp.as<T>(), tensor.exp_avg.as<A>(),
                   tensor.exp_avg_sq.as<A>(), tensor.p.numel(),  tensor.born};
    };
    for_each_batch<Entry>(args.tensors, make, [&](const TensorBatch<Entry>& batch) {
      adam_step_block_per_chunk<T><<<batch.blocks, kTensorThreads, 0, cuda.stream()>>>(
          batch, args.settings, args.lr.as<double>(), args.step.as<int64_t>(),
          args.failed_step.as<int64_t>());
    });
  });
}

}  // namespace gradus
