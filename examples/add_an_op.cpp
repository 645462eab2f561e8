// An op of one's own in a program of one's own, in one file: gradus itself is not touched, and only
// its installed headers are used.
//
//   add_an_op [cpu|cuda|cuda:N]
//
// The op is snake, y = x + sin²(a·x)/a, from https://arxiv.org/abs/2006.08195. Where the file is
// compiled as CUDA it runs on both devices, else on the CPU; examples/CMakeLists.txt shows how.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "autograd/gradcheck.h"
#include "autograd/node.h"
#include "autograd/ops/sum.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "cpu/context.h"
#include "cuda/context.h"

namespace mine {

using namespace gradus;

// ---- 1 The contract: the formula, once for both devices, and what a kernel is given -------------

template <class A>
GRADUS_HD A snake_value(A x, A a) {
  const A s = std::sin(a * x);
  return x + s * s / a;
}

// dx = dy·(1 + sin(2·a·x))
template <class A>
GRADUS_HD A snake_gradient(A x, A dy, A a) {
  return dy * (A(1) + std::sin(A(2) * a * x));
}

// Without a CUDA compiler the op has no dtypes there, so that launch() says `unsupported`.
#ifdef __CUDACC__
constexpr DTypeSet kOnCuda = kFloating;
#else
constexpr DTypeSet kOnCuda{};
#endif

struct SnakeForward {
  static constexpr std::string_view name = "snake_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kOnCuda};

  AnyView x;  // any shape, dense
  AnyView y;  // like x
  double a = 1.0;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, y); }
  int64_t bytes() const { return x.nbytes() + y.nbytes(); }
  int64_t flops() const { return 5 * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

struct SnakeBackward {
  static constexpr std::string_view name = "snake_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kOnCuda};

  AnyView x;   // any shape, dense
  AnyView dy;  // like x
  AnyView dx;  // like x
  double a = 1.0;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, dy, dx); }
  int64_t bytes() const { return x.nbytes() + dy.nbytes() + dx.nbytes(); }
  int64_t flops() const { return 5 * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

// ---- 2 The CPU's kernels ------------------------------------------------------------------------

// Calls f(i) for each element, in tiles that the threads share.
template <class F>
void for_each_element(Cpu& cpu, int64_t count, F&& f) {
  constexpr int64_t kTile = 16384;
  cpu.parallel((count + kTile - 1) / kTile, [&](int64_t tile) {
    const int64_t end = std::min(count, (tile + 1) * kTile);
    for (int64_t i = tile * kTile; i < end; ++i) f(i);
  });
}

void run(Cpu& cpu, const SnakeForward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;  // float for 16-bit elements
    const T* x = args.x.as<T>();
    T* y = args.y.as<T>();
    const A a = static_cast<A>(args.a);
    for_each_element(cpu, args.x.numel(), [&](int64_t i) {
      y[i] = static_cast<T>(snake_value(static_cast<A>(x[i]), a));
    });
  });
}

void run(Cpu& cpu, const SnakeBackward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    const T *x = args.x.as<T>(), *dy = args.dy.as<T>();
    T* dx = args.dx.as<T>();
    const A a = static_cast<A>(args.a);
    for_each_element(cpu, args.x.numel(), [&](int64_t i) {
      dx[i] = static_cast<T>(snake_gradient(static_cast<A>(x[i]), static_cast<A>(dy[i]), a));
    });
  });
}

// ---- 3 The GPU's kernels ------------------------------------------------------------------------

#ifdef __CUDACC__
constexpr int kThreads = 256;

unsigned blocks_for(int64_t count) {  // each thread steps over the whole grid
  return static_cast<unsigned>(std::min<int64_t>((count + kThreads - 1) / kThreads, 65536));
}

template <class T, class A>
__global__ void snake_forward(T* y, const T* x, A a, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    y[i] = static_cast<T>(snake_value(static_cast<A>(x[i]), a));
  }
}

template <class T, class A>
__global__ void snake_backward(T* dx, const T* x, const T* dy, A a, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    dx[i] = static_cast<T>(snake_gradient(static_cast<A>(x[i]), static_cast<A>(dy[i]), a));
  }
}

