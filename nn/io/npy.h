// Reader and writer for npy, NumPy's file of one array: a magic, a version, a padded header that
// spells a Python dictionary, then the elements.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

namespace gradus::nn {

struct NpyArray {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;  // row-major, little-endian
};

// Reads versions 1.0 to 3.0 with descr '<f8', '<f4', '<f2', '|u1', '|b1' (True and False, as u8),
// '<i4' or '<i8', of at most 8 dimensions; column-major arrays (fortran_order) are brought into
// row-major order. Throws io, naming the file, for anything else, for a header that is not spelled
// as Python prints it, and for data that is longer or shorter than the header says.
NpyArray read_npy(const std::string& path);

// Writes version 1.0 atomically. Throws invalid_argument for bytes that do not fit the shape,
// unsupported for bf16, which the format does not have; io where writing fails.
void write_npy(const std::string& path, DType dtype, const Shape& shape,
               std::span<const std::byte> bytes);

}  // namespace gradus::nn
