#include "core/ops/muon.h"

#include "cuda/context.h"
#include "cuda/device/norm.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/multi_tensor.cuh"
#include "cuda/plan.h"

namespace gradus {
namespace {

constexpr int kNormThreads = 1024;  // of the block that finishes a norm

template <class T>
struct MuonEntry {
  T* p;
  const T* dp;
  acc_t<T>* buf;
  acc_t<T>* o;
  double adjust;
  int64_t count;
};

template <class T>
MuonEntry<T> entry_of(const MuonTensor& tensor) {
  using A = acc_t<T>;
  return {tensor.p.as<T>(), tensor.dp.as<T>(), tensor.buf.as<A>(),
          tensor.o.as<A>(), tensor.adjust,     tensor.p.numel()};
}

__device__ bool has_failed(const int64_t* failed_step) {
  return failed_step != nullptr && *failed_step >= 0;
}

// ---- momentum -----------------------------------------------------------------------------------

// math:  buf and u of core/ops/muon.h, u to o; parts[block] = Σ u² of the block's elements
// grid:  one block per 1024 elements of one tensor; 256 threads of 4 neighbours
// bytes: fewest = actual: dp and buf read once, buf and o written once
// order: a thread's 4 elements, then the block's tree, in f64
template <class T>
__global__ void __launch_bounds__(kTensorThreads)
    muon_momentum_block_per_chunk(const __grid_constant__ TensorBatch<MuonEntry<T>> batch,
                                  MuonNumbers<acc_t<T>> k, const int64_t* failed_step,
                                  double* parts) {
  using A = acc_t<T>;
  const TensorChunk chunk = chunk_of(batch);
  const MuonEntry<T>& entry = batch.entries[chunk.tensor];
  const int64_t valid = entry.count - chunk.begin;
  const bool whole = valid >= kPerThread && are_vectors(entry.dp, entry.buf, entry.o);
  double squares = 0;
  TensorVector<A> u{};
  if (valid > 0 && !has_failed(failed_step)) {
    const TensorVector<T> dp = load_vector(entry.dp + chunk.begin, whole, valid);
    TensorVector<A> buf = load_vector(entry.buf + chunk.begin, whole, valid);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      u.values[i] = muon_direction<A>(k, static_cast<A>(dp.values[i]), buf.values[i]);
      squares += static_cast<double>(u.values[i]) * static_cast<double>(u.values[i]);
    }
    store_vector(entry.buf + chunk.begin, buf, whole, valid);
  }
  // After a failed step too, so that what follows has something to read.
  if (valid > 0) store_vector(entry.o + chunk.begin, u, whole, valid);
  squares = block_sum(squares);
  if (threadIdx.x == 0) parts[blockIdx.x] = squares;
}

// math:  scales[tensor] = 1 / max(‖u‖, eps) from the parts
// grid:  a block per tensor
// bytes: 8 per 1024 elements, from the second cache
// order: each thread its parts from first to last, then the block's tree
template <class T>
__global__ void __launch_bounds__(kNormThreads)
    muon_finish_block_per_tensor(const __grid_constant__ TensorBatch<MuonEntry<T>> batch,
                                 double eps, const double* parts, acc_t<T>* scales) {
  const int tensor = blockIdx.x, first = batch.first_block[tensor];
  const int end = tensor + 1 < batch.size ? batch.first_block[tensor + 1] : batch.blocks;
  wait_for_previous_kernel();
  start_next_kernel();
  const double squares =
      block_sum(reduce_strided(parts, first + threadIdx.x, end, kNormThreads, 1, SumOp{}, 0.0));
  if (threadIdx.x == 0) scales[tensor] = muon_scale<acc_t<T>>(squares, eps);
}

// math:  o = scale·u
// grid:  one block per 1024 elements of one tensor; 256 threads of 4 neighbours
// bytes: o read and written once, from the second cache for small nets
// order: none
template <class T>
__global__ void __launch_bounds__(kTensorThreads)
    muon_normalize_block_per_chunk(const __grid_constant__ TensorBatch<MuonEntry<T>> batch,
                                   const acc_t<T>* scales) {
  using A = acc_t<T>;
  const TensorChunk chunk = chunk_of(batch);
  const MuonEntry<T>& entry = batch.entries[chunk.tensor];
  wait_for_previous_kernel();
  const A scale = scales[chunk.tensor];
  const int64_t valid = entry.count - chunk.begin;
  if (valid <= 0) return;
  const bool whole = valid >= kPerThread && are_vectors(entry.o);
  TensorVector<A> o = load_vector(entry.o + chunk.begin, whole, valid);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) o.values[i] *= scale;
  store_vector(entry.o + chunk.begin, o, whole, valid);
}

