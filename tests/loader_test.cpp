#include "nn/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "core/random.h"
#include "cpu/host_allocator.h"
#include "tests/support/compare.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"

namespace gradus::nn {
namespace {

// n images of c x h x w whose pixels tell image, channel and place; the label of image i is i % 7.
ImageSet make_set(int64_t n, int64_t c = 1, int64_t h = 3, int64_t w = 4) {
  ImageSet set;
  set.n = n, set.c = c, set.h = h, set.w = w, set.classes = 7;
  for (int64_t i = 0; i < n * c * h * w; ++i) {
    set.images.push_back(static_cast<uint8_t>((i * 37 + 11) % 251 + 1));
  }
  for (int64_t i = 0; i < n; ++i) set.labels.push_back(static_cast<uint8_t>(i % 7));
  for (int64_t i = 0; i < c; ++i) {
    set.mean.push_back(0.25f * static_cast<float>(i + 1));
    set.std.push_back(0.5f / static_cast<float>(i + 1));
  }
  return set;
}

double pixel(const ImageSet& set, int64_t k, int64_t c, int64_t h, int64_t w) {
  const bool inside = h >= 0 && h < set.h && w >= 0 && w < set.w;
  const auto at = static_cast<size_t>(((k * set.c + c) * set.h + h) * set.w + w);
  const double value = inside ? set.images[at] : 0;
  return (value / 255 - set.mean[static_cast<size_t>(c)]) / set.std[static_cast<size_t>(c)];
}

class LoaderTest : public test::EachDevice {};

TEST_P(LoaderTest, EveryImageOncePerEpochInAnotherOrder) {
  const ImageSet set = make_set(23);
  DataLoader loader(set, {.batch_size = 5, .drop_last = false, .seed = 3, .device = GetParam()});
  EXPECT_EQ(loader.batches(), 5);
  std::vector<std::vector<int64_t>> labels(2);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    loader.start_epoch(epoch);
    const std::vector<int32_t> order = epoch_order(23, true, 3, epoch);
    EXPECT_EQ(std::set<int32_t>(order.begin(), order.end()).size(), 23u);
    size_t at = 0;
    while (const auto batch = loader.next()) {
      const int64_t size = batch->labels.numel();
      EXPECT_EQ(batch->x.shape(), (Shape{size, 1, 3, 4}));
      const auto x = batch->x.to_vector<double>();
      const auto y = batch->labels.to_vector<int64_t>();
      for (int64_t i = 0; i < size; ++i, ++at) {
        const int64_t k = order[at];
        EXPECT_EQ(y[static_cast<size_t>(i)], k % 7);
        for (int64_t e = 0; e < 12; ++e) {
          EXPECT_FLOAT_EQ(static_cast<float>(x[static_cast<size_t>(i * 12 + e)]),
                          static_cast<float>(pixel(set, k, 0, e / 4, e % 4)));
        }
      }
      labels[static_cast<size_t>(epoch)].insert(labels[static_cast<size_t>(epoch)].end(), y.begin(),
                                                y.end());
    }
    EXPECT_EQ(at, 23u);
    EXPECT_FALSE(loader.next().has_value());
  }
  EXPECT_NE(labels[0], labels[1]);
}

TEST_P(LoaderTest, ImagesWithoutPixelsHaveLabels) {
  DataLoader loader(make_set(10, 1, 0, 4),
                    {.batch_size = 4, .shuffle = false, .device = GetParam()});
  loader.next();
  const auto batch = loader.next();
  EXPECT_EQ(batch->x.shape(), (Shape{4, 1, 0, 4}));
  EXPECT_EQ(batch->labels.to_vector<int64_t>(), (std::vector<int64_t>{4, 5, 6, 0}));
}

TEST_P(LoaderTest, DropLastAndNoShuffle) {
  DataLoader loader(make_set(10), {.batch_size = 4, .shuffle = false, .device = GetParam()});
  EXPECT_EQ(loader.batches(), 2);
  EXPECT_EQ(loader.samples_per_epoch(), 8);
  EXPECT_EQ(loader.next()->labels.to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(loader.next()->labels.to_vector<int64_t>(), (std::vector<int64_t>{4, 5, 6, 0}));
  EXPECT_FALSE(loader.next().has_value());
  EXPECT_EQ(loader.position(), (LoaderPosition{.epoch = 0, .samples = 8, .drawn = 8}));
  loader.start_epoch(1);
  EXPECT_EQ(loader.position(), (LoaderPosition{.epoch = 1, .samples = 0, .drawn = 8}));
}

// Every dtype and both formats hold the same values, three channels, crop and flip.
TEST_P(LoaderTest, CropAndFlip) {
  const ImageSet set = make_set(40, 3, 5, 6);
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      DataLoader loader(set, {.batch_size = 8,
                              .seed = 5,
                              .crop_padding = 2,
                              .flip = true,
                              .device = GetParam(),
                              .dtype = dtype,
                              .format = format});
      const std::vector<int32_t> order = epoch_order(40, true, 5, 0);
      std::set<std::pair<int64_t, int64_t>> crops;
      int flips = 0;
      for (size_t sample = 0; const auto batch = loader.next();) {
        EXPECT_TRUE(batch->x.is_contiguous(format));
        EXPECT_EQ(batch->x.dtype(), dtype);
        const auto x = batch->x.to_vector<double>();
        for (size_t e = 0; sample < 40 && e < x.size(); ++sample) {
          const Philox4 random = philox(5, random_stream::kAugment, sample);
          const int64_t down = static_cast<int64_t>(random.words[0] * 5ull >> 32) - 2;
          const int64_t right = static_cast<int64_t>(random.words[1] * 5ull >> 32) - 2;
          const bool flipped = random.words[2] >= 0x80000000u;
          crops.emplace(down, right);
          flips += flipped;
          for (int64_t i = 0; i < 3 * 5 * 6; ++i, ++e) {
            const int64_t c = i / 30, h = i / 6 % 5, w = flipped ? 5 - i % 6 : i % 6;
            const double want = pixel(set, order[sample], c, h + down, w + right);
            EXPECT_EQ(x[e], round_to(want, dtype)) << "sample " << sample << " element " << i;
          }
        }
      }
      EXPECT_GT(crops.size(), 10u);
      EXPECT_GT(flips, 8);
      EXPECT_LT(flips, 32);
    }
  }
}

