// Reader and writer for npz, NumPy's zip of named npy arrays.
#pragma once

#include <map>
#include <string>

#include "nn/io/npy.h"

namespace gradus::nn {

// By name, without the ".npy" that the entries end in.
using NpyArrays = std::map<std::string, NpyArray, std::less<>>;

// Reads what np.savez and np.savez_compressed write: entries NAME.npy, stored or deflated. Throws
// io, naming the file and the entry, for anything else, as read_npy() does for the arrays, and for
// damaged archives and entries.
NpyArrays read_npz(const std::string& path);

// Writes stored entries atomically; equal arrays give equal files. Throws invalid_argument for
// names that are empty, hold a slash or a NUL, are not UTF-8 or too long for zip, and as
// write_npy().
void write_npz(const std::string& path, const NpyArrays& arrays);

}  // namespace gradus::nn
