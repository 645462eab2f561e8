#include "nn/data/image_set.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cmath>
#include <filesystem>

#include "nn/data/cifar10.h"
#include "tests/support/expect_error.h"
#include "tests/support/files.h"

namespace gradus::nn {
namespace {

using namespace gradus::test;  // NOLINT: tests only

constexpr const char* kImages = "train-images-idx3-ubyte";
constexpr const char* kLabels = "train-labels-idx1-ubyte";

Bytes images_file(uint32_t n, uint32_t h, uint32_t w) {
  Bytes pixels(n * h * w);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i);
  return join({{0, 0, 8, 3}, big_endian(n, 4), big_endian(h, 4), big_endian(w, 4), pixels});
}

Bytes labels_file(const Bytes& labels) {
  return join({{0, 0, 8, 1}, big_endian(labels.size(), 4), labels});
}

// A record whose pixels count up from `first_pixel`.
Bytes cifar_record(uint8_t label, uint8_t first_pixel) {
  Bytes record(kCifar10RecordBytes, label);
  for (size_t i = 1; i < record.size(); ++i) {
    record[i] = static_cast<uint8_t>(first_pixel + i - 1);
  }
  return record;
}

ImageSet empty_cifar() {
  ImageSet set;
  set.classes = 10;
  return set;
}

TEST(ImageSet, PlainAndPackedFiles) {
  const TempDir dir;
  dir.file(kImages, images_file(3, 4, 5));
  dir.file(std::string(kLabels) + ".gz", gzip(labels_file({7, 0, 9})));
  const ImageSet set = load_fashion_mnist(dir.path(), true);
  EXPECT_EQ(set.n, 3);
  EXPECT_EQ(set.c, 1);
  EXPECT_EQ(set.h, 4);
  EXPECT_EQ(set.w, 5);
  EXPECT_EQ(set.images.size(), 60u);
  EXPECT_EQ(set.images[59], 59);
  EXPECT_EQ(set.labels, (std::vector<uint8_t>{7, 0, 9}));
  EXPECT_EQ(set.classes, 10);
  EXPECT_EQ(set.class_names[9], "Ankle boot");
  EXPECT_EQ(set.mean, std::vector<float>{0.2860f});
  EXPECT_EQ(set.std, std::vector<float>{0.3530f});
}

TEST(ImageSet, TestPartHasItsOwnFiles) {
  const TempDir dir;
  dir.file("t10k-images-idx3-ubyte.gz", gzip(images_file(2, 2, 2)));
  dir.file("t10k-labels-idx1-ubyte", labels_file({1, 2}));
  const ImageSet set = load_mnist(dir.path(), false);
  EXPECT_EQ(set.n, 2);
  EXPECT_EQ(set.class_names[3], "3");
  EXPECT_EQ(set.mean, std::vector<float>{0.1307f});
  EXPECT_EQ(set.std, std::vector<float>{0.3081f});
  EXPECT_ERROR(load_mnist(dir.path(), true), ErrorCode::io, "lacks train-images-idx3-ubyte");
}

TEST(ImageSet, OtherUsualPlaces) {
  const TempDir dir;
  dir.file("FashionMNIST/raw/train-images-idx3-ubyte", images_file(1, 2, 2));
  dir.file("FashionMNIST/raw/train-labels-idx1-ubyte", labels_file({4}));
  EXPECT_EQ(load_fashion_mnist(dir.path(), true).labels, Bytes{4});
  dir.file("train-images.idx3-ubyte", images_file(1, 2, 2));
  dir.file("train-labels.idx1-ubyte.gz", gzip(labels_file({5})));
  EXPECT_EQ(load_fashion_mnist(dir.path(), true).labels, Bytes{5});
}

// As unpackers make them that put each file into a folder of its own name.
TEST(ImageSet, FoldersDoNotHideFiles) {
  const TempDir dir;
  std::filesystem::create_directory(dir.path(kImages));
  dir.file(kLabels, labels_file({3}));
  EXPECT_ERROR(load_mnist(dir.path(), true), ErrorCode::io, "lacks train-images-idx3-ubyte: ");
  dir.file("train-images.idx3-ubyte", images_file(1, 2, 2));
  EXPECT_EQ(load_mnist(dir.path(), true).labels, Bytes{3});
  std::filesystem::remove(dir.path(kImages));
  ASSERT_EQ(::mkfifo(dir.path(kImages).c_str(), 0600), 0);
  EXPECT_ERROR(load_mnist(dir.path(), true), ErrorCode::io, kImages, "is not a regular file");
}

TEST(ImageSet, MissingDirectory) {
  const TempDir dir;
  const std::string missing = dir.path("nowhere");
  EXPECT_ERROR(load_fashion_mnist(missing, true), ErrorCode::io,
               "directory '" + missing + "' does not exist", kImages, kLabels,
               "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", ".gz",
               "Debian package dataset-fashion-mnist");
  EXPECT_ERROR(load_mnist(missing, false), ErrorCode::io, missing, "t10k-images-idx3-ubyte");
  EXPECT_ERROR(load_cifar10(missing, true), ErrorCode::io, missing, "data_batch_5.bin",
               "test_batch.bin", "cifar-10-binary.tar.gz");
  EXPECT_ERROR(load_mnist("", true), ErrorCode::io, "directory '' does not exist");
  EXPECT_ERROR(load_mnist(dir.file("file", {1}), true), ErrorCode::io, "is a file");
}

TEST(ImageSet, MissingFile) {
  const TempDir dir;
  EXPECT_ERROR(load_fashion_mnist(dir.path(), true), ErrorCode::io, dir.path(),
               "lacks train-images-idx3-ubyte, train-labels-idx1-ubyte: expected",
               "dataset-fashion-mnist");
  dir.file(kImages, images_file(1, 2, 2));
  EXPECT_ERROR(load_fashion_mnist(dir.path(), true), ErrorCode::io, dir.path(),
               "lacks train-labels-idx1-ubyte: expected");
}

TEST(ImageSet, CountMismatch) {
  const TempDir dir;
  dir.file(kImages, images_file(3, 2, 2));
  dir.file(kLabels, labels_file({1, 2}));
  EXPECT_ERROR(load_mnist(dir.path(), true), ErrorCode::io, kImages, "holds 3 images", kLabels,
               "holds 2 labels");
}

TEST(ImageSet, LabelOutOfRange) {
  const TempDir dir;
  dir.file(kImages, images_file(3, 2, 2));
  dir.file(kLabels, labels_file({9, 10, 255}));
  EXPECT_ERROR(load_mnist(dir.path(), true), ErrorCode::io, kLabels,
               "label 10 at index 1, expected below 10");
}

TEST(ImageSet, DamagedFilesAreNamed) {
  const TempDir dir;
  dir.file(kLabels, labels_file({1, 2, 3}));
  Bytes images = images_file(3, 2, 2);
  images.pop_back();
  dir.file(kImages, images);
  EXPECT_ERROR(load_mnist(dir.path(), true), ErrorCode::io, kImages,
               "u8[3,2,2] needs 12 bytes of data, has 11");
  dir.file(kImages, labels_file({1, 2, 3}));
  EXPECT_ERROR(load_mnist(dir.path(), true), ErrorCode::io, kImages,
               "expected an IDX array of 3 dimensions, got 1");
  dir.file(kImages, images_file(3, 2, 2));
  dir.file(kLabels, images_file(3, 1, 1));
  EXPECT_ERROR(load_mnist(dir.path(), true), ErrorCode::io, kLabels,
               "expected an IDX array of 1 dimensions, got 3");
  dir.file(kLabels, join({{0, 0, 0x0B, 1}, big_endian(3, 4), Bytes(6, 0)}));
  EXPECT_ERROR(load_mnist(dir.path(), true), ErrorCode::io, kLabels,
               "expected a non-empty array of u8, got i16[3]");
}

TEST(ImageSet, EmptyFilesAreRefused) {
  const TempDir dir;
  dir.file(kImages, images_file(0, 28, 28));
  dir.file(kLabels, labels_file({}));
  EXPECT_ERROR(load_mnist(dir.path(), true), ErrorCode::io, kImages,
               "expected a non-empty array of u8, got u8[0,28,28]");
}

TEST(ImageSet, ByName) {
  const TempDir dir;
  dir.file(kImages, images_file(1, 2, 2));
  dir.file(kLabels, labels_file({8}));
  EXPECT_EQ(load_image_set("mnist", dir.path(), true).class_names[8], "8");
  EXPECT_EQ(load_image_set("fashion-mnist", dir.path(), true).class_names[8], "Bag");
  EXPECT_ERROR(load_image_set("cifar10", dir.path(), false), ErrorCode::io, "test_batch.bin");
  EXPECT_ERROR(load_image_set("imagenet", dir.path(), true), ErrorCode::invalid_argument,
               "'imagenet'", "mnist, fashion-mnist or cifar10");
}

TEST(ImageSet, DefaultDirectory) {
  EXPECT_EQ(default_data_dir("fashion-mnist"), "/usr/share/datasets/fashion-mnist");
  EXPECT_EQ(default_data_dir("mnist"), "");
  EXPECT_EQ(default_data_dir("cifar10"), "");
  EXPECT_ERROR(default_data_dir("svhn"), ErrorCode::invalid_argument, "'svhn'");
}

TEST(Cifar10, D090_SizeMustBeWholeRecords) {
  const TempDir dir;
  for (const auto& [size, records] : {std::pair{3073, 1}, {30730, 10}}) {
    ImageSet set = empty_cifar();
    append_cifar10(set, dir.file("batch.bin", Bytes(size, 3)));
    EXPECT_EQ(set.n, records);
    EXPECT_EQ(set.labels, Bytes(records, 3));
    EXPECT_EQ(set.images.size(), records * 3072u);
  }
  for (const int size : {3072, 3074, 30731, 2 * 3074}) {
    for (const bool packed : {false, true}) {
      ImageSet set = empty_cifar();
      const Bytes bytes(size, 3);
      const std::string path = dir.file("batch.bin", packed ? gzip(bytes) : bytes);
      EXPECT_ERROR(append_cifar10(set, path), ErrorCode::io, "batch.bin",
                   "size of " + std::to_string(size) + " bytes", "record length 3073");
      EXPECT_EQ(set.n, 0);
    }
  }
  ImageSet set = empty_cifar();
  EXPECT_ERROR(append_cifar10(set, dir.file("batch.bin", {})), ErrorCode::io, "no records");
  EXPECT_ERROR(append_cifar10(set, dir.file("batch.bin", Bytes(2 * 3074, 3))), ErrorCode::io,
               "it fits CIFAR-100");
}

TEST(Cifar10, D090_LabelOutOfRange) {
  const TempDir dir;
  ImageSet set = empty_cifar();
  const Bytes bytes = join({cifar_record(9, 0), cifar_record(10, 0)});
  EXPECT_ERROR(append_cifar10(set, dir.file("batch.bin", bytes)), ErrorCode::io, "batch.bin",
               "record 1 has label 10, expected below 10");
  EXPECT_EQ(set.n, 0);
  EXPECT_TRUE(set.images.empty());
}

TEST(Cifar10, PackedBatchIsBounded) {
  const TempDir dir;
  ImageSet set = empty_cifar();
  const Bytes member = gzip(Bytes(1000 * 3073, 0));
  Bytes packed;
  for (int i = 0; i < 101; ++i) packed.insert(packed.end(), member.begin(), member.end());
  EXPECT_ERROR(append_cifar10(set, dir.file("batch.bin.gz", packed)), ErrorCode::io, "batch.bin.gz",
               "more than 100000 records");
}

TEST(Cifar10, FiveBatchesInOrder) {
  const TempDir dir;
  for (uint8_t i = 1; i <= 5; ++i) {
    const Bytes batch = join({cifar_record(i, i + 50), cifar_record(0, 0)});
    const std::string name = "cifar-10-batches-bin/data_batch_" + std::to_string(i) + ".bin";
    i == 2 ? dir.file(name + ".gz", gzip(batch)) : dir.file(name, batch);
  }
  const ImageSet set = load_cifar10(dir.path(), true);
  EXPECT_EQ(set.n, 10);
  EXPECT_EQ(set.c, 3);
  EXPECT_EQ(set.h, 32);
  EXPECT_EQ(set.w, 32);
  EXPECT_EQ(set.labels, (Bytes{1, 0, 2, 0, 3, 0, 4, 0, 5, 0}));
  EXPECT_EQ(set.images.size(), 10 * 3072u);
  EXPECT_EQ(set.images[4 * 3072], 53);  // the third batch's first pixel
  EXPECT_EQ(set.class_names[6], "frog");
  EXPECT_EQ(set.mean, (std::vector<float>{0.4914f, 0.4822f, 0.4465f}));
  EXPECT_EQ(set.std, (std::vector<float>{0.2470f, 0.2435f, 0.2616f}));
  EXPECT_ERROR(load_cifar10(dir.path(), false), ErrorCode::io, "lacks test_batch.bin");
  std::filesystem::remove(dir.path("cifar-10-batches-bin/data_batch_4.bin"));
  EXPECT_ERROR(load_cifar10(dir.path(), true), ErrorCode::io, "lacks data_batch_4.bin: expected");
}

TEST(FashionMnist, RealFiles) {
  const std::string dir = default_data_dir("fashion-mnist");
  if (!std::filesystem::is_directory(dir)) {
    GTEST_SKIP() << "the Debian package dataset-fashion-mnist is not installed";
  }
  for (const bool train : {true, false}) {
    const ImageSet set = load_fashion_mnist(dir, train);
    EXPECT_EQ(set.n, train ? 60'000 : 10'000);
    EXPECT_EQ(set.h, 28);
    EXPECT_EQ(set.w, 28);
    std::array<int64_t, 10> count{};
    for (const uint8_t label : set.labels) ++count[label];
    for (const int64_t of_class : count) EXPECT_EQ(of_class, set.n / 10);
    if (!train) continue;
    double sum = 0, squares = 0;
    for (const uint8_t pixel : set.images) {
      sum += pixel;
      squares += static_cast<double>(pixel) * pixel;
    }
    const double pixels = static_cast<double>(set.images.size());
    const double mean = sum / pixels;
    EXPECT_NEAR(mean / 255, set.mean[0], 1e-4);
    EXPECT_NEAR(std::sqrt(squares / pixels - mean * mean) / 255, set.std[0], 1e-4);
  }
}

}  // namespace
}  // namespace gradus::nn
