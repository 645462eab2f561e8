#include "nn/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/error.h"

namespace gradus::nn {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxAttempts = 1000;

}  // namespace

fs::path followed(fs::path path, std::error_code& code) {
  constexpr int kMaxLinks = 40;
  std::error_code ignored;  // of what does not exist
  for (int i = 0; fs::is_symlink(fs::symlink_status(path, ignored)); ++i) {
    if (i == kMaxLinks) {
      code = std::make_error_code(std::errc::too_many_symbolic_link_levels);
      return path;
    }
    path = path.parent_path() / fs::read_symlink(path, ignored);
  }
  return path;
}

AtomicFile::AtomicFile(std::string op, std::string path)
    : op_(std::move(op)), path_(std::move(path)) {
  std::error_code code;
  target_ = followed(path_, code).string();
  if (code) fail_io("cannot follow the link", code.value());
  if (fs::path(target_).filename().empty()) {
    fail(ErrorCode::io, op_, "'", path_, "': names no file");
  }
  // Renaming over a device or a directory would destroy or miss it.
  const fs::file_status status = fs::status(target_, code);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail(ErrorCode::io, op_, "'", path_, "': is not a regular file");
  }
  // O_EXCL: a name that another writer or an interrupted run holds is passed over.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  for (int attempt = 0; attempt < kMaxAttempts && !descriptor_; ++attempt) {
    temporary_ = concat(target_, ".tmp-", ::getpid(), "-", attempt);
    descriptor_ = FileDescriptor(::open(temporary_.c_str(), kFlags, 0666));
    if (!descriptor_ && errno != EEXIST && errno != EINTR) break;
  }
  if (!descriptor_) fail_io("cannot be created", errno);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_io("cannot be written", errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  int status;
  do {
    status = ::fsync(descriptor_.get());
  } while (status != 0 && errno == EINTR);
  if (status != 0) fail_io("cannot be flushed", errno);
  if (descriptor_.close() != 0) fail_io("cannot be closed", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_io("cannot be renamed", errno);
  temporary_.clear();
  sync_directory();
}

// Makes the new name last through a power cut. File systems that cannot do so are left alone.
void AtomicFile::sync_directory() const {
  const fs::path parent = fs::path(target_).parent_path();
  const int directory = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_CLOEXEC);
  if (directory < 0) return;
  ::fsync(directory);
  ::close(directory);
}

void AtomicFile::fail_io(std::string_view what, int code) const {
  fail(ErrorCode::io, op_, "'", path_, "': ", what, ": ", std::generic_category().message(code));
}

void write_atomically(std::string op, const std::string& path, std::string_view text) {
  AtomicFile file(std::move(op), path);
  file.write(text);
  file.commit();
}

}  // namespace gradus::nn
