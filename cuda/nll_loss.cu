#include "core/ops/nll_loss.h"

#include "cuda/context.h"
#include "cuda/device/vector.cuh"
#include "cuda/labels.cuh"
#include "cuda/plan.h"

namespace gradus {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 4;  // of a thread at a time

// ---- forward ------------------------------------------------------------------------------------

template <class T>
struct ForwardInput {
  const T* x;
  ClassRows shape;
  LabelView labels;
  const acc_t<T>* weight;  // null for 1
  int64_t ignore_index;
};

// What one row adds.
template <class T>
struct RowTerm {
  acc_t<T> loss = 0, weight = 0;
  bool is_wrong = false;
};

template <class T>
__device__ RowTerm<T> term_of(const ForwardInput<T>& in, int64_t row, int64_t label) {
  using A = acc_t<T>;
  if (label == in.ignore_index) return {};
  if (label < 0 || label >= in.shape.c) return {A(NAN), A(0), true};
  const A weight = in.weight == nullptr ? A(1) : in.weight[label];
  const A x = static_cast<A>(in.x[row_offset(in.shape, row) + label * in.shape.inner]);
  return {-weight * x, weight, false};
}

// math:  core/ops/nll_loss.h
// grid:  1-D, one block per chunk of rows, at most 1024; a thread takes kRows rows at a time, so
//        that their labels, and then their elements of x, are asked for together
// bytes: labels and one element of x per row, of which memory moves a sector of 32 bytes
// order: rows of a chunk by the thread that takes them, then the block's tree, all in f64
template <class T>
__global__ void __launch_bounds__(kThreads)
    nll_loss_forward_thread_per_row(const ForwardInput<T> in, int64_t chunk,
                                    LabelResult<acc_t<T>> result, LabelPart* parts) {
  wait_for_previous_kernel();
  start_next_kernel();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk;
  const int64_t end = begin + chunk < in.shape.rows ? begin + chunk : in.shape.rows;
  LabelPart part;
  for (int64_t first = begin + threadIdx.x; first < end; first += kThreads * kRows) {
    int64_t labels[kRows];
    RowTerm<T> terms[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = first + i * kThreads;
      labels[i] = row < end ? in.labels[row] : in.ignore_index;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) terms[i] = term_of(in, first + i * kThreads, labels[i]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = first + i * kThreads;
      if (result.row_loss != nullptr && row < end) result.row_loss[row] = terms[i].loss;
      if (terms[i].is_wrong) part.wrong = FirstOp{}(part.wrong, row);
      part.loss += static_cast<double>(terms[i].loss);
      part.weight += static_cast<double>(terms[i].weight);
    }
  }
  leave_part(result, part, parts);
}

// ---- backward -----------------------------------------------------------------------------------

template <class T>
struct BackwardInput {
  using A = acc_t<T>;
  ClassRows shape;
  LabelView labels;
  const A* weight;   // null for 1
  const A* divisor;  // for mean, else null
  const A* dy;
  int64_t dy_stride;  // 1 for Reduction::none, else 0
  int64_t ignore_index;
};

constexpr int64_t kNoClass = -1, kEveryClass = -2;

// What a row's label gets: -d·w; no class of an ignored row, and every class NaN for a wrong label.
template <class A>
struct RowGradient {
  int64_t label;
  A own;
  __device__ A of(int64_t k) const { return k == label || label == kEveryClass ? own : A(0); }
};

template <class T>
__device__ RowGradient<acc_t<T>> gradient_of(const BackwardInput<T>& in, int64_t row) {
  using A = acc_t<T>;
  const int64_t label = in.labels[row];
  if (label == in.ignore_index) return {kNoClass, A(0)};
  if (label < 0 || label >= in.shape.c) return {kEveryClass, A(NAN)};
  A d = in.dy[row * in.dy_stride];
  if (in.divisor != nullptr) d /= *in.divisor;
  return {label, -(in.weight == nullptr ? A(1) : in.weight[label]) * d};
}

// math:  core/ops/nll_loss.h
// grid:  1-D, a thread per N neighbouring pixels of an image; it walks the classes
// bytes: fewest = actual: labels and dy read once, dx written once
// needs: inner a multiple of N, dx aligned to N elements
// order: none
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    nll_loss_backward_thread_per_pixels(const BackwardInput<T> in, T* dx) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (first >= in.shape.rows) return;
  RowGradient<acc_t<T>> rows[N];
#pragma unroll
  for (int i = 0; i < N; ++i) rows[i] = gradient_of(in, first + i);
  T* to = dx + row_offset(in.shape, first);
  for (int64_t k = 0; k < in.shape.c; ++k, to += in.shape.inner) {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack[i] = static_cast<T>(rows[i].of(k));
    store_pack(to, pack);
  }
}

