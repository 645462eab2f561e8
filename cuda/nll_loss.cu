#include "core/ops/nll_loss.h"

#include "cuda/check.h"
#include "cuda/context.h"
#include "cuda/labels.cuh"
#include "cuda/plan.h"

namespace gradus {
namespace {

constexpr int kThreads = 256;

// ---- forward ------------------------------------------------------------------------------------

template <class T>
struct ForwardInput {
  const T* x;
  ClassRows shape;
  LabelView labels;
  const acc_t<T>* weight;  // null for 1
  int64_t ignore_index;
};

// math:  core/ops/nll_loss.h
// grid:  1-D, one block per chunk of rows, at most 1024; a thread per row
// bytes: labels and one element of x per row, of which memory moves a sector of 32 bytes
// order: rows of a chunk by the thread that takes them, then the block's tree, all in f64
template <class T>
__global__ void __launch_bounds__(kThreads)
    nll_loss_forward_thread_per_row(const ForwardInput<T> in, int64_t chunk,
                                    LabelResult<acc_t<T>> result, LabelPart* parts) {
  using A = acc_t<T>;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk;
  const int64_t end = begin + chunk < in.shape.rows ? begin + chunk : in.shape.rows;
  LabelPart part;
  for (int64_t row = begin + threadIdx.x; row < end; row += kThreads) {
    const int64_t label = in.labels[row];
    A loss = 0;
    if (label != in.ignore_index) {
      if (label < 0 || label >= in.shape.c) {
        loss = A(NAN);
        part.wrong = FirstOp{}(part.wrong, row);
      } else {
        const A weight = in.weight == nullptr ? A(1) : in.weight[label];
        loss = -weight * static_cast<A>(in.x[row_offset(in.shape, row) + label * in.shape.inner]);
        part.weight += static_cast<double>(weight);
      }
    }
    if (result.row_loss != nullptr) result.row_loss[row] = loss;
    part.loss += static_cast<double>(loss);
  }
  part = reduce_part(part);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) {
    finish(result, part, in.labels, in.shape.c);
  } else {
    parts[blockIdx.x] = part;
  }
}

// grid:  one block
// order: each thread its parts from first to last, then the block's tree
template <class A>
__global__ void __launch_bounds__(kThreads)
    nll_loss_forward_finish(const LabelPart* parts, int64_t count, LabelResult<A> result,
                            LabelView labels, int64_t c) {
  LabelPart all;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    all.loss += parts[i].loss;
    all.weight += parts[i].weight;
    all.wrong = FirstOp{}(all.wrong, parts[i].wrong);
  }
  all = reduce_part(all);
  if (threadIdx.x == 0) finish(result, all, labels, c);
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

// math:  core/ops/nll_loss.h; dx is 0 already
// grid:  1-D, a thread per row
// bytes: with the zeros before it, fewest + at most a sector of 32 bytes per row, in L2 for the
//        most part
// order: none
template <class T>
__global__ void __launch_bounds__(kThreads)
    nll_loss_backward_thread_per_row(const BackwardInput<T> in, T* dx) {
  using A = acc_t<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= in.shape.rows) return;
  const int64_t label = in.labels[row];
  if (label == in.ignore_index) return;
  const int64_t offset = row_offset(in.shape, row);
  if (label < 0 || label >= in.shape.c) {
    for (int64_t k = 0; k < in.shape.c; ++k)
      dx[offset + k * in.shape.inner] = static_cast<T>(A(NAN));
    return;
  }
  A d = in.dy[row * in.dy_stride];
  if (in.divisor != nullptr) d /= *in.divisor;
  const A weight = in.weight == nullptr ? A(1) : in.weight[label];
  dx[offset + label * in.shape.inner] = static_cast<T>(-weight * d);
}

template <class T>
void forward(Cuda& cuda, const NllLossForward& args) {
  using A = acc_t<T>;
  const ClassRows shape = class_rows(args.x, args.name);
  const bool is_none = args.reduction == Reduction::none;
  const LabelResult<A> result{.row_loss = is_none ? args.loss.as<A>() : nullptr,
                              .total = is_none ? nullptr : args.loss.as<A>(),
                              .divisor = args.divisor.as<A>(),
                              .fault = cuda.fault(),
                              .kind = Fault::Kind::nll_label};
  const ForwardInput<T> in{.x = args.x.as<T>(),
                           .shape = shape,
                           .labels = {args.labels.data, args.labels.dtype},
                           .weight = args.weight.as<A>(),
                           .ignore_index = args.ignore_index};
  const Chunks chunks = plan_chunks(shape.rows, 4 * kThreads, 1024, kThreads);
  LabelPart* parts = nullptr;
  if (chunks.count > 1) {
    const size_t bytes = static_cast<size_t>(chunks.count) * sizeof(LabelPart);
    parts = static_cast<LabelPart*>(cuda.workspace(bytes));
  }
  if (chunks.count > 0) {
    nll_loss_forward_thread_per_row<<<exact_blocks(chunks.count, args.name), kThreads, 0,
                                      cuda.stream()>>>(in, chunks.size, result, parts);
  }
  if (chunks.count != 1) {
    nll_loss_forward_finish<<<1, kThreads, 0, cuda.stream()>>>(parts, chunks.count, result,
                                                               in.labels, shape.c);
  }
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
  const size_t bytes = static_cast<size_t>(args.dx.nbytes());
  cuda_check(cuda, cudaMemsetAsync(dx, 0, bytes, cuda.stream()), args.name);
  nll_loss_backward_thread_per_row<<<exact_blocks(ceil_div(shape.rows, kThreads), args.name),
                                     kThreads, 0, cuda.stream()>>>(in, dx);
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
