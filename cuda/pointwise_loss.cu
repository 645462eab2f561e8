#include "cuda/pointwise_loss.cuh"

#include "cuda/device/reduce.cuh"

namespace gradus {
namespace {

using namespace pointwise_loss;

constexpr int64_t kMostChunks = 4096;

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
  using V = Real<T>;
  const acc_t<T> loss = to_acc<acc_t<T>>(F::f(V(x), V(t), numbers_of(in, pos_weight)));
  return F::weighted ? weight * loss : loss;
}

// The losses of N neighbours: stored where each is wanted, their sum returned.
template <class F, int N, class T>
__device__ __forceinline__ acc_t<T> forward_pack(const Operands<T>& in, acc_t<T>* each, int64_t i,
                                                 const Pack<T, N>& x_pack,
                                                 const Pack<T, N>& t_pack) {
  using A = acc_t<T>;
  A x[N], t[N];
  widen_pack(x, x_pack);
  widen_pack(t, t_pack);
  Pack<A, N> weight{}, pos_weight{};
  if constexpr (F::weighted) {
    weight = in.weight.template pack<N>(i);
    pos_weight = in.pos_weight.template pack<N>(i);
  }
  A sum = 0;
  Pack<A, N> loss;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    loss[j] = loss_of<F>(in, x[j], t[j], weight[j], pos_weight[j]);
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
// grid:   1-D, one block per chunk of elements, at most 4096
// passes: one
// bytes:  fewest = actual: x and t read once, each loss written once for none
// needs:  all tensors in one order, aligned to 16 bytes; chunk a multiple of the pack
// order:  a pack in acc, the packs of a thread and the block's tree in f64
// expects: at 128x64x32x32 f32, two reads of 33.5 MB: 23 us at the copy bandwidth, + 3 us
template <class F, class T>
__global__ void __launch_bounds__(kThreads, sizeof(T) < 8 ? 4 : 2)
    pointwise_loss_forward_block_per_chunk(const Operands<T> in, int64_t count, int64_t chunk,
                                           LossResult<acc_t<T>> result, double* parts) {
  constexpr int N = kFullPack<T>;
  using A = acc_t<T>;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk;
  const int64_t end = begin + chunk < count ? begin + chunk : count;
  constexpr int kStep = kThreads * N;
  const auto load = [](const T* from) { return load_pack<N>(from); };
  double sum = 0;
  int64_t i = begin + static_cast<int64_t>(threadIdx.x) * N;
  for (; i + kStep + N <= end; i += 2 * kStep) {  // two packs of each operand under way
    const Pack<T, N> x[2] = {load(in.x + i), load(in.x + i + kStep)};
    const Pack<T, N> t[2] = {load(in.t + i), load(in.t + i + kStep)};
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      sum += static_cast<double>(forward_pack<F>(in, result.each, i + u * kStep, x[u], t[u]));
    }
  }
  if (i + N <= end) {
    sum += static_cast<double>(forward_pack<F>(in, result.each, i, load(in.x + i), load(in.t + i)));
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

}  // namespace

void run(Cuda& cuda, const PointwiseLossForward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    visit_loss(args.kind, [&](auto loss) {
      forward<typename decltype(loss)::type, typename decltype(type)::type>(cuda, args);
    });
  });
}

}  // namespace gradus
