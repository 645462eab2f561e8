// Small files for tests: a directory that is removed afterwards, whole-file reads and writes, gzip.
#pragma once

#include <zlib.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace gradus::test {

using Bytes = std::vector<uint8_t>;

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gradus-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("no temporary directory");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string path() const { return path_.string(); }
  std::string path(std::string_view name) const { return (path_ / name).string(); }

  // Writes a file and returns its path.
  std::string file(std::string_view name, const Bytes& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream out(path_ / name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    if (!out.flush()) throw std::runtime_error("cannot write a test file");
    return path(name);
  }

  // Names of the files, to see that no temporary one is left.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

 private:
  std::filesystem::path path_;
};

inline Bytes read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

inline Bytes to_bytes(std::string_view text) { return Bytes(text.begin(), text.end()); }

inline Bytes join(std::initializer_list<Bytes> parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// The lowest `count` bytes of a number, little end first.
inline Bytes little_endian(uint64_t value, int count) {
  Bytes bytes;
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(value >> (8 * i)));
  return bytes;
}

inline Bytes big_endian(uint64_t value, int count) {
  const Bytes bytes = little_endian(value, count);
  return Bytes(bytes.rbegin(), bytes.rend());
}

inline Bytes f32_bytes(std::initializer_list<float> values) {
  Bytes bytes;
  for (const float value : values) {
    bytes = join({bytes, little_endian(std::bit_cast<uint32_t>(value), 4)});
  }
  return bytes;
}

inline Bytes f64_bytes(std::initializer_list<double> values) {
  Bytes bytes;
  for (const double value : values) {
    bytes = join({bytes, little_endian(std::bit_cast<uint64_t>(value), 8)});
  }
  return bytes;
}

// Calls read(path) for the file with every single bit flipped; returns how many still load.
// Anything but success or an io error escapes and fails the test.
template <class Read>
int count_readable_flips(const TempDir& dir, const Bytes& bytes, Read&& read) {
  int readable = 0;
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    Bytes flipped = bytes;
    flipped[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    try {
      read(dir.file("flipped", flipped));
      ++readable;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::io) throw;
    }
  }
  return readable;
}

// One gzip member.
inline Bytes gzip(const Bytes& data) {
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("deflateInit2");
  }
  Bytes packed(deflateBound(&stream, data.size()));
  stream.next_in = const_cast<Bytef*>(data.data());
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  const int status = deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  if (status != Z_STREAM_END) throw std::runtime_error("deflate");
  return packed;
}

}  // namespace gradus::test
