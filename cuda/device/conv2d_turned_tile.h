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

// Byte of a row of pixels where thread t of a warpgroup, with g = t % 32 / 4 and q = t % 4, finds
// channel g of its warp's 16 (and 8 channels on at ^ 32) of pixel 2·q + shift. Warps 2 and 3 have
// the same channels as 0 and 1, of the next box. Every further 8 pixels are 1024 bytes on.
GRADUS_HD constexpr uint32_t turned_rows_at(int t, int shift) {
  const int warp = t / 32, g = t % 32 / 4, pixel = 2 * (t % 4) + shift;
  const int vector = warp % 2 * 4 + g / 4;
  return pixel * 128 + ((vector ^ pixel % 8) << 4) + g % 4 * 4;
}
// Byte of a box where a channel of pixel 0 lies; that of pixel p < 8 at (^ (p << 4)) + 128 · p.
GRADUS_HD constexpr uint32_t turned_channel_at(int channel) { return channel * 4; }
// Byte of the turned operand, rows of 128 bytes of terms, where terms 4·v, ..., 4·v + 3 of a
// channel go.
GRADUS_HD constexpr uint32_t turned_terms_at(int channel, int v) {
  return channel * 128 + ((v ^ channel % 8) << 4);
}

// A block's positions (r, s, c), `kTiles` tiles of 64 for each of its two warpgroups, times
// `kColumns` channels k; and how its x lies in a stage: thread t of a warpgroup finds the pixels
// 2·q of a tile at rows_at(.., 0), 2·q + 1 at rows_at(.., 1), those of the step's other eights of
// pixels eight_at() further on.

// Boxes of the pixels as each tap meets them, for any window; with Split in two parts.
template <int Tiles, int Columns, bool Split>
struct TurnedTaps {
  static constexpr int kTiles = Tiles, kColumns = Columns;
  static constexpr bool kSplit = Split;
  static constexpr int kPositions = 2 * Tiles * 64, kBoxes = kPositions / 32;
  static constexpr int kBytes = kBoxes * kTurnBoxBytes, kTableBytes = kBoxes * 16;
  static constexpr int kBlockColumns = kPositions, kStep = kTurnPixels;  // of the grid

  GRADUS_HD static constexpr uint32_t rows_at(int group, int tile, int t, int half) {
    return ((group * Tiles + tile) * 2 + t / 64) * kTurnBoxBytes + turned_rows_at(t, half);
  }
  GRADUS_HD static constexpr uint32_t eight_at(int eight) { return eight * 1024; }
  GRADUS_HD static constexpr int position(int column0, int /*channels*/, int group, int tile) {
    return column0 + (group * Tiles + tile) * 64;
  }
};

// The rows of a tile of 32 pixels, each with its halo, once for three taps of a row and 128
// channels, or for all nine and 64: 3 x 3 windows, stride and dilation 1. A tap is a distance.
template <bool AllTaps, int Width>
struct TurnedHalo {
  static constexpr int kTiles = AllTaps ? 5 : 3, kColumns = AllTaps ? 64 : 128;
  static constexpr bool kSplit = false;
  static constexpr int kChannels = AllTaps ? 64 : 128, kBoxes = kChannels / 32;
  static constexpr int kTileRows = kTurnPixels / Width;  // of dy
  static constexpr int kRows = kTileRows + (AllTaps ? 2 : 0), kRowPixels = Width + 2;
  static constexpr int kRowBytes = (kRowPixels + 7) / 8 * 1024, kBoxBytes = kRows * kRowBytes;
  static constexpr int kBytes = kBoxes * kBoxBytes, kTableBytes = 0;
  static constexpr int kCopiedBytes = kBoxes * kRows * kRowPixels * 128;
  static constexpr int kBlockColumns = 1, kStep = 1;  // of the grid, whose points are tiles

  // What block `column` begins with, and a tile's tap; the last tile of all nine is one too many.
  GRADUS_HD static constexpr int first_row(int column) { return AllTaps ? 0 : column % 3; }
  GRADUS_HD static constexpr int first_channel(int column) {
    return AllTaps ? column * 64 : column / 3 * 128;
  }
  GRADUS_HD static constexpr int tap(int group, int tile) {
    return AllTaps ? (group * 5 + tile < 9 ? group * 5 + tile : 8) : tile;
  }
  GRADUS_HD static constexpr uint32_t rows_at(int group, int tile, int t, int half) {
    const int box = (AllTaps ? 0 : group * 2) + t / 64, at = tap(group, tile);
    return box * kBoxBytes + at / 3 * kRowBytes + turned_rows_at(t, at % 3 + half);
  }
  GRADUS_HD static constexpr uint32_t eight_at(int eight) {
    return eight * 8 / Width * kRowBytes + eight * 8 % Width * 128;
  }
  // The first of a tile's 64 positions (r, s, c), or one that does not exist.
  GRADUS_HD static constexpr int position(int column, int channels, int group, int tile) {
    if (AllTaps && group * 5 + tile == 9) return 9 * channels;
    return (first_row(column) * 3 + tap(group, tile)) * channels + first_channel(column) +
           (AllTaps ? 0 : group * 64);
  }
};

}  // namespace gradus
