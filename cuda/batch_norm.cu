#include "core/ops/batch_norm.h"

#include "cuda/batch_norm_steps.cuh"
#include "cuda/check.h"
#include "cuda/context.h"

namespace gradus {
namespace {

// math    y = (x - mean)·rstd·gamma + beta
// grid    packs of N elements, last pack first: the moments pass has just left them in L2
// passes  1 moments (x read), 2 finish (per channel), 3 write (x read, y written)
// bytes   fewest 2Eb; 3Eb when x does not fit L2
// order   element-wise
template <class T, int N, bool kColumns, class Divisor>
__global__ void __launch_bounds__(256)
    batch_norm_forward_write(const T* x, T* y, ChannelOf<Divisor> channel_of, int64_t packs,
                             ForwardTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  if (terms.batches != nullptr && blockIdx.x == 0 && threadIdx.x == 0) ++*terms.batches;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t pack = packs - 1 - i;
    const int64_t c = channel_of(pack) * (kColumns ? N : 1);
    const Pack<T, N> in = load_pack<N>(x + pack * N);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int64_t k = kColumns ? c + j : c;
      const A scale = terms.rstd[k] * (terms.gamma != nullptr ? terms.gamma[k] : A(1));
      const A shift = terms.beta != nullptr ? terms.beta[k] : A(0);
      out[j] = static_cast<T>((static_cast<A>(in[j]) - terms.mean[k]) * scale + shift);
    }
    store_pack(y + pack * N, out);
  }
}

// math    dx = gamma·rstd·(dy - m1 - (x - mean)·m2r), m2r = rstd·m2; m1 = m2r = 0 in evaluation
// grid    packs of N elements, last pack first
// passes  1 sums (x, dy read), 2 finish (per channel), 3 write (x, dy read, dx written)
// bytes   fewest 3Eb; 5Eb when x and dy do not fit L2
// order   element-wise
template <class T, int N, bool kColumns, class Divisor>
__global__ void __launch_bounds__(256)
    batch_norm_backward_write(const T* x, const T* dy, T* dx, ChannelOf<Divisor> channel_of,
                              int64_t packs, BackwardTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t pack = packs - 1 - i;
    const int64_t c = channel_of(pack) * (kColumns ? N : 1);
    const Pack<T, N> x_in = load_pack<N>(x + pack * N);
    const Pack<T, N> dy_in = load_pack<N>(dy + pack * N);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int64_t k = kColumns ? c + j : c;
      const A scale = terms.rstd[k] * (terms.gamma != nullptr ? terms.gamma[k] : A(1));
      A direct = static_cast<A>(dy_in[j]);
      if (terms.m1 != nullptr) {
        direct -= terms.m1[k] + (static_cast<A>(x_in[j]) - terms.mean[k]) * terms.m2r[k];
      }
      out[j] = static_cast<T>(scale * direct);
    }
    store_pack(dx + pack * N, out);
  }
}

// Calls f(constant N, constant kColumns, Divisor) for the widest access that the shape and the
// pointers allow.
template <class T, class F>
void with_layout(const BatchNormGeometry& g, std::initializer_list<const void*> pointers, F&& f) {
  constexpr int kWide = kFullPack<T>;
  const int64_t run = g.channels_last ? g.c : g.s;
  const bool wide = pack_width(sizeof(T), pointers, {run}) == kWide;
  const bool narrow_index = g.n * g.c * g.s < (int64_t{1} << 31);
  const auto with_width = [&](auto width) {
    const auto with_columns = [&](auto columns) {
      if (narrow_index) {
        f(width, columns, FastDivisor());
      } else {
        f(width, columns, WideDivisor());
      }
    };
    if (g.channels_last) {
      with_columns(std::true_type());
    } else {
      with_columns(std::false_type());
    }
  };
  if (wide) {
    with_width(std::integral_constant<int, kWide>());
  } else {
    with_width(std::integral_constant<int, 1>());
  }
}

