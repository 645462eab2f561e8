// The windowed sum behind conv2d's forward pass and its gradient with respect to x:
//
//   out[n, lane, i, j] = init[lane] + Σ over taps (r, s) and depth d of
//                        in[n, d, i·step + r, j·step + s] · w[r, s, d, lane]
//
// A task takes some rows of one image and group: it reads their inputs into channels-last scratch
// (or reads the tensor itself where that is so stored and needs no padding) and runs register
// blocks of up to kBlockRows neighbouring outputs x two vectors of lanes over it. Tasks and blocks
// depend on the shape only, and every output is summed by one block in one order.
//
// Depthwise, every lane has an input of its own: depth is 1, and `groups` are parts of the channels
// of convenient size.
#pragma once

#include "cpu/conv2d_block.h"
#include "cpu/conv2d_image.h"
#include "cpu/parallel.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {

template <class A>
inline constexpr int64_t kBlockLanes = 2 * kLanes<A>;

template <class A>
int64_t padded_lanes(int64_t lanes) {
  return (lanes + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
}

// How the lanes of a group are cut into blocks of one vector or two.
template <class A>
struct LaneBlocks {
  int64_t lanes;
  bool depthwise;

  int64_t most() const { return depthwise ? kLanes<A> : kBlockLanes<A>; }
  int64_t count() const { return (lanes + most() - 1) / most(); }
  int64_t width(int64_t first) const { return std::min(most(), padded_lanes<A>(lanes - first)); }
  // As run_block() wants it.
  int vectors(int64_t first) const {
    return depthwise ? 0 : static_cast<int>(width(first) / kLanes<A>);
  }
};

// Parts of the channels of a depthwise convolution: small enough for a patch to stay in cache.
inline int64_t depthwise_parts(int64_t channels) {
  for (const int64_t lanes : {128, 64, 32, 16}) {
    if (channels % lanes == 0) return channels / lanes;
  }
  return 1;
}

// Where the weights w[k, c, r, s] lie as seen by a windowed sum: lanes are outputs and depth is
// inputs in forward, the other way round in the gradient.
template <class T>
struct WeightView {
  const T* data;                     // of group 0
  int64_t group, lane, depth, r, s;  // strides
};

template <class T>
struct WindowedSum {
  using A = acc_t<T>;

  int64_t images, groups;
  int64_t depth, lanes;  // per group
  bool depthwise;
  Axis h, w;
  AnyView in, out;
  MemoryFormat format;
  const A* weights;  // packed, per group packed_size()
  const A* init;     // per group padded_lanes

  int64_t packed_size() const { return h.taps * w.taps * depth * padded_lanes<A>(lanes); }
  void pack(Cpu& cpu, const WeightView<T>& from, A* to) const;
  void run(Cpu& cpu) const;

 private:
  // Inputs as a block reads them.
  struct Source {
    const A* data;        // of output (0, 0) of the task at tap (0, 0)
    int64_t row, column;  // from one input to the next
  };

  LaneBlocks<A> blocks() const { return {lanes, depthwise}; }
  // From one input pixel to the next in a patch.
  int64_t pitch() const { return depthwise ? padded_lanes<A>(lanes) : depth; }
  bool reads_directly(int64_t first_row, int64_t rows) const;
  // Whether rows of outputs follow each other both in the inputs and in the result.
  bool is_flat(const Source& source) const {
    return h.step == 1 && w.step == 1 && h.out_step == 1 && w.out_step == 1 &&
           source.row == w.outputs * source.column;
  }
  void run_task(Cpu& cpu, int64_t image, int64_t group, int64_t first_row, int64_t rows) const;
  void run_rows(const Source& source, const ImageView<T>& y, int64_t image, int64_t group,
                int64_t first_row, int64_t rows, A* buffer) const;
  void run_row(const Source& source, int64_t group, int64_t first_lane, int64_t count, A* to,
               int64_t to_step) const;
};

// to: [block][r][s][d][lanes of the block], zero beyond the last lane.
template <class T>
void WindowedSum<T>::pack(Cpu& cpu, const WeightView<T>& from, A* to) const {
  const LaneBlocks<A> cut = blocks();
  const int64_t taps = h.taps * w.taps;
  cpu.parallel(groups * cut.count(), [&](int64_t task) {
    const int64_t group = task / cut.count(), first = task % cut.count() * cut.most();
    const int64_t width = cut.width(first);
    A* target = to + group * packed_size() + first * taps * depth;
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int64_t r = h.kernel_first + tap / w.taps * h.kernel_step;
      const int64_t s = w.kernel_first + tap % w.taps * w.kernel_step;
      const T* source = from.data + group * from.group + r * from.r + s * from.s;
      for (int64_t d = 0; d < depth; ++d, target += width) {
        for (int64_t i = 0; i < width; ++i) {
          const bool inside = first + i < lanes;
          target[i] =
              inside ? static_cast<A>(source[(first + i) * from.lane + d * from.depth]) : A(0);
        }
      }
    }
  });
}

