#include "core/ops/sgd.h"

#include "cuda/context.h"
#include "cuda/multi_tensor.cuh"

namespace gradus {
namespace {

template <class T>
struct SgdEntry {
  T* p;
  const T* dp;
  acc_t<T>* buf;
  int64_t count;
  int64_t born;
};

// math:   sgd_element, core/ops/sgd.h
// grid:   one block per 1024 elements of one tensor; 256 threads of 4 neighbours
// passes: one
// bytes:  fewest = actual: p, dp, buf read once, p and buf written once
// needs:  16-byte accesses where p, dp and buf are aligned and the thread has 4 elements
// order:  none
template <class T>
__global__ void __launch_bounds__(kTensorThreads)
    sgd_step_block_per_chunk(const __grid_constant__ TensorBatch<SgdEntry<T>> batch,
                             SgdNumbers<acc_t<T>> k, const double* lr, const int64_t* step,
                             const int64_t* failed_step) {
  using A = acc_t<T>;
  if (failed_step != nullptr && *failed_step >= 0) return;
  const TensorChunk chunk = chunk_of(batch);
  const SgdEntry<T> entry = batch.entries[chunk.tensor];
  const int64_t valid = entry.count - chunk.begin;
  if (valid <= 0) return;
  const A rate = static_cast<A>(*lr);
  const bool first = *step == entry.born + 1;
  const bool whole = valid >= kPerThread && are_vectors(entry.p, entry.dp, entry.buf);
  TensorVector<T> p = load_vector(entry.p + chunk.begin, whole, valid);
  const TensorVector<T> dp = load_vector(entry.dp + chunk.begin, whole, valid);
  A* const at = advance(entry.buf, chunk.begin);
  TensorVector<A> buf = load_vector(at, whole, valid);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    p.values[i] = static_cast<T>(sgd_element<A>(k, rate, static_cast<A>(p.values[i]),
                                                static_cast<A>(dp.values[i]),
                                                at == nullptr ? nullptr : &buf.values[i], first));
  }
  store_vector(entry.p + chunk.begin, p, whole, valid);
  store_vector(at, buf, whole, valid);
}

}  // namespace

void run(Cuda& cuda, const SgdStep& args) {
  visit(Floating{}, args.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using Entry = SgdEntry<T>;
    const auto make = [](const SgdTensor& tensor) {
      return Entry{tensor.p.as<T>(), tensor.dp.as<T>(), tensor.buf.as<acc_t<T>>(), tensor.p.numel(),
                   tensor.born};
    };
    for_each_batch<Entry>(args.tensors, make, [&](const TensorBatch<Entry>& batch) {
      sgd_step_block_per_chunk<T><<<batch.blocks, kTensorThreads, 0, cuda.stream()>>>(
          batch, sgd_numbers<acc_t<T>>(args), args.lr.as<double>(), args.step.as<int64_t>(),
          args.failed_step.as<int64_t>());
    });
  });
}

}  // namespace gradus
