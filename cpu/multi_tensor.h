// Tiles of many tensors worked on in one parallel region, however small each of them is.
#pragma once

#include <span>

#include "cpu/parallel.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {

// Calls f(index, begin, end, tile) for the tiles of at most kTile elements of each tensor; `tile`
// counts them from 0, in the order of the tensors. count(tensor) is its number of elements.
template <class Entry, class Count, class F>
void for_each_tensor_tile(Cpu& cpu, std::span<const Entry> tensors, Count&& count, F&& f) {
  const auto size = static_cast<int64_t>(tensors.size());
  const Workspace<int64_t> first(cpu, size + 1);  // tiles before each tensor
  int64_t tiles = 0;
  for (int64_t t = 0; t < size; ++t) {
    first.data()[t] = tiles;
    tiles += (count(tensors[static_cast<size_t>(t)]) + kTile - 1) / kTile;
  }
  first.data()[size] = tiles;
  cpu.parallel(tiles, [&](int64_t tile) {
    int64_t low = 0, high = size;  // the last tensor that begins at or before `tile`
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (first.data()[middle] <= tile ? low : high) = middle;
    }
    const int64_t begin = (tile - first.data()[low]) * kTile;
    const int64_t end = std::min(count(tensors[static_cast<size_t>(low)]), begin + kTile);
    f(static_cast<size_t>(low), begin, end, tile);
  });
}

// The tiles that for_each_tensor_tile() makes.
template <class Entry, class Count>
int64_t count_tensor_tiles(std::span<const Entry> tensors, Count&& count) {
  int64_t tiles = 0;
  for (const Entry& tensor : tensors) tiles += (count(tensor) + kTile - 1) / kTile;
  return tiles;
}

}  // namespace gradus::GRADUS_ISA