TEST_P(LoaderTest, EveryEpochIsCroppedAnew) {
  DataLoader loader(
      make_set(8),
      {.batch_size = 8, .shuffle = false, .crop_padding = 2, .flip = true, .device = GetParam()});
  const auto first = loader.next()->x.to_vector<double>();
  loader.start_epoch(1);
  EXPECT_NE(loader.next()->x.to_vector<double>(), first);
}

// What a loader gives depends on seed, epoch and the samples drawn so far, and on nothing else.
TEST_P(LoaderTest, RestoredInTheMiddleOfAnEpochItGoesOnTheSame) {
  const LoaderOptions options{
      .batch_size = 3, .seed = 9, .crop_padding = 1, .flip = true, .device = GetParam()};
  DataLoader unbroken(make_set(10), options), restored(make_set(10), options);
  for (int i = 0; i < 2; ++i) unbroken.next();
  unbroken.start_epoch(1);
  unbroken.next();
  restored.restore(unbroken.position());
  for (int i = 0; i < 2; ++i) {
    const auto a = unbroken.next(), b = restored.next();
    EXPECT_EQ(a->x.to_vector<float>(), b->x.to_vector<float>());
    EXPECT_EQ(a->labels.to_vector<int64_t>(), b->labels.to_vector<int64_t>());
  }
  EXPECT_EQ(unbroken.position(), restored.position());
}

