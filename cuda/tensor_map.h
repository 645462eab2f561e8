// Descriptions of tensors for Hopper's copy engine. Host-only.
#pragma once

#include <cuda.h>

#include "core/dtype.h"
#include "cuda/context.h"

namespace gradus {

// What is stored; f32 may be rounded to TF32 (nearest, ties to even) on its way.
struct MapElement {
  DType dtype;
  bool round_tf32 = false;
};

// Boxes of `box_rows` rows x 128 (or 64) bytes of a row-major matrix. Boxes are swizzled in shared
// memory: vector v of row r lies at v ^ (r % 8) (or at v ^ (r / 2 % 4)). Elements outside are
// zeros.
CUtensorMap box_map(MapElement element, const void* data, int64_t rows, int64_t columns,
                    int box_rows, int row_bytes = 128);
// Boxes of `box_h` x `box_w` pixels x row_bytes of channels of [n, h, w, channels], swizzled
// likewise.
CUtensorMap image_map(MapElement element, const void* data, int64_t images, int64_t h, int64_t w,
                      int64_t channels, int box_h, int box_w, int row_bytes);

// Along one axis of an image: positions shift, shift + scale, ... of an axis of `extent`.
struct MapAxis {
  int extent = 1, positions = 1, shift = 0, scale = 1;
  int64_t stride = 0;  // elements
  int upper() const { return shift + positions * scale - extent; }
};
// Runs of `run` pixels x 128 bytes of channels of [n, h, w, channels], swizzled likewise.
CUtensorMap run_map(MapElement element, const void* data, int64_t images, int64_t image_stride,
                    const MapAxis& h, const MapAxis& w, int64_t channels, int run);

}  // namespace gradus
