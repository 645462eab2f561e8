#include "cuda/pointwise_loss.cuh"

namespace gradus {
namespace {

using namespace pointwise_loss;

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

template <class F, class T>
__device__ __forceinline__ acc_t<T> slope_x(const Operands<T>& in, acc_t<T> x, acc_t<T> t,
                                            acc_t<T> pos_weight) {
  using V = Real<T>;
  return to_acc<acc_t<T>>(F::dx(V(x), V(t), numbers_of(in, pos_weight)));
}
template <class F, class T>
__device__ __forceinline__ acc_t<T> slope_t(const Operands<T>& in, acc_t<T> x, acc_t<T> t,
                                            acc_t<T> pos_weight) {
  using V = Real<T>;
  return to_acc<acc_t<T>>(F::dt(V(x), V(t), numbers_of(in, pos_weight)));
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
    A x[N], t[N];
    widen_pack(x, load_pack<N>(in.x + i));
    widen_pack(t, load_pack<N>(in.t + i));
    const Pack<A, N> dy = out.dy.template pack<N>(i);
    Pack<A, N> weight{}, pos_weight{};
    if constexpr (F::weighted) {
      weight = in.weight.template pack<N>(i);
      pos_weight = in.pos_weight.template pack<N>(i);
    }
    A d[N], slopes[N];
#pragma unroll
    for (int j = 0; j < N; ++j) d[j] = upstream<F>(dy[j], out.scale, weight[j]);
    if (out.dx) {
#pragma unroll
      for (int j = 0; j < N; ++j) slopes[j] = d[j] * slope_x<F>(in, x[j], t[j], pos_weight[j]);
      store_rounded(out.dx + i, slopes);
    }
    if (out.dt) {
#pragma unroll
      for (int j = 0; j < N; ++j) slopes[j] = d[j] * slope_t<F>(in, x[j], t[j], pos_weight[j]);
      store_rounded(out.dt + i, slopes);
    }
  }
  const int64_t i = count / N * N + first;
  if (i >= count) return;
  const A pos_weight = in.pos_weight.at(in.pos_weight.repeats ? 0 : i);
  const A d = upstream<F>(out.dy.at(out.dy.repeats ? 0 : i), out.scale,
                          in.weight.at(in.weight.repeats ? 0 : i));
  const A x = static_cast<A>(in.x[i]), t = static_cast<A>(in.t[i]);
  if (out.dx) out.dx[i] = static_cast<T>(d * slope_x<F>(in, x, t, pos_weight));
  if (out.dt) out.dt[i] = static_cast<T>(d * slope_t<F>(in, x, t, pos_weight));
}

// The same for any strides. plan: dx or dt, x, t, dt, weight, pos_weight, dy.
template <class F, class T>
struct BackwardElement {
  using A = acc_t<T>;
  Operands<T> in;
  Slopes<T> out;

  __device__ void operator()(const StridedOffsets<7>& at) const {
    const A pos_weight = in.pos_weight.at(at.at[5]);
    const A d = upstream<F>(out.dy.at(at.at[6]), out.scale, in.weight.at(at.at[4]));
    const A x = static_cast<A>(in.x[at.at[1]]), t = static_cast<A>(in.t[at.at[2]]);
    if (out.dx) out.dx[at.at[0]] = static_cast<T>(d * slope_x<F>(in, x, t, pos_weight));
    if (out.dt) out.dt[at.at[3]] = static_cast<T>(d * slope_t<F>(in, x, t, pos_weight));
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

void run(Cuda& cuda, const PointwiseLossBackward& args) {
  if (!args.dx && !args.dt) return;
  visit(Floating{}, args.x.dtype, [&](auto type) {
    visit_loss(args.kind, [&](auto loss) {
      backward<typename decltype(loss)::type, typename decltype(type)::type>(cuda, args);
    });
  });
}

}  // namespace gradus
