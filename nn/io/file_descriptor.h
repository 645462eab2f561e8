// Owner of a POSIX file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace gradus::nn {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int value) : value_(value) {}
  FileDescriptor(FileDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~FileDescriptor() { close(); }

  explicit operator bool() const { return value_ >= 0; }
  int get() const { return value_; }

  // 0, or -1 with errno set.
  int close() { return value_ < 0 ? 0 : ::close(std::exchange(value_, -1)); }

 private:
  int value_ = -1;
};

}  // namespace gradus::nn