// math:  core/ops/nll_loss.h
// grid:  1-D, a group of Lanes lanes per row; a lane writes N classes at a time
// bytes: fewest = actual: labels and dy read once, dx written once
// needs: inner 1; c a multiple of N, dx aligned to N elements
// order: none
template <int Lanes, int N, class T>
__global__ void __launch_bounds__(kThreads)
    nll_loss_backward_group_per_row(const BackwardInput<T> in, T* dx) {
  constexpr int groups = kThreads / Lanes;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * groups + threadIdx.x / Lanes;
  if (row >= in.shape.rows) return;
  const RowGradient<acc_t<T>> gradient = gradient_of(in, row);
  T* to = dx + row * in.shape.c;
  for (int64_t k = static_cast<int64_t>(threadIdx.x % Lanes) * N; k < in.shape.c; k += Lanes * N) {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack[i] = static_cast<T>(gradient.of(k + i));
    store_pack(to + k, pack);
  }
}

template <int N, class T>
void launch_backward(Cuda& cuda, const BackwardInput<T>& in, T* dx) {
  const ClassRows& shape = in.shape;
  if (shape.inner > 1) {
    const int64_t blocks = ceil_div(shape.rows, kThreads * N);
    nll_loss_backward_thread_per_pixels<N>
        <<<exact_blocks(blocks, NllLossBackward::name), kThreads, 0, cuda.stream()>>>(in, dx);
  } else if (shape.c > 16 * N) {
    const int64_t blocks = ceil_div(shape.rows, kThreads / 32);
    nll_loss_backward_group_per_row<32, N>
        <<<exact_blocks(blocks, NllLossBackward::name), kThreads, 0, cuda.stream()>>>(in, dx);
  } else {
    const int64_t blocks = ceil_div(shape.rows, kThreads / 4);
    nll_loss_backward_group_per_row<4, N>
        <<<exact_blocks(blocks, NllLossBackward::name), kThreads, 0, cuda.stream()>>>(in, dx);
  }
}

template <class T>
void forward(Cuda& cuda, const NllLossForward& args) {
  using A = acc_t<T>;
  const ClassRows shape = class_rows(args.x, args.name);
  const auto result = label_result<A>(cuda, args, shape.c, Fault::Kind::nll_label);
  const ForwardInput<T> in{.x = args.x.as<T>(),
                           .shape = shape,
                           .labels = {args.labels.data, args.labels.dtype},
                           .weight = args.weight.as<A>(),
                           .ignore_index = args.ignore_index};
  const Chunks chunks = plan_chunks(shape.rows, 4 * kThreads, 1024, kThreads);
  launch_label_loss(cuda, chunks, kThreads, args.name, nll_loss_forward_thread_per_row<T>, in,
                    result);
}

template <class T>
void backward(Cuda& cuda, const NllLossBackward& args) {
  using A = acc_t<T>;
  const ClassRows shape = class_rows(args.dx, args.name);
  const BackwardInput<T> in{.shape = shape,
                            .labels = {args.labels.data, args.labels.dtype},
                            .weight = args.weight.as<A>(),
                            .divisor = args.divisor.as<A>(),
                            .dy = args.dy.as<A>(),
                            .dy_stride = args.reduction == Reduction::none ? 1 : 0,
                            .ignore_index = args.ignore_index};
  T* dx = args.dx.as<T>();
  constexpr int N = kFullPack<T>;
  const int64_t length = shape.inner > 1 ? shape.inner : shape.c;
  if (pack_width(sizeof(T), {dx}, {length}) == N) {
    launch_backward<N>(cuda, in, dx);
  } else {
    launch_backward<1>(cuda, in, dx);
  }
}

}  // namespace

void run(Cuda& cuda, const NllLossForward& args) {
  visit(Floating{}, args.x.dtype,
        [&](auto type) { forward<typename decltype(type)::type>(cuda, args); });
}

void run(Cuda& cuda, const NllLossBackward& args) {
  if (args.dx.numel() == 0) return;
  visit(Floating{}, args.dx.dtype,
        [&](auto type) { backward<typename decltype(type)::type>(cuda, args); });
}

}  // namespace gradus
