#include "nn/io/atomic_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/error.h"

namespace gradus::nn {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxAttempts = 1000;

// A link there leads to what a process has open, which may have no name.
bool is_in_proc(const fs::path& path) {
  const fs::path folder = path.parent_path();
  struct statfs system {};
  return ::statfs(folder.empty() ? "." : folder.c_str(), &system) == 0 &&
         system.f_type == PROC_SUPER_MAGIC;
}

}  // namespace

fs::path followed(fs::path path, std::error_code& code) {
  constexpr int kMaxLinks = 40;
  std::error_code ignored;  // of what does not exist
  for (int i = 0; fs::is_symlink(fs::symlink_status(path, ignored)) && !is_in_proc(path); ++i) {
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
  const fs::file_status old = fs::symlink_status(target_, code);
  const bool exists = fs::exists(old);
  if (exists && !fs::is_regular_file(old)) {
    fail(ErrorCode::io, op_, "'", path_, "': is not a regular file");
  }
  // Renaming asks the folder only.
  if (exists && !FileDescriptor(::open(target_.c_str(), O_WRONLY | O_CLOEXEC))) {
    fail_io("cannot be written", errno);
  }
  const auto mode =
      static_cast<mode_t>(exists ? old.permissions() & fs::perms::all : fs::perms(0666));
  // O_EXCL: a name that another writer or an interrupted run holds is passed over.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  for (int attempt = 0; attempt < kMaxAttempts && !descriptor_; ++attempt) {
    const std::string name = concat("gradus-", ::getpid(), "-", attempt, ".tmp");
    temporary_ = fs::path(target_).replace_filename(name).string();
    descriptor_ = FileDescriptor(::open(temporary_.c_str(), kFlags, mode));
    if (!descriptor_ && errno != EEXIST && errno != EINTR) break;
  }
  if (!descriptor_) fail_io("cannot be created", errno);
  if (exists) ::fchmod(descriptor_.get(), mode);  // what the umask took
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
