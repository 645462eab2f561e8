#include "core/ops/gather_batch.h"
#include "cuda/context.h"
#include "cuda/plan.h"

namespace gradus {
namespace {

constexpr int kThreads = 256;
constexpr int kPerBlock = 1024;  // elements of one sample that a block writes

template <class T>
struct GatherPointers {
  const uint8_t* images;
  const uint8_t* all_labels;
  const int32_t* order;
  const T* values;
  const int64_t* position;
  const int64_t* drawn;
  T* x;
  int64_t* labels;
};

struct GatherSizes {
  int64_t order;
  int c, h, w;
  int chunks;  // blocks of one sample
  bool channels_last;
};

struct GatherAugment {
  uint64_t seed;
  int64_t padding;
  bool flip;
};

// math   core/ops/gather_batch.h
// grid   chunks of 1024 elements of one sample; threads write neighbours in memory
// bytes  one pixel read and one element written each; the table of values stays in cache
template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_batch_block_per_chunk(GatherPointers<T> p, GatherSizes size, GatherAugment augment) {
  const int64_t i = blockIdx.x / size.chunks;
  const int chunk = static_cast<int>(blockIdx.x % size.chunks);
  const int64_t k = p.order[(*p.position + i) % size.order];
  const Augmentation a =
      draw_augmentation(augment.seed, *p.drawn + i, augment.padding, augment.flip);
  if (chunk == 0 && threadIdx.x == 0) p.labels[i] = p.all_labels[k];

  const int plane = size.h * size.w, count = size.c * plane;
  const uint8_t* image = p.images + k * count;
  T* x = p.x + i * count;
  for (int e = chunk * kPerBlock + threadIdx.x; e < count && e < (chunk + 1) * kPerBlock;
       e += kThreads) {
    const int c = size.channels_last ? e % size.c : e / plane;
    const int pixel = size.channels_last ? e / size.c : e % plane;
    const int64_t w = pixel % size.w;
    const int64_t from_h = pixel / size.w + a.crop_h;
    const int64_t from_w = (a.flipped ? size.w - 1 - w : w) + a.crop_w;
    const bool inside = from_h >= 0 && from_h < size.h && from_w >= 0 && from_w < size.w;
    const int value = inside ? image[c * plane + from_h * size.w + from_w] : 0;
    x[e] = p.values[c * 256 + value];
  }
}

// grid  one thread, after every block of the gather has read the counters
__global__ void gather_batch_advance(int64_t* position, int64_t* drawn, int64_t batch) {
  *position += batch;
  *drawn += batch;
}

}  // namespace

void run(Cuda& cuda, const GatherBatch& args) {
  const Shape& shape = args.x.shape;
  const int64_t batch = shape[0], count = shape[1] * shape[2] * shape[3];
  check(count < (int64_t{1} << 30), "gather_batch", "an image of ", count,
        " elements is too large for the device");
  // A sample without pixels has a label.
  const int chunks = static_cast<int>(std::max<int64_t>(1, ceil_div(count, kPerBlock)));
  const GatherSizes size{args.order.numel(),
                         static_cast<int>(shape[1]),
                         static_cast<int>(shape[2]),
                         static_cast<int>(shape[3]),
                         chunks,
                         !args.x.is_dense()};
  visit(Floating{}, args.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const GatherPointers<T> pointers{args.images.as<uint8_t>(),
                                     args.all_labels.as<uint8_t>(),
                                     args.order.as<int32_t>(),
                                     args.values.as<T>(),
                                     args.position.as<int64_t>(),
                                     args.drawn.as<int64_t>(),
                                     args.x.as<T>(),
                                     args.labels.as<int64_t>()};
    if (batch > 0) {
      gather_batch_block_per_chunk<T>
          <<<exact_blocks(batch * chunks, args.name), kThreads, 0, cuda.stream()>>>(
              pointers, size, {args.seed, args.padding, args.flip});
    }
  });
  gather_batch_advance<<<1, 1, 0, cuda.stream()>>>(args.position.as<int64_t>(),
                                                   args.drawn.as<int64_t>(), batch);
}

}  // namespace gradus
