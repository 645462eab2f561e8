#include "nn/data/cifar10.h"

#include <vector>

#include "nn/io/input_file.h"

namespace gradus::nn {

namespace {

// The set's own batches hold 10,000 records; the bound keeps a small .gz from filling the memory.
constexpr int64_t kMaxRecords = 100'000;
constexpr int64_t kCifar100RecordBytes = kCifar10RecordBytes + 1;

std::vector<uint8_t> read_records(InputFile& file) {
  auto bytes = file.read_up_to<uint8_t>(kMaxRecords * kCifar10RecordBytes + 1);
  const int64_t size = std::ssize(bytes);
  file.require(size <= kMaxRecords * kCifar10RecordBytes, "holds more than ", kMaxRecords,
               " records of ", kCifar10RecordBytes, " bytes");
  file.require(size > 0, "holds no records: 0 bytes");
  file.require(size % kCifar10RecordBytes == 0, "size of ", size,
               " bytes is not a multiple of the CIFAR-10 record length ", kCifar10RecordBytes,
               size % kCifar100RecordBytes ? "" : "; it fits CIFAR-100, whose records have 3074");
  return bytes;
}

}  // namespace

void append_cifar10(ImageSet& set, const std::string& path) {
  InputFile file("read_cifar10", path, /*gzip=*/true);
  const std::vector<uint8_t> bytes = read_records(file);
  const int64_t records = std::ssize(bytes) / kCifar10RecordBytes;
  for (int64_t i = 0; i < records; ++i) {
    const int label = bytes[i * kCifar10RecordBytes];
    file.require(label < set.classes, "record ", i, " has label ", label, ", expected below ",
                 set.classes);
  }
  set.images.reserve(set.images.size() + records * (kCifar10RecordBytes - 1));
  set.labels.reserve(set.labels.size() + records);
  for (auto record = bytes.begin(); record != bytes.end(); record += kCifar10RecordBytes) {
    set.labels.push_back(*record);
    set.images.insert(set.images.end(), record + 1, record + kCifar10RecordBytes);
  }
  set.n += records;
}

}  // namespace gradus::nn
