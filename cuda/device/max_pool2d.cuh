// Arguments of the max_pool2d kernels.
#pragma once

#include "cuda/device/image_strides.cuh"
#include "cuda/device/quotient.cuh"

namespace gradus {

struct PoolAxis {
  int extent = 1;     // of x
  int positions = 1;  // of y
  int kernel = 1, stride = 1, padding = 0, dilation = 1;
  int reach = 0;  // from the first tap to the last
  FastDivisor by_stride, by_dilation;
};

struct Pool {
  PoolAxis h, w;
  ImageStrides x, y;          // elements; of dx and dy in backward, and y's of index too
  FastDivisor items;          // packs of channels of an image
  FastDivisor height, width;  // of the side whose elements the threads are numbered by
  int64_t count = 0;          // threads that have work
  bool pixel_major = false;
};

struct PoolItem {
  int64_t n, channel;
  int i, j;
};

// What thread `index` works on; the axis that lies densest in memory is counted fastest.
template <int PerThread>
__device__ __forceinline__ PoolItem pool_item(const Pool& p, int64_t index) {
  const auto split = [&index](const FastDivisor& d) {
    const int64_t whole = quotient(d, index), part = index - whole * d.divisor;
    index = whole;
    return part;
  };
  PoolItem item;
  if (p.pixel_major) item.channel = split(p.items) * PerThread;
  item.j = static_cast<int>(split(p.width));
  item.i = static_cast<int>(split(p.height));
  if (!p.pixel_major) item.channel = split(p.items) * PerThread;
  item.n = index;
  return item;
}

}  // namespace gradus