// gather() alone moves the device's counter, as a replayed step does.
TEST_P(LoaderTest, TheDeviceCountsByItself) {
  DataLoader loader(make_set(6), {.batch_size = 2, .shuffle = false, .device = GetParam()});
  EXPECT_EQ(loader.gather(2).labels.to_vector<int64_t>(), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(loader.gather(2).labels.to_vector<int64_t>(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(loader.gather(2).labels.to_vector<int64_t>(), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(loader.gather(2).labels.to_vector<int64_t>(), (std::vector<int64_t>{0, 1}));
}

// Whatever a batch depends on, the pixels, too, which leave the host for a GPU.
TEST_P(LoaderTest, SettingsTellSetsAndOptionsApart) {
  ImageSet set = make_set(5, 2);
  LoaderOptions options{.batch_size = 1, .device = GetParam()};
  std::set<std::string> seen;
  const auto expect_another = [&](std::string_view what) {
    EXPECT_TRUE(seen.insert(DataLoader(set, options).settings()).second) << what;
  };
  expect_another("nothing");
  set.images.back() ^= 1;
  expect_another("a pixel");
  set.mean[1] = 0.25f;
  expect_another("mean");
  set.std[1] = 0.75f;
  expect_another("std");
  options.dtype = DType::bf16;
  expect_another("dtype");
  options.format = MemoryFormat::contiguous;
  expect_another("format");
}

GRADUS_ON_EACH_DEVICE(LoaderTest);

TEST(LoaderCuda, BatchesAreThoseOfTheCpuBitForBit) {
  GRADUS_SKIP_WITHOUT(kCuda);
  LoaderOptions options{.batch_size = 16, .seed = 2, .crop_padding = 3, .flip = true};
  DataLoader host(make_set(50, 3, 7, 9), options);
  options.device = kCuda;
  DataLoader device(make_set(50, 3, 7, 9), options);
  while (const auto a = host.next()) {
    const auto b = device.next();
    EXPECT_EQ(a->x.to_vector<float>(), b->x.to_vector<float>());
    EXPECT_EQ(a->labels.to_vector<int64_t>(), b->labels.to_vector<int64_t>());
  }
}

TEST(Loader, OnTheCpuTheSetIsNotCopied) {
  const int64_t before = host_allocator()->stats().bytes_in_use;
  const DataLoader loader(make_set(1000, 3, 32, 32), {});
  EXPECT_LT(host_allocator()->stats().bytes_in_use - before, 100'000);
}

TEST(Loader, ShufflesByTheSeed) {
  EXPECT_EQ(epoch_order(100, true, 1, 0), epoch_order(100, true, 1, 0));
  EXPECT_NE(epoch_order(100, true, 1, 0), epoch_order(100, true, 2, 0));
  EXPECT_NE(epoch_order(100, true, 1, 0), epoch_order(100, true, 1, 1));
  EXPECT_EQ(epoch_order(3, false, 1, 7), (std::vector<int32_t>{0, 1, 2}));
  // Every image comes first about as often.
  std::vector<int> first(5, 0);
  for (int64_t epoch = 0; epoch < 5000; ++epoch) {
    ++first[static_cast<size_t>(epoch_order(5, true, 1, epoch)[0])];
  }
  for (const int count : first) EXPECT_NEAR(count, 1000, 150);
}

TEST(Loader, Errors) {
  constexpr auto invalid = ErrorCode::invalid_argument;
  EXPECT_ERROR(DataLoader(make_set(5), {.batch_size = 0}), invalid,
               "batch_size must be 1 to 5, the number of images, got 0");
  EXPECT_ERROR(DataLoader(make_set(5), {.batch_size = 6}), invalid, "got 6");
  EXPECT_ERROR(DataLoader(make_set(0), {}), invalid, "empty set");
  EXPECT_ERROR(DataLoader(make_set(5), {.batch_size = 1, .dtype = DType::u8}), invalid, "u8");
  EXPECT_ERROR(DataLoader(make_set(5), {.batch_size = 1, .crop_padding = -1}), invalid,
               "crop_padding");
  ImageSet set = make_set(5);
  set.labels.pop_back();
  EXPECT_ERROR(DataLoader(set, {.batch_size = 1}), invalid, "5 images", "4 labels");
  set = make_set(5);
  set.labels[3] = 7;
  EXPECT_ERROR(DataLoader(set, {.batch_size = 1}), invalid, "labels must be below 7", "got 7");
  set = make_set(5);
  set.std[0] = 0;
  EXPECT_ERROR(DataLoader(set, {.batch_size = 1}), invalid, "std must be positive");
  set = make_set(5);
  set.mean[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_ERROR(DataLoader(set, {.batch_size = 1}), invalid, "data_loader: mean must be finite");
  set.mean.clear();
  EXPECT_ERROR(DataLoader(set, {.batch_size = 1}), invalid, "mean and a std");
  set = make_set(5);
  set.h = int64_t{1} << 62, set.w = 4;
  EXPECT_ERROR(DataLoader(set, {.batch_size = 1}), invalid, "data_loader", "does not fit 63 bits");
  EXPECT_ERROR(epoch_order(-1, false, 0, 0), invalid, "epoch_order", "got -1");
  EXPECT_ERROR(epoch_order(int64_t{1} << 31, false, 0, 0), invalid, "0 to 2^31 - 1 images");
  DataLoader loader(make_set(5), {.batch_size = 2});
  EXPECT_ERROR(loader.restore({.epoch = 0, .samples = 5}), invalid, "an epoch has 4 samples");
}

}  // namespace
}  // namespace gradus::nn
