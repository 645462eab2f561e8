// Launch choices as pure host functions, so that a machine without a GPU can test them. Whatever
// decides the order of a sum (chunks) depends on the shape and the alignment only, never on the
// card.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "core/error.h"

namespace gradus {

// What the hardware allows: blocks along x, and along y and z.
inline constexpr int64_t kMaxGridX = (int64_t(1) << 31) - 1;
inline constexpr int64_t kMaxGridY = 65535;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

// Batch normalization over contiguous tensors: the n rows of s elements of a channel are cut into
// segments of at most kSegment elements; a block takes a run of segments, a warp one at a time.
struct BatchNormRows {
  static constexpr int64_t kSegment = 4096;
  int64_t segments_per_row;
  int64_t segments;   // n · segments_per_row
  int64_t chunks;     // blocks per channel
  int64_t per_chunk;  // segments of one block
};

inline BatchNormRows plan_batch_norm_rows(int64_t n, int64_t c, int64_t s) {
  BatchNormRows plan{};
  plan.segments_per_row = std::max<int64_t>(1, ceil_div(s, BatchNormRows::kSegment));
  plan.segments = n * plan.segments_per_row;
  const int64_t wanted = ceil_div(kTargetBlocks, c);
  const int64_t useful = ceil_div(n * s, 4096);  // a block should have this many elements at least
  const int64_t chunks =
      std::clamp<int64_t>(std::min(wanted, useful), 1, std::max<int64_t>(plan.segments, 1));
  plan.per_chunk = std::max<int64_t>(1, ceil_div(plan.segments, chunks));
  plan.chunks = std::max<int64_t>(1, ceil_div(plan.segments, plan.per_chunk));
  return plan;
}

// The same over channels-last tensors, m rows of c channels: a block has `lanes` threads across the
// channels (each `width` channels wide) and kThreads / lanes across the rows.
struct BatchNormColumns {
  static constexpr int kThreads = 256;
  int lanes;               // a power of two, at most 32
  int64_t channel_blocks;  // blocks across the channels
  int64_t chunks;          // blocks across the rows
  int64_t rows_per_chunk;
};

inline BatchNormColumns plan_batch_norm_columns(int64_t m, int64_t c, int width) {
  BatchNormColumns plan{};
  const int64_t vectors = ceil_div(c, width);
  plan.lanes = 1;
  while (plan.lanes < 32 && plan.lanes < vectors) plan.lanes *= 2;
  plan.channel_blocks = std::max<int64_t>(1, ceil_div(vectors, plan.lanes));
  const int64_t rows_at_once = BatchNormColumns::kThreads / plan.lanes;
  const int64_t wanted = ceil_div(kTargetBlocks, plan.channel_blocks);
  const int64_t useful = ceil_div(m, 8 * rows_at_once);
  const int64_t chunks = std::max<int64_t>(1, std::min(wanted, useful));
  plan.rows_per_chunk = std::max<int64_t>(1, ceil_div(m, chunks));
  plan.chunks = std::max<int64_t>(1, ceil_div(m, plan.rows_per_chunk));
  return plan;
}

}  // namespace gradus
