// Where the weight gradient of f32 operands on Hopper finds its numbers in shared memory
// (conv2d_wgmma_turned.cuh). Host and device.
//
// A step is 32 pixels. Term 8·a + 4·b + t of its products is pixel 8·a + 2·t + b: the pixels that a
// warp loads at once then lie in different banks, swizzled as the copy engine leaves them.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace gradus {

// A box: 32 pixels of 32 channels, vector v of pixel p at v ^ (p % 8).
inline constexpr int kTurnPixels = 32, kTurnBoxBytes = kTurnPixels * 128, kTurnThreads = 384;

// Byte of a box where thread t of a warpgroup finds a[0] of its 64 channels, two boxes, at the
// first 8 pixels; with the same bits flipped in every step of 8 pixels,
//   a[1] at ^ 32, a[2] at (^ 16) + 128, a[3] at (^ 48) + 128.
GRADUS_HD constexpr uint32_t turned_rows_at(int t) {
  const int warp = t / 32, g = t % 32 / 4, q = t % 4;
  const int vector = warp % 2 * 4 + g / 4;
  return warp / 2 * kTurnBoxBytes + 2 * q * 128 + ((vector ^ (2 * q)) << 4) + g % 4 * 4;
}
// Byte of a box where a channel of pixel 0 lies; that of pixel p < 8 at (^ (p << 4)) + 128 · p.
GRADUS_HD constexpr uint32_t turned_channel_at(int channel) { return channel * 4; }
// Byte of the turned operand, rows of 128 bytes of terms, where terms 4·v, ..., 4·v + 3 of a
// channel go.
GRADUS_HD constexpr uint32_t turned_terms_at(int channel, int v) {
  return channel * 128 + ((v ^ channel % 8) << 4);
}

}  // namespace gradus
