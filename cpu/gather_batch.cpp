#include "core/ops/gather_batch.h"

#include "cpu/dispatch.h"
#include "cpu/parallel.h"

namespace gradus::GRADUS_ISA {
namespace {

struct Image {
  int64_t c, h, w;
};

// One channel of one sample; y_step is the distance of neighbouring pixels of x.
template <class T>
void gather_plane(const uint8_t* pixels, const T* values, const Image& size, const Augmentation& a,
                  T* x, int64_t x_step) {
  for (int64_t h = 0; h < size.h; ++h) {
    const int64_t from_h = h + a.crop_h;
    const bool inside_h = from_h >= 0 && from_h < size.h;
    const uint8_t* row = inside_h ? pixels + from_h * size.w : pixels;
    for (int64_t w = 0; w < size.w; ++w, x += x_step) {
      const int64_t from_w = (a.flipped ? size.w - 1 - w : w) + a.crop_w;
      const bool inside = inside_h && from_w >= 0 && from_w < size.w;
      *x = values[inside ? row[from_w] : 0];
    }
  }
}

}  // namespace

void run(Cpu& cpu, const GatherBatch& args) {
  const int64_t batch = args.x.shape[0];
  const Image size{args.x.shape[1], args.x.shape[2], args.x.shape[3]};
  const int64_t plane = size.h * size.w;
  const bool channels_last = !args.x.is_dense();
  const int64_t position = *args.position.as<int64_t>();
  const int64_t drawn = *args.drawn.as<int64_t>();
  visit(Floating{}, args.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int64_t kSamplesPerTile = 8;
    parallel_tiles(cpu, batch, kSamplesPerTile, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t k = args.order.as<int32_t>()[(position + i) % args.order.numel()];
        const Augmentation a = draw_augmentation(args.seed, drawn + i, args.padding, args.flip);
        args.labels.as<int64_t>()[i] = args.all_labels.as<uint8_t>()[k];
        for (int64_t c = 0; c < size.c; ++c) {
          const uint8_t* pixels = args.images.as<uint8_t>() + (k * size.c + c) * plane;
          T* x = args.x.as<T>() + i * size.c * plane + (channels_last ? c : c * plane);
          gather_plane(pixels, args.values.as<T>() + c * 256, size, a, x,
                       channels_last ? size.c : 1);
        }
      }
    });
  });
  *args.position.as<int64_t>() += batch;
  *args.drawn.as<int64_t>() += batch;
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(GatherBatch)
