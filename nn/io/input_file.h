// A regular file read from front to back, plain or gzip; every error names the file.
//
//   InputFile file("read_idx", path);
//   std::array<uint8_t, 4> magic;
//   file.require(file.read(magic) == 4, "needs 4 bytes");
//   auto data = file.read_payload<uint8_t>(bytes, "u8[10,28,28]");
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "nn/io/file_descriptor.h"

namespace gradus::nn {

class InputFile {
 public:
  static constexpr int64_t kMostUnpacked = int64_t{4} << 30;

  // Opens `path`; throws io unless it is a readable regular file. `op` starts every error text.
  // With `gzip`, a file that begins with the bytes 1f 8b is decompressed while it is read.
  InputFile(std::string op, std::string path, bool gzip = false);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }

  // Bytes not yet read; unknown (empty) for compressed files.
  std::optional<int64_t> remaining() const;

  // Reads up to out.size() bytes; fewer only at the end of the file. Throws io on a read error and
  // on truncated or corrupt compressed data.
  template <class Byte, size_t N>
  size_t read(std::span<Byte, N> out) {
    return read_bytes(std::as_writable_bytes(out));
  }

  // Fills `out`, which the file's size has promised.
  template <class Byte, size_t N>
  void read_exactly(std::span<Byte, N> out) {
    require(read(out) == out.size_bytes(), "ended while it was read");
  }

  // Up to `most` bytes; fewer only at the end of the file. Memory grows with the data that
  // arrives, not with `most`; of a compressed file, which may be small, up to kMostUnpacked bytes.
  template <class Byte>
  std::vector<Byte> read_up_to(int64_t most) {
    std::vector<Byte> data;
    int64_t step = remaining().value_or(kFirstStep);
    while (std::ssize(data) < most) {
      const size_t filled = data.size();
      data.resize(filled + std::min(most - std::ssize(data), step));
      const size_t got = read(std::span(data).subspan(filled));
      const bool ended = filled + got < data.size() || (remaining() && *remaining() == 0);
      data.resize(filled + got);
      if (ended) break;
      require(inflater_ == nullptr || std::ssize(data) <= kMostUnpacked, "unpacks to more than ",
              kMostUnpacked, " bytes: unpack it yourself");
      step = kFirstStep;
    }
    return data;
  }

  // The rest of the file, which must be exactly `bytes` long; `what` says of which array. Where the
  // file's size tells, a wrong length is found before memory is taken.
  template <class Byte>
  std::vector<Byte> read_payload(int64_t bytes, std::string_view what) {
    if (const auto present = remaining()) require_payload(bytes, *present, what);
    std::vector<Byte> data = read_up_to<Byte>(bytes);
    require_payload(bytes, std::ssize(data), what);
    require_end(bytes, what);
    return data;
  }

  // Throws io with "op: 'path': parts" unless `condition` holds.
  template <class... Parts>
  void require(bool condition, const Parts&... parts) const {
    if (!condition) [[unlikely]] {
      refuse(parts...);
    }
  }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorCode::io, op_, "'", path_, "': ", parts...);
  }

 private:
  struct Inflater;
  static constexpr int64_t kFirstStep = 1 << 20;

  size_t read_bytes(std::span<std::byte> out);
  size_t read_plain(std::span<std::byte> out);
  size_t read_compressed(std::span<std::byte> out);
  void require_payload(int64_t needed, int64_t present, std::string_view what) const;
  void require_end(int64_t needed, std::string_view what);

  std::string op_;
  std::string path_;
  FileDescriptor descriptor_;
  int64_t size_ = 0;      // on disk
  int64_t position_ = 0;  // on disk
  std::unique_ptr<Inflater> inflater_;
};

}  // namespace gradus::nn
