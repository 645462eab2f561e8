#include "core/ops/matmul.h"

#include "cpu/dispatch.h"
#include "cpu/eigen.h"
#include "cpu/lanes.h"
#include "cpu/parallel.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {
namespace {

// How y is cut: tiles of rows x cols, and k into slices of `depth` whose partial products are added
// in order. A function of the shape only.
struct Plan {
  int64_t rows, cols, depth;
  int64_t row_tiles, col_tiles, slices;

  Plan(int64_t batch, int64_t m, int64_t n, int64_t k) : rows(128), cols(256), depth(k) {
    constexpr int64_t kTasks = 8;       // enough to keep a small team busy
    constexpr int64_t kMinDepth = 512;  // shorter slices lose more than they gain
    const auto tasks = [&] { return batch * tiles(m, rows) * tiles(n, cols); };
    if (tasks() < kTasks) cols = 128;
    const int64_t wanted = std::min(tiles(kTasks, std::max<int64_t>(tasks(), 1)), k / kMinDepth);
    slices = std::max<int64_t>(wanted, 1);
    if (tasks() * slices < kTasks / 2) rows = cols = 64;
    if (slices > 1) depth = tiles(tiles(k, slices), 16) * 16;
    slices = std::max<int64_t>(tiles(k, depth), 1);
    row_tiles = tiles(m, rows);
    col_tiles = tiles(n, cols);
  }

  static int64_t tiles(int64_t count, int64_t size) {
    return size == 0 ? 0 : (count + size - 1) / size;
  }
};

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using ConstMap = Eigen::Map<const Matrix<T>, 0, Eigen::OuterStride<>>;

// A batch of matrices in the type that is computed in.
template <class T>
struct Operand {
  const T* data;
  MatrixLayout layout;

  const T* at(int64_t batch, int64_t row, int64_t col) const {
    return data + batch * layout.batch_stride +
           (layout.transposed ? row + col * layout.ld : row * layout.ld + col);
  }
  // The block as it is stored: transposed where the layout is.
  ConstMap<T> stored(int64_t batch, int64_t row, int64_t col, int64_t rows, int64_t cols) const {
    const bool swap = layout.transposed;
    return ConstMap<T>(at(batch, row, col), swap ? cols : rows, swap ? rows : cols,
                       Eigen::OuterStride<>(layout.ld));
  }
};

// y += a·b for one block.
template <class Y, class T>
void add_product(Y& y, const Operand<T>& a, const Operand<T>& b, const ConstMap<T>& a_block,
                 const ConstMap<T>& b_block) {
  if (a.layout.transposed && b.layout.transposed) {
    y.noalias() += a_block.transpose() * b_block.transpose();
  } else if (a.layout.transposed) {
    y.noalias() += a_block.transpose() * b_block;
  } else if (b.layout.transposed) {
    y.noalias() += a_block * b_block.transpose();
  } else {
    y.noalias() += a_block * b_block;
  }
}

// y[slice, batch, m, n] = the product over each slice of k, plus bias in slice 0.
template <class T>
void multiply(Cpu& cpu, const Plan& plan, const Operand<T>& a, const Operand<T>& b, const T* bias,
              T* y) {
  const int64_t m = a.layout.rows, n = b.layout.cols, k = a.layout.cols;
  const int64_t tiles = plan.row_tiles * plan.col_tiles, batches = a.layout.batch;
  cpu.parallel(plan.slices * batches * tiles, [&](int64_t task) {
    const int64_t row = task / plan.col_tiles % plan.row_tiles * plan.rows;
    const int64_t col = task % plan.col_tiles * plan.cols;
    const int64_t batch = task / tiles % batches, slice = task / tiles / batches;
    const int64_t rows = std::min(plan.rows, m - row), cols = std::min(plan.cols, n - col);
    const int64_t first = slice * plan.depth, depth = std::min(plan.depth, k - first);
    Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>> block(
        y + ((slice * batches + batch) * m + row) * n + col, rows, cols, Eigen::OuterStride<>(n));
    if (bias != nullptr && slice == 0) {
      block.rowwise() = Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>>(bias + col, cols);
    } else {
      block.setZero();
    }
    if (depth == 0) return;
    add_product(block, a, b, a.stored(batch, row, first, rows, depth),
                b.stored(batch, first, col, depth, cols));
  });
}

// y = the sum of the slices, in order, rounded once.
template <class T, class Y>
void add_slices(Cpu& cpu, const T* partial, int64_t slices, int64_t count, Y* y) {
  parallel_tiles(cpu, count, kTile, [&](int64_t begin, int64_t end) {
    for_each_lanes<T>(end - begin, [&](int64_t i, auto lanes, int) {
      const T* first = partial + begin + i;
      Lanes<T> total = load(first, lanes);
      for (int64_t slice = 1; slice < slices; ++slice) total += load(first + slice * count, lanes);
      store(y + begin + i, total, lanes);
    });
  });
}

// A 16-bit operand as float, in its own order without gaps; others as they are.
template <class T>
class Widened {
 public:
  Widened(Cpu& cpu, const AnyView& view)
      : layout_(matrix_layout(view, Matmul::name)),
        buffer_(cpu, std::is_same_v<T, acc_t<T>> ? 0 : view.numel()) {
    const T* data = view.as<T>();
    if constexpr (std::is_same_v<T, acc_t<T>>) {
      operand_ = {data, layout_};
    } else {
      const int64_t lines = layout_.transposed ? layout_.cols : layout_.rows;
      const int64_t length = layout_.transposed ? layout_.rows : layout_.cols;
      const int64_t per_tile = std::max<int64_t>(1, kTile / std::max<int64_t>(length, 1));
      parallel_tiles(cpu, layout_.batch * lines, per_tile, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const T* from = data + i / lines * layout_.batch_stride + i % lines * layout_.ld;
          float* to = buffer_.data() + i * length;
          for_each_lanes<float>(length, [&](int64_t j, auto lanes, int) {
            store(to + j, load(from + j, lanes), lanes);
          });
        }
      });
      layout_.ld = std::max<int64_t>(length, 1);
      layout_.batch_stride = lines * length;
      operand_ = {buffer_.data(), layout_};
    }
  }
  const Operand<acc_t<T>>& operand() const { return operand_; }

 private:
  MatrixLayout layout_;
  Workspace<acc_t<T>> buffer_;
  Operand<acc_t<T>> operand_;
};

}  // namespace

void run(Cpu& cpu, const Matmul& args) {
  if (args.y.numel() == 0) return;
  visit(Floating{}, args.a.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Acc = acc_t<T>;
    const Widened<T> a(cpu, args.a), b(cpu, args.b);
    const MatrixLayout& left = a.operand().layout;
    const Plan plan(left.batch, left.rows, b.operand().layout.cols, left.cols);
    const bool is_acc = args.y.dtype == dtype_of<Acc>;
    const bool direct = is_acc && plan.slices == 1;
    const int64_t count = args.y.numel();
    const Workspace<Acc> partial(cpu, direct ? 0 : plan.slices * count);
    Acc* product = direct ? args.y.as<Acc>() : partial.data();
    multiply(cpu, plan, a.operand(), b.operand(), args.bias.as<Acc>(), product);
    if (direct) return;
    if (is_acc) {
      add_slices(cpu, partial.data(), plan.slices, count, args.y.as<Acc>());
    } else {
      add_slices(cpu, partial.data(), plan.slices, count, args.y.as<T>());
    }
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(Matmul)