void run(Cuda& cuda, const SnakeForward& args) {
  const int64_t count = args.x.numel();
  if (count == 0) return;  // a grid of no blocks is an error
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    snake_forward<<<blocks_for(count), kThreads, 0, cuda.stream()>>>(
        args.y.as<T>(), args.x.as<T>(), static_cast<acc_t<T>>(args.a), count);
  });
}

void run(Cuda& cuda, const SnakeBackward& args) {
  const int64_t count = args.x.numel();
  if (count == 0) return;
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    snake_backward<<<blocks_for(count), kThreads, 0, cuda.stream()>>>(
        args.dx.as<T>(), args.x.as<T>(), args.dy.as<T>(), static_cast<acc_t<T>>(args.a), count);
  });
}
#else
void run(Cuda&, const SnakeForward&) {}  // never called: launch() has refused
void run(Cuda&, const SnakeBackward&) {}
#endif

// ---- 4 The function, and below it its backward --------------------------------------------------

struct SnakeNode final : Node {
  Saved x;
  double a = 1.0;

  std::string_view name() const override { return "snake"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

// x: any shape and strides, floating. a is above 0.
Tensor snake(const Tensor& input, double a = 1.0) {
  check(is_floating(input.dtype()), "snake", "expected a floating dtype, got ", input);
  check(a > 0, "snake", "a must be above 0, got ", a);
  const Tensor x =
      dense(input, input.options().format);  // a copy only where the strides ask for it
  Tensor y = empty_like(x);
  launch(SnakeForward{.x = x.raw(), .y = y.raw(), .a = a});
  if (auto node = make_node<SnakeNode>(input)) {
    node->x = Saved(x);
    node->a = a;
    attach(y, std::move(node));
  }
  return y;
}

void SnakeNode::backward(const Tensor& upstream, Gradients& grads) {
  const Tensor x = this->x.get(name(), "x");
  const Tensor dy = dense(upstream, x.options().format);
  const Tensor dx = empty_like(x);
  launch(SnakeBackward{.x = x.raw(), .dy = dy.raw(), .dx = dx.raw(), .a = a});
  grads.set(0, dx);
}

}  // namespace mine

// ---- 5 Its use, and the check that every op should have -----------------------------------------

namespace {

// The largest |got - want| of value and gradient over a few numbers, against the formula in f64.
double largest_error(gradus::DType dtype, gradus::Device device) {
  const std::vector<double> values{-2.5, -1, -0.25, 0, 0.5, 1.75, 3};
  const gradus::Tensor x =
      gradus::Tensor::from_vector(values, {7}, {.dtype = dtype, .device = device})
          .set_requires_grad(true);
  const gradus::Tensor y = mine::snake(x, 0.5);
  sum(y).backward();
  const std::vector<double> got = y.to_vector<double>(), slope = x.grad().to_vector<double>();
  double error = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    error = std::max(error, std::abs(got[i] - mine::snake_value(values[i], 0.5)));
    error = std::max(error, std::abs(slope[i] - mine::snake_gradient(values[i], 1.0, 0.5)));
  }
  return error;
}

}  // namespace

int main(int argc, char** argv) try {
  using gradus::DType;
  const gradus::Device device = gradus::parse_device(argc > 1 ? argv[1] : "cpu");
  const gradus::Tensor x =
      gradus::Tensor::from_vector<double>({-2, -0.7, 0.1, 0.6, 1.5, 2.8}, {2, 3})
          .to(device)
          .set_requires_grad(true);
  const gradus::GradcheckResult check = gradus::gradcheck([&] { return mine::snake(x, 0.8); }, {x});
  std::printf("snake on %s: gradient check %s: %s", to_string(device).c_str(),
              check ? "passed" : "failed", check.text.c_str());
  bool ok = check.ok && check.has_power;
  const std::pair<DType, double> limits[] = {
      {DType::f32, 1e-6}, {DType::f64, 1e-14}, {DType::f16, 4e-3}, {DType::bf16, 3e-2}};
  for (const auto& [dtype, limit] : limits) {
    const double error = largest_error(dtype, device);
    std::printf("  %-4s largest error %.1e\n", std::string(to_string(dtype)).c_str(), error);
    ok = ok && error <= limit;
  }
  return ok ? 0 : 1;
} catch (const gradus::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
