// Launch choices as pure host functions, so that a machine without a GPU can test them. What
// decides the order of a sum (chunks) depends on the shape and the alignment, and where an op's
// plan says so on features of the card, never on how many multiprocessors it has.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>

#include "core/error.h"

namespace gradus {

// What the hardware allows: blocks along x, and along y and z.
inline constexpr int64_t kMaxGridX = (int64_t(1) << 31) - 1;
inline constexpr int64_t kMaxGridY = 65535;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The smallest power of two that is not below `value`, which is 0 or more.
constexpr int64_t ceil_power_of_two(int64_t value) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(value)));
}

// Blocks for kernels that step over the whole grid: one per `per_block` items, at most `most`.
inline unsigned stepping_blocks(int64_t items, int64_t per_block, int64_t most = 1 << 20) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(items, per_block), 1, most));
}

// Blocks along x for kernels that do not: exactly `blocks`, or an error.
inline unsigned exact_blocks(int64_t blocks, std::string_view op) {
  check(blocks <= kMaxGridX, op, "needs ", blocks, " blocks, more than the device's ", kMaxGridX);
  return static_cast<unsigned>(blocks);
}

// A long sum cut into `count` chunks of `size` items (the last may be shorter), each summed by
// itself and the results added in order.
struct Chunks {
  int64_t count = 0;
  int64_t size = 0;
};

// Chunks of at least `least` items, at most `most` of them, sized a multiple of `multiple`.
inline Chunks plan_chunks(int64_t items, int64_t least, int64_t most, int64_t multiple = 1) {
  if (items == 0) return {};
  const int64_t wanted = std::max(least, ceil_div(items, most));
  const int64_t size = ceil_div(wanted, multiple) * multiple;
  return {ceil_div(items, size), size};
}

// The widest pack of elements of `element` bytes (16 bytes or less, a power of two) that all
// pointers are aligned to and that all of `multiples` (row lengths, strides) are divisible by.
inline int pack_width(int64_t element, std::initializer_list<const void*> pointers,
                      std::initializer_list<int64_t> multiples) {
  for (int64_t width = 16 / element; width > 1; width /= 2) {
    bool fits = true;
    for (const void* pointer : pointers) {
      fits = fits &&
             reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(width * element) == 0;
    }
    for (const int64_t multiple : multiples) fits = fits && multiple % width == 0;
    if (fits) return static_cast<int>(width);
  }
  return 1;
}

// Blocks that fill any current card a few times over; chunk counts aim at it.
inline constexpr int64_t kTargetBlocks = 1024;

}  // namespace gradus
