// A [n, c, h, w] tensor as the launchers of conv2d and max_pool2d see it. Host-only.
#pragma once

#include "core/view.h"
#include "cuda/device/image_strides.cuh"

namespace gradus {

struct Image {
  void* data = nullptr;
  int64_t n = 0;
  int64_t channels = 0;
  int h = 0, w = 0;
  bool pixel_major = false;  // stored as [n, h, w, channels]

  // `format` is that of the op's tensors; where both fit, the image counts as pixel-major.
  Image(const AnyView& view, MemoryFormat format)
      : data(view.data),
        n(view.shape[0]),
        channels(checked_channels(view.shape[1])),
        h(extent(view.shape[2])),
        w(extent(view.shape[3])),
        pixel_major(format == MemoryFormat::channels_last || channels == 1 || pixels() == 1) {}

  int64_t pixels() const { return static_cast<int64_t>(h) * w; }
  int64_t numel() const { return n * channels * pixels(); }
  int64_t channel_stride() const { return pixel_major ? 1 : pixels(); }
  int64_t pixel_stride() const { return pixel_major ? channels : 1; }
  ImageStrides strides() const {
    return {channels * pixels(), channel_stride(), pixel_stride() * w, pixel_stride()};
  }
  // Whether packs of `count` neighbouring channels of `size` bytes each lie aligned.
  bool has_packs(int64_t count, int64_t size) const {
    return count == 1 ||
           (channel_stride() == 1 && channels % count == 0 &&
            reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(count * size) == 0);
  }

 private:
  static int64_t checked_channels(int64_t value) {
    if (value <= INT32_MAX) return value;
    fail(ErrorCode::unsupported, "cuda", "images of fewer than 2^31 channels, got ", value);
  }
  static int extent(int64_t value) {
    if (value >= (1 << 28)) {
      fail(ErrorCode::unsupported, "cuda", "images of fewer than 2^28 pixels a side, got ", value);
    }
    return static_cast<int>(value);
  }
};

}  // namespace gradus
