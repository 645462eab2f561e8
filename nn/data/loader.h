// Batches of an image set, made on the device that holds the whole set as u8.
//
//   nn::DataLoader loader(nn::load_image_set("mnist", dir, true), {.batch_size = 128, .seed = 1});
//   for (int epoch = 0; epoch < 2; ++epoch) {
//     loader.start_epoch(epoch);
//     while (const auto batch = loader.next()) train_on(batch->x, batch->labels);
//   }
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/tensor.h"
#include "nn/data/image_set.h"

namespace gradus::nn {

struct LoaderOptions {
  int64_t batch_size = 128;
  bool shuffle = true;    // another order in every epoch, from (seed, epoch)
  bool drop_last = true;  // leave out the last batch of an epoch when it is not full
  uint64_t seed = 0;
  int64_t crop_padding = 0;  // random crop after padding with zero pixels, 0 to 2^30; 0: none
  bool flip = false;         // mirror every other sample, at random
  Device device = kCpu;
  DType dtype = DType::f32;
  MemoryFormat format = MemoryFormat::channels_last;  // what convolutions read fastest
};

struct Batch {
  Tensor x;       // [b, c, h, w], (pixel / 255 - mean) / std
  Tensor labels;  // [b], i64
};

// Where a loader stands; with the same set and options it decides all further batches.
struct LoaderPosition {
  int64_t epoch = 0;
  int64_t samples = 0;  // taken from this epoch
  int64_t drawn = 0;    // taken from all epochs, which the augmentation counts
  friend bool operator==(const LoaderPosition&, const LoaderPosition&) = default;
};

class DataLoader {
 public:
  // Moves the set to the device (on the CPU its memory is used as it is). Throws invalid_argument
  // for a batch of 0 or larger than the set, an empty set, a label that is no class and a mean or
  // std that does not fit.
  DataLoader(ImageSet set, const LoaderOptions& options);
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  int64_t samples() const { return set_.n; }
  int64_t batches() const;            // of one epoch
  int64_t samples_per_epoch() const;  // without the batch that drop_last leaves out
  Shape image_shape() const { return {set_.c, set_.h, set_.w}; }
  int classes() const { return set_.classes; }
  const LoaderOptions& options() const { return options_; }

  // Begins an epoch: its order goes to the device.
  void start_epoch(int64_t epoch);
  // The next batch, or nothing at the end of the epoch.
  std::optional<Batch> next();

  // The two halves of next(), for a step that is captured once and replayed: gather() enqueues the
  // batch that the device's own counter points to and moves that counter; advance() counts it on
  // the host. One advance() per execution.
  Batch gather(int64_t batch_size) const;
  void advance(int64_t batch_size);
  int64_t next_batch_size() const;  // 0 at the end of the epoch

  const LoaderPosition& position() const { return position_; }
  void restore(const LoaderPosition& position);  // throws when it is outside the set
  // Set (its name, size, hashes of its labels and pixels, mean and std), seed and options in one
  // line of "name value" pairs, to tell whether two runs see the same batches.
  std::string settings() const;

 private:
  ImageSet set_;  // the vectors are empty where the device has its own copy
  LoaderOptions options_;
  std::string labels_hash_, pixels_checksum_;
  LoaderPosition position_;
  Tensor images_;        // [n, c, h, w], u8
  Tensor labels_;        // [n], u8
  Tensor values_;        // [c, 256]: what each pixel value becomes
  Tensor order_;         // [n], i32
  Tensor device_epoch_;  // [1], i64: samples taken from this epoch
  Tensor device_drawn_;  // [1], i64: samples taken from all epochs
};

// The images of an epoch in order: 0 to n - 1, shuffled by (seed, epoch).
std::vector<int32_t> epoch_order(int64_t n, bool shuffle, uint64_t seed, int64_t epoch);

}  // namespace gradus::nn
