// Shapes, strides (in elements) and memory formats of tensors of rank 0 to 8.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "core/host_device.h"

namespace gradus {

inline constexpr int kMaxRank = 8;

// Up to eight extents or strides, by value: small enough to hand to a kernel.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims);  // throws beyond rank 8
  static Shape filled(int rank, int64_t value);

  GRADUS_HD int rank() const { return rank_; }
  GRADUS_HD int64_t operator[](int dim) const { return dims_[dim]; }
  GRADUS_HD int64_t& operator[](int dim) { return dims_[dim]; }
  const int64_t* begin() const { return dims_; }
  const int64_t* end() const { return dims_ + rank_; }

  // Product of the extents; 1 for rank 0.
  GRADUS_HD int64_t numel() const {
    int64_t count = 1;
    for (int i = 0; i < rank_; ++i) count *= dims_[i];
    return count;
  }

  void append(int64_t value);  // throws beyond rank 8
  friend bool operator==(const Shape& a, const Shape& b);

 private:
  int64_t dims_[kMaxRank] = {};
  int rank_ = 0;
};

using Strides = Shape;

// "[8,30,14,14]".
std::string to_string(const Shape& shape);

// contiguous: row-major (NCHW). channels_last: rank 4 only, stored as NHWC.
enum class MemoryFormat : uint8_t { contiguous, channels_last };

std::string_view to_string(MemoryFormat format);

Strides strides_of(const Shape& shape, MemoryFormat format = MemoryFormat::contiguous);

// Whether `strides` address `shape` without gaps in `format`; extents of 1 do not count.
bool is_dense(const Shape& shape, const Strides& strides, MemoryFormat format);

// The shape that both broadcast to (trailing axes aligned); throws naming `op` and both shapes.
Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op);

// Strides with which a tensor of `shape` reads as `target`: 0 along the axes it is repeated over.
Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& target);

// Axis counted from the back when negative; throws naming `op` when outside [-rank, rank).
int normalize_axis(int axis, int rank, std::string_view op);

// Product of extents, or an error when it does not fit 63 bits.
int64_t checked_numel(const Shape& shape, std::string_view op);

}  // namespace gradus
