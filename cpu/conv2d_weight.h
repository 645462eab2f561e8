// The gradients of conv2d's parameters: sums over images and pixels.
//
//   dw[k, c, r, s] = Σ over n, p, q of x[n, c, p·stride + r, q·stride + s] · dy[n, k, p, q]
//
// The images, or the rows of a small batch, are cut into slices, a number that depends on the shape
// only; each slice adds up its own dw, and a second stage adds the slices in order.
#pragma once

#include "cpu/chained_row.h"
#include "cpu/conv2d_sum.h"

namespace gradus::GRADUS_ISA {

template <class T>
struct WeightGradient {
  using A = acc_t<T>;

  int64_t images, groups;
  Axis h, w;  // as in the forward pass
  AnyView x, dy;
  MemoryFormat format;
  int64_t depth, lanes;  // channels of x and of dy per group; depthwise as in WindowedSum
  bool depthwise;

  int64_t taps() const { return h.taps * w.taps; }
  // One slice of one group: [block][r][s][d][lanes of the block].
  int64_t part_size() const { return taps() * depth * padded_lanes<A>(lanes); }
  int64_t slices() const;
  template <class D>
  void run(Cpu& cpu, D* dw) const;

 private:
  static constexpr int64_t kSlices = 16;  // enough to share among a few threads

  // A channels-last image of A: the tensor itself, or scratch.
  struct Image {
    const A* data;  // of position (0, 0)
    int64_t row, column;
    int64_t top, bottom, left, right;  // positions [top, bottom) x [left, right) may be read
  };
  LaneBlocks<A> blocks() const { return {lanes, depthwise}; }
  int64_t x_pitch() const { return depthwise ? padded_lanes<A>(lanes) : depth; }
  // In a padded image with few channels the taps of a row are evenly spaced, and count as channels.
  bool joins_columns() const { return depthwise || (depth < kBlockRows && w.tap_step == 1); }
  bool is_readable(const ImageView<const T>& view) const {
    return std::is_same_v<T, A> && view.channels_last;
  }

  // What output rows [first, first + count) read of x, as scratch holds it.
  int64_t x_columns() const { return joins_columns() ? w.reach(w.outputs) : w.inputs; }
  int64_t most_x_rows(int64_t count) const {
    return joins_columns() ? h.reach(count) : std::min(h.inputs, h.reach(count));
  }
  Patch x_patch(int64_t first, int64_t count) const {
    const int64_t top = h.low() + first * h.step, bottom = top + h.reach(count);
    if (joins_columns()) return {top, bottom - top, w.low(), x_columns()};
    const int64_t from = std::clamp<int64_t>(top, 0, h.inputs);
    return {from, std::clamp<int64_t>(bottom, from, h.inputs) - from, 0, x_columns()};
  }
  Image image_of(const A* scratch, const Patch& patch) const {
    const int64_t column = x_pitch(), row = patch.columns * column;
    return {scratch - patch.top * row - patch.left * column,
            row,
            column,
            patch.top,
            patch.top + patch.rows,
            patch.left,
            patch.left + patch.columns};
  }

