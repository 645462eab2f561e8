#include <algorithm>

#include "core/ops/sgd.h"
#include "cuda/context.h"

namespace gradus {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;
constexpr int64_t kPerBlock = kThreads * kPerThread;
constexpr int kTensorsPerLaunch = 64;  // 2.8 KB of the 4 KB that every device takes by value

template <class T>
struct SgdEntry {
  T* p;
  const T* dp;
  acc_t<T>* buf;
  int64_t count;
  int64_t born;
};

template <class T>
struct SgdBatch {
  SgdEntry<T> entries[kTensorsPerLaunch];
  int first_block[kTensorsPerLaunch];  // of each tensor
  int size = 0;
  int blocks = 0;
};

template <class T>
struct alignas(sizeof(T) == 8 ? 16 : 4 * sizeof(T)) Vector {
  T values[kPerThread];
};

template <class T>
__device__ bool is_vector_aligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(Vector<T>) == 0;
}

// math    sgd_element, core/ops/sgd.h
// grid    one block per 1024 elements of one tensor; 256 threads of 4 neighbours
// passes  one
// bytes   p, dp, buf read once, p and buf written once
// needs   16-byte loads where p, dp and buf are aligned and the block is full
template <class T>
__global__ void __launch_bounds__(kThreads)
    sgd_step_block_per_chunk(const SgdBatch<T> batch, SgdNumbers<acc_t<T>> k, const double* lr,
                             const int64_t* step, const int64_t* failed_step) {
  using A = acc_t<T>;
  if (failed_step != nullptr && *failed_step >= 0) return;
  int t = batch.size - 1;
  while (batch.first_block[t] > static_cast<int>(blockIdx.x)) --t;
  const SgdEntry<T> entry = batch.entries[t];
  const A rate = static_cast<A>(*lr);
  const bool first = *step == entry.born + 1;
  const int64_t begin = (blockIdx.x - batch.first_block[t]) * kPerBlock + threadIdx.x * kPerThread;

  const bool aligned = is_vector_aligned(entry.p) && is_vector_aligned(entry.dp) &&
                       (entry.buf == nullptr || is_vector_aligned(entry.buf));
  if (aligned && begin + kPerThread <= entry.count) {
    Vector<T> p = *reinterpret_cast<const Vector<T>*>(entry.p + begin);
    const Vector<T> dp = *reinterpret_cast<const Vector<T>*>(entry.dp + begin);
    Vector<A> buf{};
    if (entry.buf != nullptr) buf = *reinterpret_cast<const Vector<A>*>(entry.buf + begin);
    for (int i = 0; i < kPerThread; ++i) {
      p.values[i] = static_cast<T>(
          sgd_element<A>(k, rate, static_cast<A>(p.values[i]), static_cast<A>(dp.values[i]),
                         entry.buf == nullptr ? nullptr : &buf.values[i], first));
    }
    *reinterpret_cast<Vector<T>*>(entry.p + begin) = p;
    if (entry.buf != nullptr) *reinterpret_cast<Vector<A>*>(entry.buf + begin) = buf;
    return;
  }
  for (int64_t i = begin; i < begin + kPerThread && i < entry.count; ++i) {
    entry.p[i] = static_cast<T>(
        sgd_element<A>(k, rate, static_cast<A>(entry.p[i]), static_cast<A>(entry.dp[i]),
                       entry.buf == nullptr ? nullptr : entry.buf + i, first));
  }
}

template <class T>
void launch_batch(Cuda& cuda, const SgdStep& args, const SgdBatch<T>& batch) {
  if (batch.blocks == 0) return;
  sgd_step_block_per_chunk<T><<<batch.blocks, kThreads, 0, cuda.stream()>>>(
      batch, sgd_numbers<acc_t<T>>(args), args.lr.as<double>(), args.step.as<int64_t>(),
      args.failed_step.as<int64_t>());
}

}  // namespace

void run(Cuda& cuda, const SgdStep& args) {
  visit(Floating{}, args.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    SgdBatch<T> batch;
    for (const SgdTensor& tensor : args.tensors) {
      const int64_t count = tensor.p.numel();
      if (count == 0) continue;
      const int64_t blocks = (count + kPerBlock - 1) / kPerBlock;
      if (batch.size == kTensorsPerLaunch || batch.blocks + blocks > 0x7FFFFFFF) {
        launch_batch(cuda, args, batch);
        batch = {};
      }
      batch.entries[batch.size] = {tensor.p.as<T>(), tensor.dp.as<T>(), tensor.buf.as<acc_t<T>>(),
                                   count, tensor.born};
      batch.first_block[batch.size++] = batch.blocks;
      batch.blocks += static_cast<int>(blocks);
    }
    launch_batch(cuda, args, batch);
  });
}

}  // namespace gradus
