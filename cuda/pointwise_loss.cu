#include "core/ops/pointwise_loss.h"

#include <array>

#include "cuda/context.h"
#include "cuda/device/reduce.cuh"
#include "cuda/device/strided.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/plan.h"

namespace gradus {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostChunks = 1024;

Strides strides_as(const AnyView& view, const Shape& shape) {
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

// ---- forward ------------------------------------------------------------------------------------

template <class A>
struct LossResult {
  A* each;         // for Reduction::none, else null
  A* total;        // for the others, else null
  double divisor;  // the count for mean, else 1
};

template <class A>
__device__ void finish(const LossResult<A>& result, double sum) {
  if (result.total != nullptr) *result.total = static_cast<A>(sum / result.divisor);
}

template <class F, class T>
__device__ acc_t<T> loss_of(const Operands<T>& in, acc_t<T> x, acc_t<T> t, acc_t<T> weight,
                            acc_t<T> pos_weight) {
  const acc_t<T> loss = F::f(x, t, LossNumbers<acc_t<T>>{in.beta, in.per_beta, pos_weight});
  return F::weighted ? weight * loss : loss;
}

// The losses of N neighbours: stored where each is wanted, their sum returned.
template <int N, class F, class T>
__device__ acc_t<T> forward_pack(const Operands<T>& in, acc_t<T>* each, int64_t i) {
  using A = acc_t<T>;
  const Pack<T, N> x = load_pack<N>(in.x + i), t = load_pack<N>(in.t + i);
  Pack<A, N> weight{}, pos_weight{};
  if constexpr (F::weighted) {
    weight = in.weight.template pack<N>(i);
    pos_weight = in.pos_weight.template pack<N>(i);
  }
  A sum = 0;
  Pack<A, N> loss;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    loss[j] = loss_of<F>(in, static_cast<A>(x[j]), static_cast<A>(t[j]), weight[j], pos_weight[j]);
    sum += loss[j];
  }
  if (each == nullptr) return sum;
  constexpr int part = kFullPack<A>;
#pragma unroll
  for (int j = 0; j < N; j += part) {
    Pack<A, part> piece;
#pragma unroll
    for (int k = 0; k < part; ++k) piece[k] = loss[j + k];
    store_pack(each + i + j, piece);
  }
  return sum;
}

// math:   core/ops/pointwise_loss.h
// grid:   1-D, one block per chunk of elements, at most 1024
// passes: one
// bytes:  fewest = actual: x and t read once, each loss written once for none
// needs:  all tensors in one order, aligned to 16 bytes; chunk a multiple of the pack
// order:  a pack in acc, the packs of a thread and the block's tree in f64
// expects: at 128x64x32x32 f32, two reads of 33.5 MB: 23 us at the copy bandwidth, + 3 us
template <class F, class T>
__global__ void __launch_bounds__(kThreads)
    pointwise_loss_forward_block_per_chunk(const Operands<T> in, int64_t count, int64_t chunk,
                                           LossResult<acc_t<T>> result, double* parts) {
  constexpr int N = kFullPack<T>;
  using A = acc_t<T>;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk;
  const int64_t end = begin + chunk < count ? begin + chunk : count;
  double sum = 0;
#pragma unroll 2
  for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * N; i + N <= end; i += kThreads * N) {
    sum += static_cast<double>(forward_pack<N, F>(in, result.each, i));
  }
  const int64_t rest = end / N * N + threadIdx.x;  // fewer than a pack, in the last chunk
  if (rest < end) {
    const A loss = loss_of<F>(in, static_cast<A>(in.x[rest]), static_cast<A>(in.t[rest]),
                              in.weight.at(in.weight.repeats ? 0 : rest),
                              in.pos_weight.at(in.pos_weight.repeats ? 0 : rest));
    if (result.each != nullptr) result.each[rest] = loss;
    sum += static_cast<double>(loss);
  }
  if (result.each != nullptr) return;
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) {
    finish(result, sum);
  } else {
    parts[blockIdx.x] = sum;
  }
}

// The same for any strides, one element at a time. plan: loss or x, x, t, weight, pos_weight.
template <class F, class T>
__global__ void __launch_bounds__(kThreads)
    pointwise_loss_forward_strided(const __grid_constant__ StridedPlan<5> plan,
                                   const Operands<T> in, int64_t chunk, LossResult<acc_t<T>> result,
                                   double* parts) {
  using A = acc_t<T>;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk;
  const int64_t end = begin + chunk < plan.count ? begin + chunk : plan.count;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const StridedOffsets<5> at = plan.offsets(i);
    const A loss = loss_of<F>(in, static_cast<A>(in.x[at.at[1]]), static_cast<A>(in.t[at.at[2]]),
                              in.weight.at(at.at[3]), in.pos_weight.at(at.at[4]));
    if (result.each != nullptr) result.each[at.at[0]] = loss;
    sum += static_cast<double>(loss);
  }
  if (result.each != nullptr) return;
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) {
    finish(result, sum);
  } else {
    parts[blockIdx.x] = sum;
  }
}