  template <class D>
  void add_slices(const A* parts, int64_t first, D* dw) const;
  int64_t rows_at_once() const;
  // Output rows [begin, end) of all images.
  void run_slice(Cpu& cpu, int64_t group, int64_t begin, int64_t end, A* part) const;
  void add_outputs(const Image& source, const Image& gradient, const Patch& outputs, A* part) const;
  void add_tap(const Image& source, const Image& gradient, int64_t r, int64_t s,
               const Patch& outputs, int64_t first_lane, A* part) const;
};

template <class T>
int64_t WeightGradient<T>::slices() const {
  constexpr int64_t kMostValues = 1 << 20;  // of all slices together
  const int64_t most =
      std::max<int64_t>(1, kMostValues / std::max<int64_t>(1, groups * part_size()));
  return std::clamp<int64_t>(images * h.outputs, 1, std::min(kSlices, most));
}

template <class T>
template <class D>
void WeightGradient<T>::run(Cpu& cpu, D* dw) const {
  const int64_t count = slices(), size = part_size();
  const Workspace<A> parts(cpu, count * groups * size);
  // A unit is an image where there are enough of them, since slices of one read rows of x twice,
  // else a row.
  const int64_t rows = images >= count ? h.outputs : 1;
  const int64_t units = images * h.outputs / std::max<int64_t>(1, rows);
  cpu.parallel(count * groups, [&](int64_t task) {
    const int64_t slice = task / groups;
    run_slice(cpu, task % groups, units * slice / count * rows, units * (slice + 1) / count * rows,
              parts.data() + task * size);
  });
  const int64_t cut = blocks().count();
  cpu.parallel(groups * cut, [&](int64_t task) {
    const int64_t group = task / cut, first = task % cut * blocks().most();
    add_slices(parts.data() + group * size + first * taps() * depth, first,
               dw + (group * lanes + first) * depth * taps());
  });
}

// Second stage, for the lanes of one block: dw[k, c, r, s] from slices of [r][s][c][lane].
template <class T>
template <class D>
void WeightGradient<T>::add_slices(const A* parts, int64_t first, D* dw) const {
  const int64_t count = slices(), width = blocks().width(first);
  const int64_t valid = std::min(width, lanes - first);
  A sum[kBlockLanes<A>];
  for (int64_t c = 0; c < depth; ++c) {
    for (int64_t tap = 0; tap < taps(); ++tap) {
      const A* from = parts + (tap * depth + c) * width;
      std::copy(from, from + width, sum);
      for (int64_t slice = 1; slice < count; ++slice) {
        from += groups * part_size();
        for (int64_t i = 0; i < width; ++i) sum[i] += from[i];
      }
      for (int64_t i = 0; i < valid; ++i)
        dw[(i * depth + c) * taps() + tap] = static_cast<D>(sum[i]);
    }
  }
}

// Rows of outputs that a step adds up one by one; of a row longer than kDotChain, it takes a part.
template <class T>
int64_t WeightGradient<T>::rows_at_once() const {
  constexpr int64_t kRowBytes = 32 << 10;  // of x and dy together: half of a first-level cache
  const int64_t row_bytes =
      (w.inputs * h.step * x_pitch() + w.outputs * lanes) * int64_t(sizeof(A));
  const int64_t most = std::min(kRowBytes / std::max<int64_t>(1, row_bytes),
                                kDotChain / std::max<int64_t>(1, w.outputs));
  return std::clamp<int64_t>(most, 1, std::max<int64_t>(1, h.outputs));
}

template <class T>
void WeightGradient<T>::run_slice(Cpu& cpu, int64_t group, int64_t begin, int64_t end,
                                  A* part) const {
  const int64_t rows = rows_at_once();
  const int64_t steps_of_image =
      (h.outputs + rows - 1) / rows * ((w.outputs + kDotChain - 1) / kDotChain);
  const int64_t most_images = (end - begin) / std::max<int64_t>(1, h.outputs) + 2;
  ChainedRow<A> sums(cpu, part_size(), most_images * steps_of_image);
  sums.start(part);
  const auto x_view = image_view<const T>(x, format, group, groups);
  const auto dy_view = image_view<const T>(dy, format, group, groups);
  const bool reads_x = is_readable(x_view) && !joins_columns();
  const bool reads_dy = is_readable(dy_view) && lanes % kLanes<A> == 0;
  const int64_t most_rows = std::clamp<int64_t>(end - begin, 1, h.outputs);
  const int64_t padded = padded_lanes<A>(lanes);
  const Workspace<A> x_scratch(cpu, reads_x ? 0 : most_x_rows(most_rows), x_columns(), x_pitch());
  const Workspace<A> dy_scratch(cpu, reads_dy ? 0 : most_rows * w.outputs * padded);
  Image source{}, gradient{nullptr, w.outputs * padded, padded, 0, h.outputs, 0, w.outputs};
  while (begin < end) {
    const int64_t n = begin / h.outputs, first = begin % h.outputs;
    const int64_t last = std::min(h.outputs, first + end - begin);
    begin += last - first;
    if constexpr (std::is_same_v<T, A>) {
      if (reads_x)
        source = {
            x_view.at(n, 0, 0), x_view.strides[2], x_view.strides[3], 0, h.inputs, 0, w.inputs};
      if (reads_dy) {
        gradient.data = dy_view.at(n, 0, 0);
        gradient.row = dy_view.strides[2];
        gradient.column = dy_view.strides[3];
      }
    }
    if (!reads_x) {
      const Patch patch = x_patch(first, last - first);
      read_patch<T>(x_view, n, h.inputs, w.inputs, patch, x_scratch.data(), x_pitch());
      source = image_of(x_scratch.data(), patch);
    }
    if (!reads_dy) {
      const Patch pixels{first, last - first, 0, w.outputs};
      read_patch<T>(dy_view, n, h.outputs, w.outputs, pixels, dy_scratch.data(), padded);
      gradient.data = dy_scratch.data() - first * gradient.row;
    }
    for (int64_t p = first; p < last; p += rows) {
      for (int64_t q = 0; q < w.outputs; q += kDotChain) {
        const Patch outputs{p, std::min(rows, last - p), q, std::min(kDotChain, w.outputs - q)};
        add_outputs(source, gradient, outputs, part);
        sums.step(1);
      }
    }
  }
  sums.finish();
}

template <class T>
void WeightGradient<T>::add_outputs(const Image& source, const Image& gradient,
                                    const Patch& outputs, A* part) const {
  const int64_t columns = joins_columns() ? 1 : w.taps;
  const int64_t channels = joins_columns() ? w.taps * depth : depth;
  for (int64_t first = 0; first < lanes; first += blocks().most()) {
    const int64_t width = blocks().width(first);
    Image inputs = source, block = gradient;
    block.data += first;
    if (depthwise) inputs.data += first;
    for (int64_t r = 0; r < h.taps; ++r) {
      for (int64_t s = 0; s < columns; ++s) {
        add_tap(inputs, block, r, s, outputs, first, part);
        part += channels * width;
      }
    }
  }
}

// Adds those of the outputs whose input at tap (r, s) may be read.
template <class T>
void WeightGradient<T>::add_tap(const Image& source, const Image& gradient, int64_t r, int64_t s,
                                const Patch& outputs, int64_t first_lane, A* part) const {
  const auto first_at_least = [](int64_t distance, int64_t step) {
    return distance <= 0 ? 0 : (distance + step - 1) / step;
  };
  const int64_t h0 = h.first + r * h.tap_step, w0 = w.first + s * w.tap_step;
  const int64_t p = std::max(outputs.top, first_at_least(source.top - h0, h.step));
  const int64_t q = std::max(outputs.left, first_at_least(source.left - w0, w.step));
  const int64_t p_end =
      std::min(outputs.top + outputs.rows, first_at_least(source.bottom - h0, h.step));
  const int64_t q_end =
      std::min(outputs.left + outputs.columns, first_at_least(source.right - w0, w.step));
  if (p >= p_end || q >= q_end) return;
  OuterBlock<A> block{
      .a = source.data + (h0 + p * h.step) * source.row + (w0 + q * w.step) * source.column,
      .a_p = h.step * source.row,
      .a_q = w.step * source.column,
      .b = gradient.data + p * gradient.row + q * gradient.column,
      .b_p = gradient.row,
      .b_q = gradient.column,
      .p = p_end - p,
      .q = q_end - q,
      .out = part,
      .a_i = depthwise ? w.tap_step * source.column : 1};
  const int64_t channels = joins_columns() ? w.taps * depth : depth;
  const int64_t runs = (channels + kBlockRows - 1) / kBlockRows;
  for (int64_t i = 0; i < runs; ++i) {
    const int64_t count = channels / runs + (i < channels % runs ? 1 : 0);
    run_block(block, count, blocks().vectors(first_lane));
    block.a += count * block.a_i;
    block.out += count * blocks().width(first_lane);
  }
}

}  // namespace gradus::GRADUS_ISA