template <class Divisor>
ChannelOf<Divisor> channel_of(const BatchNormGeometry& g, int width) {
  using Index = decltype(Divisor().divisor);
  const int64_t inner = g.channels_last ? 1 : g.s / width;
  const int64_t outer = g.channels_last ? g.c / width : g.c;
  return {Divisor(static_cast<Index>(inner)), Divisor(static_cast<Index>(outer))};
}

template <class T>
void forward(Cuda& cuda, const BatchNormForward& args) {
  using A = acc_t<T>;
  const BatchNormGeometry g = batch_norm_geometry(args.x);
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  with_layout<T>(g, {x, y}, [&](auto width, auto columns, auto divide) {
    constexpr int N = width();
    FinishForward<T> finish = finish_forward<T>(args, g);
    if (args.training) {  // 1 moments
      finish.chunks = launch_first_stage<N, columns()>(cuda, finish.of, g, 0, &finish.parts);
    }
    batch_norm_forward_finish<T>
        <<<stepping_blocks(g.c, 8, kMaxGridX), 256, 0, cuda.stream()>>>(finish);  // 2 finish
    const int64_t packs = g.n * g.c * g.s / N;                                    // 3 write
    const ForwardTerms<A> terms{finish.mean, finish.rstd, args.gamma.as<A>(), args.beta.as<A>(),
                                args.batches.as<int64_t>()};
    batch_norm_forward_write<T, N, columns()>
        <<<stepping_blocks(packs, 256 * 4), 256, 0, cuda.stream()>>>(
            x, y, channel_of<decltype(divide)>(g, N), packs, terms);
  });
}

template <class T>
void backward(Cuda& cuda, const BatchNormBackward& args) {
  using A = acc_t<T>;
  const BatchNormGeometry g = batch_norm_geometry(args.x);
  const T *x = args.x.as<T>(), *dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  const bool needs_terms = args.training && args.dx;
  with_layout<T>(g, {x, dy, dx}, [&](auto width, auto columns, auto divide) {
    constexpr int N = width();
    BackwardTerms<A> terms{args.mean.as<A>(), args.rstd.as<A>(), args.gamma.as<A>(), nullptr,
                           nullptr};
    if (needs_terms || args.dgamma || args.dbeta) {
      FinishBackward<A> finish{.c = g.c,
                               .m = g.m(),
                               .rstd = terms.rstd,
                               .dgamma = args.dgamma.as<A>(),
                               .dbeta = args.dbeta.as<A>()};
      finish.chunks = launch_sums<T, N, columns()>(cuda, x, dy, terms.mean, g, &finish.parts,
                                                   &finish.m1);  // 1 sums
      finish.m2r = finish.m1 + g.c;
      batch_norm_backward_finish<A>
          <<<stepping_blocks(g.c, 8, kMaxGridX), 256, 0, cuda.stream()>>>(finish);  // 2 finish
      if (needs_terms) terms.m1 = finish.m1, terms.m2r = finish.m2r;
    }
    if (dx == nullptr) return;
    const int64_t packs = g.n * g.c * g.s / N;  // 3 write
    batch_norm_backward_write<T, N, columns()>
        <<<stepping_blocks(packs, 256 * 4), 256, 0, cuda.stream()>>>(
            x, dy, dx, channel_of<decltype(divide)>(g, N), packs, terms);
  });
}

}  // namespace

void run(Cuda& cuda, const BatchNormForward& args) {
  if (args.x.numel() == 0) return;
  visit(Floating{}, args.x.dtype,
        [&](auto type) { forward<typename decltype(type)::type>(cuda, args); });
}

void run(Cuda& cuda, const BatchNormBackward& args) {
  if (args.x.numel() == 0) {
    for (const AnyView& grad : {args.dgamma, args.dbeta}) {
      if (!grad || grad.nbytes() == 0) continue;
      cuda_check(cudaMemsetAsync(grad.data, 0, static_cast<size_t>(grad.nbytes()), cuda.stream()),
                 "batch_norm");
    }
    return;
  }
  visit(Floating{}, args.x.dtype,
        [&](auto type) { backward<typename decltype(type)::type>(cuda, args); });
}

}  // namespace gradus
