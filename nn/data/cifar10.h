// Reader for the binary version of CIFAR-10: records of one label byte and 3072 pixel bytes, the
// red, green and blue planes of 32x32, row-major.
#pragma once

#include <cstdint>
#include <string>

#include "nn/data/image_set.h"

namespace gradus::nn {

inline constexpr int64_t kCifar10RecordBytes = 1 + 3 * 32 * 32;

// Appends the records of a plain or gzip file to the images and labels of `set` and counts them in
// set.n. Throws io, naming the file, for an empty file, a size that is not a multiple of the record
// and a label that is not below set.classes; `set` is then unchanged.
void append_cifar10(ImageSet& set, const std::string& path);

}  // namespace gradus::nn
