// What both directions of the losses share: operands that may be absent or repeat, and whether
// packs can be read.
#pragma once

#include <array>

#include "core/ops/pointwise_loss.h"
#include "cuda/context.h"
#include "cuda/device/activation_half.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/strided.cuh"
#include "cuda/plan.h"

namespace gradus::pointwise_loss {

inline constexpr int kThreads = 256;

inline Strides strides_as(const AnyView& view, const Shape& shape) {
  return view ? broadcast_strides(view.shape, view.strides, shape)
              : Strides::filled(shape.rank(), 0);
}

// An operand in acc that may be absent (then 1) or one element for all.
template <class A>
struct Factor {
  const A* data;
  bool repeats;

  __device__ A at(int64_t offset) const { return data == nullptr ? A(1) : data[offset]; }
  template <int N>
  __device__ Pack<A, N> pack(int64_t i) const {
    Pack<A, N> values;
    if (data == nullptr || repeats) {
      const A value = data == nullptr ? A(1) : *data;
      for (int j = 0; j < N; ++j) values[j] = value;
      return values;
    }
    constexpr int part = N < kFullPack<A> ? N : kFullPack<A>;
#pragma unroll
    for (int j = 0; j < N; j += part) {
      const Pack<A, part> loaded = load_pack<part>(data + i + j);
#pragma unroll
      for (int k = 0; k < part; ++k) values[j + k] = loaded[k];
    }
    return values;
  }
};

template <class T>
struct Operands {
  using A = acc_t<T>;
  const T* x;
  const T* t;
  Factor<A> weight, pos_weight;
  A beta, per_beta;
};

template <class T>
__device__ __forceinline__ LossNumbers<Real<T>> numbers_of(const Operands<T>& in,
                                                           acc_t<T> pos_weight) {
  using V = Real<T>;
  return {V(in.beta), V(in.per_beta), V(pos_weight)};
}

// Whether all tensors lie in one order (or repeat one element) and are aligned for packs.
template <int N>
bool is_packed(const StridedPlan<N>& plan, const std::array<const AnyView*, N>& views,
               int pack_bytes, int from_factor) {
  if (plan.rank > 1) return false;
  for (int i = 0; i < N; ++i) {
    const AnyView& view = *views[static_cast<size_t>(i)];
    if (!view) continue;
    const int64_t stride = plan.rank == 0 ? 1 : plan.strides[i][0];
    if (stride == 0 && i >= from_factor) continue;
    if (stride != 1) return false;
    if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(pack_bytes) != 0) {
      return false;
    }
  }
  return true;
}

// Whether the operand's offset never moves.
template <int N>
bool repeats(const StridedPlan<N>& plan, int tensor) {
  for (int axis = 0; axis < plan.rank; ++axis) {
    if (plan.strides[tensor][axis] != 0) return false;
  }
  return true;
}

}  // namespace gradus::pointwise_loss
