#include "nn/data/loader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/launch.h"
#include "core/ops/gather_batch.h"
#include "nn/io/fingerprint.h"
#include "nn/io/safetensors_checksum.h"

namespace gradus::nn {
namespace {

void check_count(int64_t n, std::string_view op) {
  check(n >= 0 && n <= std::numeric_limits<int32_t>::max(), op,
        "expected 0 to 2^31 - 1 images, got ", n);
}

void check_set(const ImageSet& set, const LoaderOptions& options) {
  check(set.n > 0, "data_loader", "expected at least one image, got an empty set");
  check_count(set.n, "data_loader");
  const int64_t pixels = checked_numel({set.n, set.c, set.h, set.w}, "data_loader");
  check(std::ssize(set.images) == pixels && std::ssize(set.labels) == set.n, "data_loader",
        "expected ", set.n, " images of ", set.c, "x", set.h, "x", set.w, ", got ",
        set.images.size(), " pixels and ", set.labels.size(), " labels");
  const auto largest = std::max_element(set.labels.begin(), set.labels.end());
  check(*largest < set.classes, "data_loader", "labels must be below ", set.classes,
        ", the number of classes, got ", *largest);
  check(std::ssize(set.mean) == set.c && std::ssize(set.std) == set.c, "data_loader",
        "expected a mean and a std for each of ", set.c, " channels, got ", set.mean.size(),
        " and ", set.std.size());
  for (const float mean : set.mean) {
    check(std::isfinite(mean), "data_loader", "mean must be finite, got ", mean);
  }
  for (const float std : set.std) {
    check(std::isfinite(std) && std > 0, "data_loader", "std must be positive, got ", std);
  }
  check(options.batch_size >= 1 && options.batch_size <= set.n, "data_loader",
        "batch_size must be 1 to ", set.n, ", the number of images, got ", options.batch_size);
  check(options.crop_padding >= 0 && options.crop_padding <= (1 << 30), "data_loader",
        "crop_padding must be 0 to 2^30, got ", options.crop_padding);
  check(is_floating(options.dtype), "data_loader", "expected a floating dtype, got ",
        options.dtype);
}

Tensor pixel_values(const ImageSet& set, DType dtype, Device device) {
  std::vector<double> values;
  for (size_t c = 0; c < static_cast<size_t>(set.c); ++c) {
    for (int pixel = 0; pixel < 256; ++pixel) {
      values.push_back((pixel / 255.0 - double{set.mean[c]}) / double{set.std[c]});
    }
  }
  return Tensor::from_vector(values, {set.c, 256}, {.dtype = dtype, .device = device});
}

std::string hash_of(const std::vector<uint8_t>& labels) {
  Fingerprint fingerprint;
  fingerprint.add(std::as_bytes(std::span(labels)));
  return fingerprint.text();
}

// A CRC-32: quicker by far than the hash above, for there are many.
std::string checksum_of(const std::vector<uint8_t>& pixels) {
  safetensors::Checksum checksum;
  checksum.add(std::as_bytes(std::span(pixels)));
  return checksum.digits();
}

// "0.49/0.48/0.45"
std::string joined(const std::vector<float>& values) {
  std::string text;
  for (const float value : values) text += concat(text.empty() ? "" : "/", value);
  return text;
}

}  // namespace

std::vector<int32_t> epoch_order(int64_t n, bool shuffle, uint64_t seed, int64_t epoch) {
  check_count(n, "epoch_order");
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (!shuffle) return order;
  PhiloxSequence random(seed, random_stream::kShuffle | static_cast<uint64_t>(epoch));
  for (size_t left = order.size(); left > 1; --left) {
    std::swap(order[left - 1], order[random.below(left)]);
  }
  return order;
}

DataLoader::DataLoader(ImageSet set, const LoaderOptions& options)
    : set_(std::move(set)), options_(options) {
  check_set(set_, options_);
  labels_hash_ = hash_of(set_.labels);
  pixels_checksum_ = checksum_of(set_.images);
  const Device device = options_.device;
  const TensorOptions bytes{.dtype = DType::u8};
  images_ = Tensor::wrap(set_.images.data(), {set_.n, set_.c, set_.h, set_.w}, bytes).to(device);
  labels_ = Tensor::wrap(set_.labels.data(), {set_.n}, bytes).to(device);
  if (device != kCpu) {
    set_.images = {};
    set_.labels = {};
  }
  values_ = pixel_values(set_, options_.dtype, device);
  order_ = Tensor::empty({set_.n}, {.dtype = DType::i32, .device = device});
  device_epoch_ = Tensor::zeros({1}, {.dtype = DType::i64, .device = device});
  device_drawn_ = Tensor::zeros({1}, {.dtype = DType::i64, .device = device});
  start_epoch(0);
}

int64_t DataLoader::batches() const {
  const int64_t full = set_.n / options_.batch_size;
  return options_.drop_last || full * options_.batch_size == set_.n ? full : full + 1;
}

int64_t DataLoader::samples_per_epoch() const {
  return options_.drop_last ? set_.n / options_.batch_size * options_.batch_size : set_.n;
}

void DataLoader::start_epoch(int64_t epoch) {
  restore({.epoch = epoch, .samples = 0, .drawn = position_.drawn});
}

void DataLoader::restore(const LoaderPosition& position) {
  check(position.epoch >= 0 && position.drawn >= 0 && position.samples >= 0 &&
            position.samples <= samples_per_epoch(),
        "data_loader", "cannot stand at sample ", position.samples, " of epoch ",
        position.epoch + 1, ": an epoch has ", samples_per_epoch(), " samples");
  position_ = position;
  const auto order = epoch_order(set_.n, options_.shuffle, options_.seed, position.epoch);
  order_.copy_(Tensor::from_vector(order, {set_.n}));
  device_epoch_.fill_(static_cast<double>(position.samples));
  device_drawn_.fill_(static_cast<double>(position.drawn));
}

int64_t DataLoader::next_batch_size() const {
  return std::min(options_.batch_size, samples_per_epoch() - position_.samples);
}

std::optional<Batch> DataLoader::next() {
  const int64_t size = next_batch_size();
  if (size == 0) return std::nullopt;
  Batch batch = gather(size);
  advance(size);
  return batch;
}

Batch DataLoader::gather(int64_t batch_size) const {
  const Device device = options_.device;
  Batch batch;
  batch.x = Tensor::empty({batch_size, set_.c, set_.h, set_.w},
                          {.dtype = options_.dtype, .device = device, .format = options_.format});
  batch.labels = Tensor::empty({batch_size}, {.dtype = DType::i64, .device = device});
  launch(GatherBatch{.images = images_.raw(),
                     .all_labels = labels_.raw(),
                     .order = order_.raw(),
                     .values = values_.raw(),
                     .position = device_epoch_.raw(),
                     .drawn = device_drawn_.raw(),
                     .x = batch.x.raw(),
                     .labels = batch.labels.raw(),
                     .seed = options_.seed,
                     .padding = options_.crop_padding,
                     .flip = options_.flip});
  return batch;
}

void DataLoader::advance(int64_t batch_size) {
  position_.samples += batch_size;
  position_.drawn += batch_size;
}

std::string DataLoader::settings() const {
  return concat("data_set ", set_.name.empty() ? "unnamed" : set_.name, ", images ", set_.n, "x",
                set_.c, "x", set_.h, "x", set_.w, ", labels ", labels_hash_, ", batch_size ",
                options_.batch_size, ", shuffle ", options_.shuffle, ", drop_last ",
                options_.drop_last, ", seed ", options_.seed, ", crop_padding ",
                options_.crop_padding, ", flip ", options_.flip, ", pixels ", pixels_checksum_,
                ", mean ", joined(set_.mean), ", std ", joined(set_.std), ", dtype ",
                options_.dtype, ", format ", options_.format);
}

}  // namespace gradus::nn
