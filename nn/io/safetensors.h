// Reader and writer for safetensors, the format of weights: an 8-byte little-endian header length,
// a JSON header {"name": {"dtype", "shape", "data_offsets"}, "__metadata__": {text: text}}, padded
// with spaces, then the data of all tensors, row-major, without holes.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

namespace gradus::nn {

// In the metadata: the CRC-32 of all bytes of the file, as eight hex digits that count as zeros.
inline constexpr std::string_view kChecksumKey = "gradus.crc32";

struct SafeTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;  // row-major, little-endian
};

struct SafeTensors {
  std::vector<SafeTensor> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;

  const SafeTensor* find(std::string_view name) const;  // nullptr if there is none
};

// What the writer takes: the bytes stay where they are.
struct SafeTensorView {
  std::string_view name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;
};

// Throws io, naming the file and the tensor, unless header and data fit each other exactly: known
// dtypes (F64 F32 F16 BF16 U8 I32 I64), at most 8 dimensions, every data byte in one tensor; or
// where the metadata has a checksum that is not the file's.
SafeTensors read_safetensors(const std::string& path);

// Writes atomically. Wider dtypes come first, then by name, so that all data is aligned; the bytes
// of the file depend on the contents alone. With `checksum` the metadata gets the file's, under
// kChecksumKey; another file's, which may be in `metadata`, is left out. Throws invalid_argument
// for names that are not unique, not UTF-8 or "__metadata__" and for bytes that do not fit the
// shape; io where writing fails.
void write_safetensors(const std::string& path, std::span<const SafeTensorView> tensors,
                       const std::map<std::string, std::string>& metadata = {},
                       bool checksum = false);

}  // namespace gradus::nn