// grid:  one block
// order: each thread its parts from first to last, then the block's tree
template <class A>
__global__ void __launch_bounds__(kThreads)
    pointwise_loss_forward_finish(const double* parts, int64_t count, LossResult<A> result) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += parts[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) finish(result, sum);
}

template <class F, class T>
void forward(Cuda& cuda, const PointwiseLossForward& args) {
  using A = acc_t<T>;
  constexpr int N = kFullPack<T>;
  const Shape& shape = args.x.shape;
  const bool is_none = args.reduction == Reduction::none;
  const AnyView& first = is_none ? args.loss : args.x;
  const StridedPlan<5> plan(
      shape, {first.strides, args.x.strides, args.t.strides, strides_as(args.weight, shape),
              strides_as(args.pos_weight, shape)});
  const Operands<T> in{args.x.as<T>(),
                       args.t.as<T>(),
                       {args.weight.as<A>(), repeats(plan, 3)},
                       {args.pos_weight.as<A>(), repeats(plan, 4)},
                       usable_beta<A>(args.beta),
                       A(1) / usable_beta<A>(args.beta)};
  const LossResult<A> result{
      is_none ? args.loss.as<A>() : nullptr, is_none ? nullptr : args.loss.as<A>(),
      args.reduction == Reduction::mean ? static_cast<double>(plan.count) : 1.0};
  const Chunks chunks = plan_chunks(plan.count, 4 * kThreads * N, kMostChunks, kThreads * N);
  double* parts = nullptr;
  if (chunks.count > 1 && !is_none) {
    parts =
        static_cast<double*>(cuda.workspace(static_cast<size_t>(chunks.count) * sizeof(double)));
  }
  if (chunks.count > 0) {
    const unsigned blocks = exact_blocks(chunks.count, PointwiseLossForward::name);
    if (is_packed<5>(plan, {&first, &args.x, &args.t, &args.weight, &args.pos_weight}, 16, 3)) {
      pointwise_loss_forward_block_per_chunk<F, T>
          <<<blocks, kThreads, 0, cuda.stream()>>>(in, plan.count, chunks.size, result, parts);
    } else {
      pointwise_loss_forward_strided<F, T>
          <<<blocks, kThreads, 0, cuda.stream()>>>(plan, in, chunks.size, result, parts);
    }
  }
  if (chunks.count != 1 && !is_none) {
    pointwise_loss_forward_finish<<<1, kThreads, 0, cuda.stream()>>>(parts, chunks.count, result);
  }
}

// ---- backward -----------------------------------------------------------------------------------

template <class T>
struct Slopes {
  T* dx;  // either may be null
  T* dt;
  Factor<acc_t<T>> dy;
  acc_t<T> scale;  // 1, or 1 / count for mean
};

// d·weight for one element.
template <class F, class A>
__device__ A upstream(A dy, A scale, A weight) {
  return F::weighted ? dy * scale * weight : dy * scale;
}

