#include "core/ops/clip_grad.h"

#include "cuda/context.h"
#include "cuda/device/reduce.cuh"
#include "cuda/multi_tensor.cuh"

namespace gradus {
namespace {

template <class T>
struct ClipEntry {
  T* g;
  int64_t count;
};

struct NormOp {
  GradNorm kind;
  __device__ double operator()(double a, double b) const { return grad_norm_combine(kind, a, b); }
};

// math:  parts[block] = what the block's 1024 elements add to the norm
// grid:  one block per 1024 elements of one tensor; 256 threads of 4 neighbours
// bytes: fewest = actual: g read once
// order: a thread's 4 elements, then the block's tree, in f64
template <class T>
__global__ void __launch_bounds__(kTensorThreads)
    clip_grad_norm_parts(const __grid_constant__ TensorBatch<ClipEntry<T>> batch, GradNorm kind,
                         double* parts) {
  const TensorChunk chunk = chunk_of(batch);
  const ClipEntry<T>& entry = batch.entries[chunk.tensor];
  const int64_t valid = entry.count - chunk.begin;
  double part = 0;
  if (valid > 0) {
    const bool whole = valid >= kPerThread && are_vectors(entry.g);
    const TensorVector<T> g = load_vector(entry.g + chunk.begin, whole, valid);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const double value = static_cast<double>(static_cast<acc_t<T>>(g.values[i]));
      part = grad_norm_combine(kind, part, grad_norm_term(kind, value));
    }
  }
  part = block_reduce(part, NormOp{kind}, 0.0);
  if (threadIdx.x == 0) parts[blockIdx.x] = part;
}

// math:  the norm of all parts and the scale
// grid:  one block
// order: each thread its parts from first to last, then the block's tree
__global__ void __launch_bounds__(kTensorThreads)
    clip_grad_norm_finish(const double* parts, int64_t count, GradNorm kind, double max_norm,
                          double* norm, double* scale) {
  double total = 0;
  for (int64_t i = threadIdx.x; i < count; i += kTensorThreads) {
    total = grad_norm_combine(kind, total, parts[i]);
  }
  total = block_reduce(total, NormOp{kind}, 0.0);
  if (threadIdx.x != 0) return;
  *norm = grad_norm_of(kind, total);
  *scale = grad_scale(*norm, max_norm);
}

template <class T>
struct ScaleBy {
  const double* scale;
  __device__ bool is_idle() const { return *scale == 1.0; }
  __device__ acc_t<T> operator()(acc_t<T> g) const { return g * static_cast<acc_t<T>>(*scale); }
};

template <class T>
struct LimitTo {
  acc_t<T> limit;
  __device__ bool is_idle() const { return false; }
  __device__ acc_t<T> operator()(acc_t<T> g) const { return clip_value(g, limit); }
};

// math:  g = f(g)
// grid:  one block per 1024 elements of one tensor; 256 threads of 4 neighbours
// bytes: fewest = actual: g read and written once; nothing where f is idle
// order: none
template <class T, class F>
__global__ void __launch_bounds__(kTensorThreads)
    clip_grad_map(const __grid_constant__ TensorBatch<ClipEntry<T>> batch, const F f) {
  if (f.is_idle()) return;
  const TensorChunk chunk = chunk_of(batch);
  const ClipEntry<T>& entry = batch.entries[chunk.tensor];
  const int64_t valid = entry.count - chunk.begin;
  if (valid <= 0) return;
  const bool whole = valid >= kPerThread && are_vectors(entry.g);
  TensorVector<T> g = load_vector(entry.g + chunk.begin, whole, valid);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    g.values[i] = static_cast<T>(f(static_cast<acc_t<T>>(g.values[i])));
  }
  store_vector(entry.g + chunk.begin, g, whole, valid);
}

// Calls f(Type<T>{}, batch, blocks before it) for the gradients of each dtype.
template <class F>
void for_each_dtype(std::span<const AnyView> grads, F&& f) {
  int64_t before = 0;
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    visit(Floating{}, dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      using Entry = ClipEntry<T>;
      const auto make = [&](const AnyView& grad) {
        return grad.dtype == dtype ? Entry{grad.as<T>(), grad.numel()} : Entry{nullptr, 0};
      };
      for_each_batch<Entry>(grads, make, [&](const TensorBatch<Entry>& batch) {
        f(type, batch, before);
        before += batch.blocks;
      });
    });
  }
}

}  // namespace

void run(Cuda& cuda, const ClipGradNorm& args) {
  int64_t blocks = 0;
  for (const AnyView& grad : args.grads) {
    blocks += (grad.numel() + kPerTensorBlock - 1) / kPerTensorBlock;
  }
  double* scale =
      static_cast<double*>(cuda.workspace(static_cast<size_t>(blocks + 1) * sizeof(double)));
  double* parts = scale + 1;
  for_each_dtype(args.grads, [&](auto type, const auto& batch, int64_t before) {
    using T = typename decltype(type)::type;
    clip_grad_norm_parts<T>
        <<<batch.blocks, kTensorThreads, 0, cuda.stream()>>>(batch, args.kind, parts + before);
  });
  clip_grad_norm_finish<<<1, kTensorThreads, 0, cuda.stream()>>>(
      parts, blocks, args.kind, args.max_norm, args.norm.as<double>(), scale);
  for_each_dtype(args.grads, [&](auto type, const auto& batch, int64_t) {
    using T = typename decltype(type)::type;
    clip_grad_map<T><<<batch.blocks, kTensorThreads, 0, cuda.stream()>>>(batch, ScaleBy<T>{scale});
  });
}

void run(Cuda& cuda, const ClipGradValue& args) {
  for_each_dtype(args.grads, [&](auto type, const auto& batch, int64_t) {
    using T = typename decltype(type)::type;
    const LimitTo<T> f{static_cast<acc_t<T>>(args.limit)};
    clip_grad_map<T><<<batch.blocks, kTensorThreads, 0, cuda.stream()>>>(batch, f);
  });
}

}  // namespace gradus