template <class T>
void WindowedSum<T>::run(Cpu& cpu) const {
  constexpr int64_t kPatchBytes = 128 << 10;  // leaves room in a second-level cache for weights
  constexpr int64_t kTasks = 16;              // enough to share among a few threads
  if (h.outputs <= 0 || w.outputs <= 0 || images == 0) return;
  const auto bounded = [](int64_t value) { return std::min<int64_t>(value, INT32_MAX); };
  const int64_t row_bytes = bounded(w.reach(w.outputs) * pitch() * static_cast<int64_t>(sizeof(A)));
  const int64_t halo = bounded(h.reach(1)) * row_bytes;
  int64_t rows =
      std::max<int64_t>(1, (kPatchBytes - halo) / std::max<int64_t>(1, h.step * row_bytes));
  const int64_t wanted = (kTasks + images * groups - 1) / (images * groups);
  rows = std::min(rows, (h.outputs + wanted - 1) / wanted);
  const int64_t tiles = (h.outputs + rows - 1) / rows;
  cpu.parallel(images * groups * tiles, [&](int64_t task) {
    const int64_t first = task % tiles * rows;
    run_task(cpu, task / tiles / groups, task / tiles % groups, first,
             std::min(rows, h.outputs - first));
  });
}

template <class T>
bool WindowedSum<T>::reads_directly(int64_t first_row, int64_t rows) const {
  const int64_t top = h.low() + first_row * h.step;
  return std::is_same_v<T, A> && format == MemoryFormat::channels_last &&
         (!depthwise || lanes % kLanes<A> == 0) && top >= 0 && top + h.reach(rows) <= h.inputs &&
         w.low() >= 0 && w.low() + w.reach(w.outputs) <= w.inputs;
}

template <class T>
void WindowedSum<T>::run_task(Cpu& cpu, int64_t image, int64_t group, int64_t first_row,
                              int64_t rows) const {
  const auto x = image_view<const T>(in, format, group, groups);
  const Patch patch{h.low() + first_row * h.step, h.reach(rows), w.low(), w.reach(w.outputs)};
  const bool direct = reads_directly(first_row, rows);
  const Workspace<A> scratch(cpu, direct ? 0 : patch.rows, patch.columns, pitch());
  Source source{scratch.data(), patch.columns * pitch(), pitch()};
  if (direct) {
    if constexpr (std::is_same_v<T, A>) {
      source = {x.at(image, patch.top, patch.left), x.strides[2], x.strides[3]};
    }
  } else {
    read_patch<T>(x, image, h.inputs, w.inputs, patch, scratch.data(), pitch());
  }
  source.data += (h.first - h.low()) * source.row + (w.first - w.low()) * source.column;

  // Results go to the tensor by way of a buffer where it is not stored as a block leaves them.
  const int64_t chunk = std::max<int64_t>(1, 8 * kBlockRows / w.outputs);
  const Workspace<A> buffer(cpu, chunk * w.outputs * kBlockLanes<A>);
  const auto y = image_view<T>(out, format, group, groups);
  for (int64_t i = 0; i < rows; i += chunk) {
    run_rows(source, y, image, group, first_row + i, std::min(chunk, rows - i), buffer.data());
    source.data += chunk * h.step * source.row;
  }
}

template <class T>
void WindowedSum<T>::run_rows(const Source& source, const ImageView<T>& y, int64_t image,
                              int64_t group, int64_t first_row, int64_t rows, A* buffer) const {
  const bool flat = is_flat(source);
  const int64_t runs = flat ? 1 : rows, count = flat ? rows * w.outputs : w.outputs;
  for (int64_t first = 0; first < lanes; first += blocks().most()) {
    const int64_t width = blocks().width(first);
    const bool fits = first + width <= lanes;
    for (int64_t i = 0; i < runs; ++i) {
      const Source row{source.data + i * h.step * source.row, source.row, source.column};
      T* to = y.at(image, h.out_first + (first_row + i) * h.out_step, w.out_first);
      if constexpr (std::is_same_v<T, A>) {
        if (fits && y.channels_last) {
          run_row(row, group, first, count, to + first, w.out_step * y.strides[3]);
          continue;
        }
      }
      run_row(row, group, first, count, buffer + i * count * width, width);
    }
    if (std::is_same_v<T, A> && fits && y.channels_last) continue;
    const int64_t valid = std::min(width, lanes - first);
    const bool joined = h.out_step == 1 && w.out_step == 1;
    for (int64_t i = 0; i < (joined ? 1 : runs); ++i) {
      T* to = y.at(image, h.out_first + (first_row + i) * h.out_step, w.out_first);
      write_pixels<T>(buffer + i * count * width, width, joined ? runs * count : count, first,
                      valid, y, to, w.out_step);
    }
  }
}

// One run of `count` outputs, cut into blocks of nearly equal size.
template <class T>
void WindowedSum<T>::run_row(const Source& source, int64_t group, int64_t first_lane, int64_t count,
                             A* to, int64_t to_step) const {
  const int64_t taps = h.taps * w.taps;
  const int64_t padded = padded_lanes<A>(lanes);
  const int vectors = blocks().vectors(first_lane);
  DotBlock<A> block{.a = source.data + (depthwise ? first_lane : 0),
                    .a_row = w.step * source.column,
                    .r = h.taps,
                    .s = w.taps,
                    .a_r = h.tap_step * source.row,
                    .a_s = w.tap_step * source.column,
                    .depth = depth,
                    .w = weights + group * packed_size() + first_lane * taps * depth,
                    .init = init + group * padded + first_lane,
                    .out = to,
                    .out_row = to_step};
  const int64_t runs = (count + kBlockRows - 1) / kBlockRows;
  for (int64_t i = 0; i < runs; ++i) {
    const int64_t rows = count / runs + (i < count % runs ? 1 : 0);
    run_block(block, rows, vectors);
    block.a += rows * block.a_row;
    block.out += rows * to_step;
  }
}

}  // namespace gradus::GRADUS_ISA
