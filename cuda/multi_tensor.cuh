// Kernels over many tensors in one launch: their pointers go by value, a block takes 1024 elements
// of one tensor.
//
//   struct Entry { float* p; int64_t count; };
//   for_each_batch<Entry>(tensors, make_entry, [&](const TensorBatch<Entry>& batch) {
//     kernel<<<batch.blocks, kTensorThreads, 0, stream>>>(batch);
//   });
//   // in the kernel
//   const TensorChunk chunk = chunk_of(batch);
//   const Entry& entry = batch.entries[chunk.tensor];
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace gradus {

inline constexpr int kTensorThreads = 256;
inline constexpr int kPerThread = 4;
inline constexpr int64_t kPerTensorBlock = kTensorThreads * kPerThread;

// As many as fit the 4 KB that every device takes by value, beside 512 bytes of other arguments.
template <class Entry>
inline constexpr int kTensorsPerLaunch = static_cast<int>(3584 / (sizeof(Entry) + sizeof(int)));

template <class Entry>
struct TensorBatch {
  Entry entries[kTensorsPerLaunch<Entry>];
  int first_block[kTensorsPerLaunch<Entry>];  // of each tensor
  int size = 0;
  int blocks = 0;
};

// Where the calling thread works: `begin` is the first of its kPerThread neighbours.
struct TensorChunk {
  int tensor;
  int64_t begin;
};

template <class Entry>
__device__ __forceinline__ TensorChunk chunk_of(const TensorBatch<Entry>& batch) {
  const int block = static_cast<int>(blockIdx.x);
  int low = 0, high = batch.size;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (batch.first_block[middle] <= block ? low : high) = middle;
  }
  return {low, (block - batch.first_block[low]) * kPerTensorBlock +
                   static_cast<int64_t>(threadIdx.x) * kPerThread};
}

// kPerThread elements as one or two accesses of up to 16 bytes.
template <class T>
struct alignas(sizeof(T) == 8 ? 16 : kPerThread * sizeof(T)) TensorVector {
  T values[kPerThread];
};

template <class T>
__device__ __forceinline__ bool is_vector_aligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(TensorVector<T>) == 0;
}
// Null counts as aligned: nothing is read there.
template <class... Ts>
__device__ __forceinline__ bool are_vectors(const Ts*... data) {
  return (is_vector_aligned(data) && ...);
}

// Up to kPerThread elements from `from` on; those beyond `valid` are 0, and all are where `from` is
// null.
template <class T>
__device__ __forceinline__ TensorVector<T> load_vector(const T* from, bool whole, int64_t valid) {
  if (from == nullptr) return {};
  if (whole) return *reinterpret_cast<const TensorVector<T>*>(from);
  TensorVector<T> vector{};
  for (int i = 0; i < kPerThread; ++i) {
    if (i < valid) vector.values[i] = from[i];
  }
  return vector;
}

template <class T>
__device__ __forceinline__ void store_vector(T* to, const TensorVector<T>& vector, bool whole,
                                             int64_t valid) {
  if (to == nullptr) return;
  if (whole) {
    *reinterpret_cast<TensorVector<T>*>(to) = vector;
    return;
  }
  for (int i = 0; i < kPerThread; ++i) {
    if (i < valid) to[i] = vector.values[i];
  }
}

// p + i, or null for null.
template <class T>
__device__ __forceinline__ T* advance(T* p, int64_t i) {
  return p == nullptr ? nullptr : p + i;
}

// Calls launch(batch) for batches that cover the tensors with elements. make(tensor) gives an Entry
// with its `count`.
template <class Entry, class Tensors, class Make, class Launch>
void for_each_batch(const Tensors& tensors, Make&& make, Launch&& launch) {
  TensorBatch<Entry> batch;
  const auto flush = [&] {
    if (batch.blocks > 0) launch(batch);
    batch = {};
  };
  for (const auto& tensor : tensors) {
    const Entry entry = make(tensor);
    const int64_t blocks = (entry.count + kPerTensorBlock - 1) / kPerTensorBlock;
    if (blocks == 0) continue;
    if (batch.size == kTensorsPerLaunch<Entry> || batch.blocks + blocks > 0x7FFFFFFF) flush();
    batch.entries[batch.size] = entry;
    batch.first_block[batch.size++] = batch.blocks;
    batch.blocks += static_cast<int>(blocks);
  }
  flush();
}

}  // namespace gradus