// ---- polynomial ---------------------------------------------------------------------------------

// math:  p = a·I + b·A + c·S
// grid:  1-D, a thread per element, stepping over the grid
// bytes: fewest = actual
// order: none; p may be S
template <class A>
__global__ void __launch_bounds__(kTensorThreads)
    muon_polynomial_thread_per_element(A* p, const A* product, const A* square, A a, A b, A c,
                                       int64_t k, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kTensorThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kTensorThreads + threadIdx.x; i < count;
       i += step) {
    const int64_t row = i / k;
    const A value = b * product[i] + c * square[i];
    p[i] = row % k == i - row * k ? value + a : value;
  }
}

// ---- apply --------------------------------------------------------------------------------------

// math:  p = p·(1 - lr·weight_decay) - lr·adjust·o
// grid:  one block per 1024 elements of one tensor; 256 threads of 4 neighbours
// bytes: fewest = actual: p and o read once, p written once
// order: none
template <class T>
__global__ void __launch_bounds__(kTensorThreads)
    muon_apply_block_per_chunk(const __grid_constant__ TensorBatch<MuonEntry<T>> batch,
                               double weight_decay, const double* lr, const int64_t* failed_step) {
  using A = acc_t<T>;
  if (has_failed(failed_step)) return;
  const TensorChunk chunk = chunk_of(batch);
  const MuonEntry<T>& entry = batch.entries[chunk.tensor];
  const int64_t valid = entry.count - chunk.begin;
  if (valid <= 0) return;
  const bool whole = valid >= kPerThread && are_vectors(entry.p, entry.o);
  const A keep = static_cast<A>(1.0 - *lr * weight_decay),
          rate = static_cast<A>(*lr * entry.adjust);
  TensorVector<T> p = load_vector(entry.p + chunk.begin, whole, valid);
  const TensorVector<A> o = load_vector(entry.o + chunk.begin, whole, valid);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    p.values[i] = static_cast<T>(static_cast<A>(p.values[i]) * keep - rate * o.values[i]);
  }
  store_vector(entry.p + chunk.begin, p, whole, valid);
}

}  // namespace

void run(Cuda& cuda, const MuonMomentum& args) {
  visit(Floating{}, args.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    using Entry = MuonEntry<T>;
    const MuonNumbers<A> k = muon_numbers<A>(args.momentum, args.nesterov);
    const int64_t* failed_step = args.failed_step.as<int64_t>();
    for_each_batch<Entry>(args.tensors, entry_of<T>, [&](const TensorBatch<Entry>& batch) {
      const size_t doubles = static_cast<size_t>(batch.blocks) + static_cast<size_t>(batch.size);
      double* parts = static_cast<double*>(cuda.workspace(doubles * sizeof(double)));
      A* scales = reinterpret_cast<A*>(parts + batch.blocks);
      muon_momentum_block_per_chunk<T>
          <<<batch.blocks, kTensorThreads, 0, cuda.stream()>>>(batch, k, failed_step, parts);
      launch_overlapping(cuda, {.grid = static_cast<unsigned>(batch.size), .threads = kNormThreads},
                         muon_finish_block_per_tensor<T>, batch, args.eps, parts, scales);
      launch_overlapping(cuda,
                         {.grid = static_cast<unsigned>(batch.blocks), .threads = kTensorThreads},
                         muon_normalize_block_per_chunk<T>, batch, scales);
    });
  });
}

void run(Cuda& cuda, const MuonPolynomial& args) {
  const int64_t count = args.p.numel();
  if (count == 0) return;
  visit(TypeList<float, double>{}, args.dtype(), [&](auto type) {
    using A = typename decltype(type)::type;
    muon_polynomial_thread_per_element<<<stepping_blocks(count, kTensorThreads), kTensorThreads, 0,
                                         cuda.stream()>>>(
        args.p.as<A>(), args.product.as<A>(), args.square.as<A>(), static_cast<A>(args.a),
        static_cast<A>(args.b), static_cast<A>(args.c), args.p.shape[2], count);
  });
}

void run(Cuda& cuda, const MuonApply& args) {
  visit(Floating{}, args.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using Entry = MuonEntry<T>;
    const double* lr = args.lr.as<double>();
    const int64_t* failed_step = args.failed_step.as<int64_t>();
    for_each_batch<Entry>(args.tensors, entry_of<T>, [&](const TensorBatch<Entry>& batch) {
      muon_apply_block_per_chunk<T><<<batch.blocks, kTensorThreads, 0, cuda.stream()>>>(
          batch, args.weight_decay, lr, failed_step);
    });
  });
}

}  // namespace gradus
