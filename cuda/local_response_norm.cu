// Local response normalization on CUDA: sizes 3, 5 and 7 with the exponents that square roots reach
// have kernels of their own (local_response_norm_steps.cuh), everything else the ones below.
#include "core/ops/local_response_norm.h"

#include "cuda/context.h"
#include "cuda/launch_kernel.cuh"
#include "cuda/local_response_norm_steps.cuh"

namespace gradus {
namespace {

using Geometry = LocalResponseNormGeometry;

constexpr int kThreads = 256;
constexpr std::string_view kOp = "local_response_norm";

// ---- any size and exponent: one element at a time ----------------------------------------------

// x in any of the two layouts: element e lies in channel e / stride % c.
struct Channels {
  int64_t count, c, stride, before, after;

  __device__ __forceinline__ int64_t channel(int64_t e) const { return e / stride % c; }
};

// denom^-beta and 1/denom.
template <class A>
__device__ __forceinline__ A any_factor(const ResponseTerms<A>& terms, A denom, A& inverse) {
  const bool none = denom < smallest_normal(A());
  inverse = none ? A(0) : A(1) / denom;
  return none ? terms.at_zero : pow(denom, -terms.beta);
}

template <class T>
__device__ __forceinline__ acc_t<T> any_denom(const T* x, int64_t e, const Channels& g,
                                              const ResponseTerms<acc_t<T>>& terms) {
  using A = acc_t<T>;
  const int64_t c = g.channel(e);
  const int64_t end = min(g.c, c + g.after + 1);
  A squares = A(0);
  for (int64_t j = max(int64_t{0}, c - g.before); j < end; ++j) {
    const A value = static_cast<A>(x[e + (j - c) * g.stride]);
    squares += value * value;
  }
  return terms.k + terms.scale * squares;
}

// math    denom = k + alpha/size·Σ x², y = x·denom^-beta; either is written if it is given
// grid    threads step over the elements
// bytes   2Eb; windows from L1 and L2
// order   a window from its lowest channel to its highest
template <class T>
__global__ void __launch_bounds__(kThreads)
    local_response_norm_forward_thread_per_element(const T* x, T* y, acc_t<T>* denom, Channels g,
                                                   ResponseTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  for (int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x; e < g.count;
       e += int64_t{gridDim.x} * kThreads) {
    A inverse;
    const A d = any_denom(x, e, g, terms);
    if (denom != nullptr) denom[e] = d;
    if (y != nullptr) {
      y[e] = static_cast<T>(static_cast<A>(x[e]) * any_factor(terms, d, inverse));
    }
  }
}

// math    t = dy·denom^-beta·x/denom
// grid    threads step over the elements
// order   as forward
template <class T>
__global__ void __launch_bounds__(kThreads)
    local_response_norm_backward_terms(const T* x, const T* dy, acc_t<T>* t, Channels g,
                                       ResponseTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  for (int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x; e < g.count;
       e += int64_t{gridDim.x} * kThreads) {
    A inverse;
    const A factor = any_factor(terms, any_denom(x, e, g, terms), inverse);
    t[e] = static_cast<A>(dy[e]) * factor * (static_cast<A>(x[e]) * inverse);
  }
}

// math    dx = dy·denom^-beta - second·x·Σ t over the mirrored window
// grid    threads step over the elements
// bytes   3Eb + two passes over t, in acc_t
// order   as forward
template <class T>
__global__ void __launch_bounds__(kThreads)
    local_response_norm_backward_apply(const T* x, const T* dy, const acc_t<T>* t, T* dx,
                                       Channels g, ResponseTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  for (int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x; e < g.count;
       e += int64_t{gridDim.x} * kThreads) {
    A inverse, sum = A(0);
    const A factor = any_factor(terms, any_denom(x, e, g, terms), inverse);
    const int64_t c = g.channel(e), end = min(g.c, c + g.before + 1);
    for (int64_t j = max(int64_t{0}, c - g.after); j < end; ++j) sum += t[e + (j - c) * g.stride];
    const A others = terms.second * (static_cast<A>(x[e]) * sum);
    dx[e] = static_cast<T>(static_cast<A>(dy[e]) * factor - others);
  }
}

Channels channels_of(const Geometry& g) {
  return {g.n * g.c * g.s, g.c, g.channels_last ? 1 : g.s, g.before, g.after};
}

template <class T>
void forward_any(Cuda& cuda, const LocalResponseNormForward& args, const Geometry& g) {
  using A = acc_t<T>;
  const Channels channels = channels_of(g);
  local_response_norm_forward_thread_per_element<T>
      <<<stepping_blocks(channels.count, kThreads), kThreads, 0, cuda.stream()>>>(
          args.x.as<T>(), args.y.as<T>(), args.denom.as<A>(), channels, ResponseTerms<A>(args));
}

template <class T>
void backward_any(Cuda& cuda, const LocalResponseNormBackward& args, const Geometry& g) {
  using A = acc_t<T>;
  const ResponseTerms<A> terms(args);
  Channels channels = channels_of(g);
  const int64_t sample = g.c * g.s;
  const int64_t at_once =
      std::min(g.n, response_samples_at_once(sample * static_cast<int64_t>(sizeof(A))));
  A* t = static_cast<A*>(cuda.workspace(static_cast<size_t>(at_once * sample) * sizeof(A)));
  for (int64_t n = 0; n < g.n; n += at_once) {
    channels.count = std::min(at_once, g.n - n) * sample;
    const unsigned blocks = stepping_blocks(channels.count, kThreads);
    const T *x = args.x.as<T>() + n * sample, *dy = args.dy.as<T>() + n * sample;
    local_response_norm_backward_terms<T>
        <<<blocks, kThreads, 0, cuda.stream()>>>(x, dy, t, channels, terms);
    local_response_norm_backward_apply<T><<<blocks, kThreads, 0, cuda.stream()>>>(
        x, dy, t, args.dx.as<T>() + n * sample, channels, terms);
  }
}

// ---- sizes 3, 5 and 7 --------------------------------------------------------------------------

// Pixels of a thread in the backward pass: few, of many channels.
inline constexpr int kBackwardPack = 2;

// Channels, windows and the last tile included, and pixels of one are counted in 32 bits there.
constexpr int64_t kMost = INT32_MAX - 1024;

// Calls f(constant W) and returns true, or returns false where there is no kernel of that size.
template <class F>
bool with_size(int64_t size, double beta, const Geometry& g, F&& f) {
  if (response_power(beta) == ResponsePower::other || g.c > kMost || g.s > kMost) return false;
  if (size == 3) return f(std::integral_constant<int, 3>());
  if (size == 5) return f(std::integral_constant<int, 5>());
  return size == 7 && f(std::integral_constant<int, 7>());
}

LaunchShape tile_shape(const ResponseTiles& plan) {
  return {.grid = exact_blocks(plan.blocks, kOp), .threads = ResponseTiles::kLanes * plan.groups};
}

ResponseRows rows_of(const Geometry& g, int width) {
  return {g.n * g.s * g.c / width, FastDivisor(static_cast<uint32_t>(g.c / width))};
}

template <class T>
bool forward_sized(Cuda& cuda, const LocalResponseNormForward& args, const Geometry& g) {
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  const ResponseTerms<acc_t<T>> terms(args);
  constexpr int kWide = kFullPack<T>;
  const bool wide = pack_width(sizeof(T), {x, y}, {g.channels_last ? g.c : g.s}) == kWide;
  return with_size(args.size, args.beta, g, [&](auto size) {
    constexpr int W = size();
    if (g.channels_last) {
      if (!wide) return false;
      const ResponseRows plan = rows_of(g, kWide);
      launch_kernel(cuda, {exact_blocks(ceil_div(plan.packs, kThreads), kOp), kThreads},
                    local_response_norm_forward_thread_per_channels<T, kWide, W>, x, y, plan,
                    terms);
      return true;
    }
    const auto go = [&](auto width) {
      constexpr int N = width();
      const ResponseTiles plan = plan_response_tiles(g.n, g.c, g.s, N, kResponseChannels);
      const auto kernel = terms.usual()
                              ? local_response_norm_forward_thread_per_pixels<T, N, W, true>
                              : local_response_norm_forward_thread_per_pixels<T, N, W, false>;
      launch_overlapping(cuda, tile_shape(plan), kernel, x, y, static_cast<int>(g.c), g.s, plan,
                         terms);
    };
    if (wide) {
      go(std::integral_constant<int, kWide>());
    } else {
      go(std::integral_constant<int, 1>());
    }
    return true;
  });
}

template <class T>
bool backward_sized(Cuda& cuda, const LocalResponseNormBackward& args, const Geometry& g) {
  const T *x = args.x.as<T>(), *dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  const ResponseTerms<acc_t<T>> terms(args);
  const int64_t row = g.channels_last ? g.c : g.s;
  const int fits = pack_width(sizeof(T), {x, dy, dx}, {row});
  return with_size(args.size, args.beta, g, [&](auto size) {
    constexpr int W = size();
    if (g.channels_last) {
      if (fits != kFullPack<T>) return false;
      const ResponseRows plan = rows_of(g, kFullPack<T>);
      launch_kernel(cuda, {exact_blocks(ceil_div(plan.packs, kThreads), kOp), kThreads},
                    local_response_norm_backward_thread_per_channels<T, kFullPack<T>, W>, x, dy, dx,
                    plan, terms);
      return true;
    }
    const auto go = [&](auto width) {
      constexpr int N = width(), kThreadsOf = kBackwardThreads<T>;
      const ResponseTiles plan =
          plan_response_tiles(g.n, g.c, g.s, N, kBackwardChannels<T>, kThreadsOf);
      auto kernel = local_response_norm_backward_thread_per_pixels<T, N, W, false>;
      if constexpr (sizeof(T) != 8) {
        if (terms.usual()) kernel = local_response_norm_backward_thread_per_pixels<T, N, W, true>;
      }
      launch_overlapping(cuda, tile_shape(plan), kernel, x, dy, dx, static_cast<int>(g.c), g.s,
                         plan, terms);
    };
    if (fits >= kBackwardPack) {
      go(std::integral_constant<int, kBackwardPack>());
    } else {
      go(std::integral_constant<int, 1>());
    }
    return true;
  });
}

}  // namespace

void run(Cuda& cuda, const LocalResponseNormForward& args) {
  if (args.x.numel() == 0) return;
  const Geometry g = local_response_norm_geometry(args.x, args.size);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.denom || !forward_sized<T>(cuda, args, g)) forward_any<T>(cuda, args, g);
  });
}

void run(Cuda& cuda, const LocalResponseNormBackward& args) {
  if (args.x.numel() == 0) return;
  const Geometry g = local_response_norm_geometry(args.x, args.size);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (!backward_sized<T>(cuda, args, g)) backward_any<T>(cuda, args, g);
  });
}

}  // namespace gradus
