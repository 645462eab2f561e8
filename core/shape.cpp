#include "core/shape.h"

#include <algorithm>

#include "core/error.h"

namespace gradus {

Shape::Shape(std::span<const int64_t> dims) {
  check(dims.size() <= kMaxRank, "shape", "rank must be at most ", kMaxRank, ", got ", dims.size());
  rank_ = static_cast<int>(dims.size());
  std::copy(dims.begin(), dims.end(), dims_);
}

Shape Shape::filled(int rank, int64_t value) {
  check(rank >= 0 && rank <= kMaxRank, "shape", "rank must be 0 to ", kMaxRank, ", got ", rank);
  Shape shape;
  shape.rank_ = rank;
  std::fill_n(shape.dims_, rank, value);
  return shape;
}

void Shape::append(int64_t value) {
  check(rank_ < kMaxRank, "shape", "rank must be at most ", kMaxRank);
  dims_[rank_++] = value;
}

bool operator==(const Shape& a, const Shape& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += concat(i ? "," : "", shape[i]);
  return text + "]";
}

std::string_view to_string(MemoryFormat format) {
  return format == MemoryFormat::contiguous ? "contiguous" : "channels_last";
}

Strides strides_of(const Shape& shape, MemoryFormat format) {
  Strides strides = Shape::filled(shape.rank(), 1);
  if (format == MemoryFormat::contiguous) {
    for (int i = shape.rank() - 2; i >= 0; --i) {
      strides[i] = strides[i + 1] * std::max<int64_t>(shape[i + 1], 1);
    }
    return strides;
  }
  check(shape.rank() == 4, "channels_last", "expected rank 4, got ", shape);
  const int64_t c = std::max<int64_t>(shape[1], 1), h = std::max<int64_t>(shape[2], 1),
                w = std::max<int64_t>(shape[3], 1);
  return {c * h * w, 1, c * w, c};
}

bool is_dense(const Shape& shape, const Strides& strides, MemoryFormat format) {
  if (format == MemoryFormat::channels_last && shape.rank() != 4) return false;
  if (shape.numel() == 0) return true;
  const Strides dense = strides_of(shape, format);
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] != 1 && strides[i] != dense[i]) return false;
  }
  return true;
}

Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op) {
  const int rank = std::max(a.rank(), b.rank());
  Shape result = Shape::filled(rank, 1);
  for (int i = 0; i < rank; ++i) {
    const int64_t da = i < rank - a.rank() ? 1 : a[i - (rank - a.rank())];
    const int64_t db = i < rank - b.rank() ? 1 : b[i - (rank - b.rank())];
    check(da == db || da == 1 || db == 1, op, "shapes ", a, " and ", b, " do not broadcast");
    result[i] = da == 1 ? db : da;
  }
  return result;
}

Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& target) {
  Strides result = Shape::filled(target.rank(), 0);
  const int lead = target.rank() - shape.rank();
  for (int i = 0; i < shape.rank(); ++i) {
    result[lead + i] = shape[i] == 1 && target[lead + i] != 1 ? 0 : strides[i];
  }
  return result;
}

int normalize_axis(int axis, int rank, std::string_view op) {
  check(axis >= -rank && axis < rank, op, "axis ", axis, " is outside a tensor of rank ", rank);
  return axis < 0 ? axis + rank : axis;
}

int64_t checked_numel(const Shape& shape, std::string_view op) {
  int64_t count = 1;  // with 1 for 0: strides, which are made so, must not overflow either
  bool empty = false;
  for (const int64_t extent : shape) {
    check(extent >= 0, op, "extents must not be negative, got ", shape);
    empty = empty || extent == 0;
    const bool overflow = __builtin_mul_overflow(count, std::max<int64_t>(extent, 1), &count);
    check(!overflow, op, "the number of elements of ", shape, " does not fit 63 bits");
  }
  return empty ? 0 : count;
}

}  // namespace gradus
