#include "core/ops/nll_loss.h"

#include <cstring>

#include "cpu/dispatch.h"
#include "cpu/labels.h"
#include "cpu/loops.h"
#include "cpu/parallel.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {
namespace {

constexpr int64_t kRows = 1024;  // of one tile

template <class T>
RowTotal forward_rows(const NllLossForward& args, const ClassRows& shape, int64_t begin,
                      int64_t end) {
  using A = acc_t<T>;
  const T* x = args.x.as<T>();
  RowTotal total;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t label = label_at(args.labels, row);
    A loss = 0, weight = 0;
    if (label != args.ignore_index) {
      weight = weight_at<A>(args.weight, label);
      loss = -weight * load(x[row_offset(shape, row) + label * shape.inner]);
    }
    if (args.reduction == Reduction::none) args.loss.as<A>()[row] = loss;
    total.loss += static_cast<double>(loss);
    total.weight += static_cast<double>(weight);
  }
  return total;
}

template <class T>
void forward(Cpu& cpu, const NllLossForward& args) {
  using A = acc_t<T>;
  const ClassRows shape = class_rows(args.x, args.name);
  const int64_t tiles = (shape.rows + kRows - 1) / kRows;
  const Workspace<RowTotal> totals(cpu, tiles);
  parallel_tiles(cpu, shape.rows, kRows, [&](int64_t begin, int64_t end) {
    totals.data()[begin / kRows] = forward_rows<T>(args, shape, begin, end);
  });
  write_loss<A>(args, totals.data(), tiles);
}

template <class T>
void backward(Cpu& cpu, const NllLossBackward& args) {
  using A = acc_t<T>;
  const ClassRows shape = class_rows(args.dx, args.name);
  T* dx = args.dx.as<T>();
  // A tile holds whole images, or rows where inner is 1, so that its elements lie together. The
  // labels have been checked.
  const int64_t images = shape.inner == 0 ? 0 : shape.rows / shape.inner;
  const int64_t size = shape.c * shape.inner;
  const int64_t per_tile = std::max<int64_t>(1, kTile / std::max<int64_t>(size, 1));
  parallel_tiles(cpu, images, per_tile, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<void*>(dx + begin * size), 0,
                static_cast<size_t>((end - begin) * size) * sizeof(T));
    for (int64_t row = begin * shape.inner; row < end * shape.inner; ++row) {
      const int64_t label = label_at(args.labels, row);
      if (label == args.ignore_index) continue;
      A d = args.dy.as<A>()[args.reduction == Reduction::none ? row : 0];
      if (args.reduction == Reduction::mean) d /= *args.divisor.as<A>();
      const A gradient = -weight_at<A>(args.weight, label) * d;
      dx[row_offset(shape, row) + label * shape.inner] = static_cast<T>(gradient);
    }
  });
}

}  // namespace

void run(Cpu& cpu, const NllLossForward& args) {
  check_host_labels(Fault::Kind::nll_label, args.labels, args.x.shape[1], args.ignore_index);
  visit(Floating{}, args.x.dtype,
        [&](auto type) { forward<typename decltype(type)::type>(cpu, args); });
}

void run(Cpu& cpu, const NllLossBackward& args) {
  visit(Floating{}, args.dx.dtype,
        [&](auto type) { backward<typename decltype(type)::type>(cpu, args); });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(NllLossForward)
GRADUS_DISPATCH(NllLossBackward)
