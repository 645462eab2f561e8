// A file that appears under its name whole or not at all.
//
//   AtomicFile file("save", path);
//   file.write(header);
//   file.write(data);
//   file.commit();
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "nn/io/file_descriptor.h"

namespace gradus::nn {

// What a symbolic link leads to in the end, whether that exists or not; other paths, and links of
// /proc such as /dev/stdout leads to, as they are.
std::filesystem::path followed(std::filesystem::path path, std::error_code& code);

// Writes to a temporary name in the directory of `path`; commit() flushes it to the disk and
// renames it, so that readers see the old file or the complete new one. Without commit() the old
// file stays and the temporary one is removed. A symbolic link is followed: its target is replaced.
// The new file has the old one's mode.
class AtomicFile {
 public:
  // Throws io if the directory or an old file cannot be written, or `path` is something else than a
  // regular file. `op` starts every error text.
  AtomicFile(std::string op, std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);  // throws io
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();  // throws io; call once, last

 private:
  [[noreturn]] void fail_io(std::string_view what, int code) const;
  void sync_directory() const;

  std::string op_;
  std::string path_;       // as given, for error texts
  std::string target_;     // with links followed
  std::string temporary_;  // empty once renamed
  FileDescriptor descriptor_;
};

// All of a file at once.
void write_atomically(std::string op, const std::string& path, std::string_view text);

}  // namespace gradus::nn