// math:   core/ops/pointwise_loss.h
// grid:   1-D, any number of blocks; a thread takes 16 bytes of x at a time
// passes: one
// bytes:  fewest = actual: x, t (and dy for none) read once, dx and dt written once
// needs:  all tensors in one order, aligned to 16 bytes
// order:  none
// expects: at 128x64x32x32 f32 with dx alone, 3 x 33.5 MB: 34 us at the copy bandwidth
template <class F, class T>
__global__ void __launch_bounds__(kThreads)
    pointwise_loss_backward_flat(const Operands<T> in, const Slopes<T> out, int64_t count) {
  constexpr int N = kFullPack<T>;
  using A = acc_t<T>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t pack = first; pack < count / N; pack += step) {
    const int64_t i = pack * N;
    const Pack<T, N> x = load_pack<N>(in.x + i), t = load_pack<N>(in.t + i);
    const Pack<A, N> dy = out.dy.template pack<N>(i);
    Pack<A, N> weight{}, pos_weight{};
    if constexpr (F::weighted) {
      weight = in.weight.template pack<N>(i);
      pos_weight = in.pos_weight.template pack<N>(i);
    }
    Pack<T, N> dx, dt;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const LossNumbers<A> k{in.beta, in.per_beta, pos_weight[j]};
      const A d = upstream<F>(dy[j], out.scale, weight[j]);
      if (out.dx) dx[j] = static_cast<T>(d * F::dx(static_cast<A>(x[j]), static_cast<A>(t[j]), k));
      if (out.dt) dt[j] = static_cast<T>(d * F::dt(static_cast<A>(x[j]), static_cast<A>(t[j]), k));
    }
    if (out.dx) store_pack(out.dx + i, dx);
    if (out.dt) store_pack(out.dt + i, dt);
  }
  const int64_t i = count / N * N + first;
  if (i >= count) return;
  const LossNumbers<A> k{in.beta, in.per_beta, in.pos_weight.at(in.pos_weight.repeats ? 0 : i)};
  const A d = upstream<F>(out.dy.at(out.dy.repeats ? 0 : i), out.scale,
                          in.weight.at(in.weight.repeats ? 0 : i));
  const A x = static_cast<A>(in.x[i]), t = static_cast<A>(in.t[i]);
  if (out.dx) out.dx[i] = static_cast<T>(d * F::dx(x, t, k));
  if (out.dt) out.dt[i] = static_cast<T>(d * F::dt(x, t, k));
}

// The same for any strides. plan: dx or dt, x, t, dt, weight, pos_weight, dy.
template <class F, class T>
struct BackwardElement {
  using A = acc_t<T>;
  Operands<T> in;
  Slopes<T> out;

  __device__ void operator()(const StridedOffsets<7>& at) const {
    const LossNumbers<A> k{in.beta, in.per_beta, in.pos_weight.at(at.at[5])};
    const A d = upstream<F>(out.dy.at(at.at[6]), out.scale, in.weight.at(at.at[4]));
    const A x = static_cast<A>(in.x[at.at[1]]), t = static_cast<A>(in.t[at.at[2]]);
    if (out.dx) out.dx[at.at[0]] = static_cast<T>(d * F::dx(x, t, k));
    if (out.dt) out.dt[at.at[3]] = static_cast<T>(d * F::dt(x, t, k));
  }
};

template <class F, class T>
void backward(Cuda& cuda, const PointwiseLossBackward& args) {
  using A = acc_t<T>;
  const Shape& shape = args.x.shape;
  const AnyView& first = args.dx ? args.dx : args.dt;
  const StridedPlan<7> plan(
      shape, {first.strides, args.x.strides, args.t.strides, strides_as(args.dt, shape),
              strides_as(args.weight, shape), strides_as(args.pos_weight, shape),
              strides_as(args.dy, shape)});
  if (plan.count == 0) return;
  const Operands<T> in{args.x.as<T>(),
                       args.t.as<T>(),
                       {args.weight.as<A>(), repeats(plan, 4)},
                       {args.pos_weight.as<A>(), repeats(plan, 5)},
                       usable_beta<A>(args.beta),
                       A(1) / usable_beta<A>(args.beta)};
  const bool is_mean = args.reduction == Reduction::mean;
  const Slopes<T> out{args.dx.as<T>(),
                      args.dt.as<T>(),
                      {args.dy.as<A>(), repeats(plan, 6)},
                      static_cast<A>(is_mean ? 1.0 / static_cast<double>(plan.count) : 1.0)};
  const std::array<const AnyView*, 7> views{&first,       &args.x,          &args.t, &args.dt,
                                            &args.weight, &args.pos_weight, &args.dy};
  if (is_packed<7>(plan, views, 16, 4)) {
    const unsigned blocks = stepping_blocks(ceil_div(plan.count, kFullPack<T>), kThreads);
    pointwise_loss_backward_flat<F, T><<<blocks, kThreads, 0, cuda.stream()>>>(in, out, plan.count);
  } else {
    for_each_element<<<stepping_blocks(plan.count, kElementThreads), kElementThreads, 0,
                       cuda.stream()>>>(plan, BackwardElement<F, T>{in, out});
  }
}

}  // namespace

void run(Cuda& cuda, const PointwiseLossForward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    visit_loss(args.kind, [&](auto loss) {
      forward<typename decltype(loss)::type, typename decltype(type)::type>(cuda, args);
    });
  });
}

void run(Cuda& cuda, const PointwiseLossBackward& args) {
  if (!args.dx && !args.dt) return;
  visit(Floating{}, args.x.dtype, [&](auto type) {
    visit_loss(args.kind, [&](auto loss) {
      backward<typename decltype(loss)::type, typename decltype(type)::type>(cuda, args);
    });
  });
}

}  // namespace gradus
