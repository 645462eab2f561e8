// Makes a training batch on the device: gathers images, normalizes, crops and flips.
#pragma once

#include "core/backend.h"
#include "core/random.h"

namespace gradus {

// For i in [0, b), with k = order[(position + i) mod length of order]:
//   labels[i]       = all_labels[k]
//   x[i, c, h, w]   = values[c, images[k, c, h + crop_h, w' + crop_w]],  w' = w or, flipped, W-1-w
//                     (pixels outside the image count as 0 before the look-up)
//   position ← position + b,  drawn ← drawn + b
// `values` holds (pixel / 255 - mean[c]) / std[c] for each of the 256 pixel values, made on the
// host in f64: both devices give the same bits.
//
// crop_h, crop_w uniform in [-padding, padding] and the flip are words 0, 1 and the top bit of word
// 2 of philox(seed, kAugment, drawn + i): they depend on how many samples came before, not on
// batches or devices.
struct GatherBatch {
  static constexpr std::string_view name = "gather_batch";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView images;      // [N, c, h, w], u8, contiguous
  AnyView all_labels;  // [N], u8, contiguous
  AnyView order;       // [>= 1], i32, contiguous, each in [0, N)
  AnyView values;      // [c, 256], dtype of x, contiguous
  AnyView position;    // [1], i64, not negative
  AnyView drawn;       // [1], i64
  AnyView x;           // [b, c, h, w], contiguous or channels-last; written
  AnyView labels;      // [b], i64, contiguous; written
  uint64_t seed = 0;
  int64_t padding = 0;  // 0: no crop
  bool flip = false;

  DType dtype() const { return x.dtype; }
  auto views() const {
    return list_views(images, all_labels, order, values, position, drawn, x, labels);
  }
  int64_t bytes() const { return x.numel() + x.nbytes() + labels.nbytes(); }
  int64_t flops() const { return 0; }
  static Guarantee guarantee() { return {.accumulator = "none"}; }
};

void run(Cpu&, const GatherBatch&);
void run(Cuda&, const GatherBatch&);

struct Augmentation {
  int64_t crop_h = 0, crop_w = 0;
  bool flipped = false;
};

GRADUS_HD Augmentation draw_augmentation(uint64_t seed, int64_t sample, int64_t padding,
                                         bool flip) {
  Augmentation a;
  if (padding == 0 && !flip) return a;
  const Philox4 block = philox(seed, random_stream::kAugment, static_cast<uint64_t>(sample));
  const uint64_t offsets = static_cast<uint64_t>(2 * padding + 1);
  a.crop_h = static_cast<int64_t>(uniform_below(block.words[0], offsets)) - padding;
  a.crop_w = static_cast<int64_t>(uniform_below(block.words[1], offsets)) - padding;
  a.flipped = flip && (block.words[2] >> 31) != 0;
  return a;
}

}  // namespace gradus
