#include "core/ops/matmul.h"

#include <algorithm>

namespace gradus {
namespace {

// Whether element (i, j) of rows x cols lies at i·row_stride + j; then ld is the row stride.
bool is_row_major(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
  return (cols <= 1 || col_stride == 1) && (rows <= 1 || row_stride >= std::max<int64_t>(cols, 1));
}

int64_t leading_dimension(int64_t rows, int64_t cols, int64_t row_stride) {
  return rows <= 1 ? std::max<int64_t>(cols, 1) : row_stride;
}

}  // namespace

bool is_matrix(const AnyView& view) {
  const int rank = view.shape.rank();
  if (rank != 2 && rank != 3) return false;
  if (view.numel() == 0) return true;
  const int64_t rows = view.shape[rank - 2], cols = view.shape[rank - 1];
  const int64_t row_stride = view.strides[rank - 2], col_stride = view.strides[rank - 1];
  return is_row_major(rows, cols, row_stride, col_stride) ||
         is_row_major(cols, rows, col_stride, row_stride);
}

MatrixLayout matrix_layout(const AnyView& view, std::string_view op) {
  check(is_matrix(view), op, "expected matrices whose rows or columns are contiguous, got ", view,
        " with strides ", view.strides);
  const int rank = view.shape.rank();
  MatrixLayout layout;
  layout.rows = view.shape[rank - 2];
  layout.cols = view.shape[rank - 1];
  if (rank == 3) {
    layout.batch = view.shape[0];
    layout.batch_stride = layout.batch > 1 ? view.strides[0] : 0;
  }
  if (view.numel() == 0) {
    layout.ld = std::max<int64_t>(layout.cols, 1);
    return layout;
  }
  const int64_t row_stride = view.strides[rank - 2], col_stride = view.strides[rank - 1];
  layout.transposed = !is_row_major(layout.rows, layout.cols, row_stride, col_stride);
  layout.ld = layout.transposed ? leading_dimension(layout.cols, layout.rows, col_stride)
                                : leading_dimension(layout.rows, layout.cols, row_stride);
  return layout;
}

}  // namespace gradus
