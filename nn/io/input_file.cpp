#include "nn/io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace gradus::nn {

namespace {

std::string system_message(int code) { return std::generic_category().message(code); }

// read(2) until `out` is full or the file ends; -1 on an error, with errno set.
ssize_t read_full(int descriptor, std::span<std::byte> out) {
  size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t got = ::read(descriptor, out.data() + filled, out.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  return static_cast<ssize_t>(filled);
}

}  // namespace

// The state of zlib between two reads. Members of a gzip file may follow each other (RFC 1952).
struct InputFile::Inflater {
  z_stream stream{};
  std::array<std::byte, 1 << 16> input;
  bool member_done = false;
  int64_t produced = 0;

  Inflater() {
    // 16 asks for the gzip wrapper, whose checksum and length zlib verifies.
    if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) {
      fail(ErrorCode::internal, "inflate", "zlib cannot be initialised");
    }
  }
  ~Inflater() { inflateEnd(&stream); }
};

InputFile::InputFile(std::string op, std::string path, bool gzip)
    : op_(std::move(op)), path_(std::move(path)) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  descriptor_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  require(bool(descriptor_), "cannot be opened: ", system_message(errno));
  struct stat status {};
  require(::fstat(descriptor_.get(), &status) == 0, "cannot be examined: ", system_message(errno));
  require(S_ISREG(status.st_mode), "is not a regular file");
  size_ = status.st_size;
  if (!gzip) return;
  std::array<uint8_t, 2> magic{};
  const ssize_t got = ::pread(descriptor_.get(), magic.data(), magic.size(), 0);
  require(got >= 0, "cannot be read: ", system_message(errno));
  if (magic == std::array<uint8_t, 2>{0x1f, 0x8b}) inflater_ = std::make_unique<Inflater>();
}

InputFile::~InputFile() = default;

std::optional<int64_t> InputFile::remaining() const {
  if (inflater_) return std::nullopt;
  return std::max<int64_t>(size_ - position_, 0);
}

size_t InputFile::read_bytes(std::span<std::byte> out) {
  return inflater_ ? read_compressed(out) : read_plain(out);
}

size_t InputFile::read_plain(std::span<std::byte> out) {
  const ssize_t got = read_full(descriptor_.get(), out);
  require(got >= 0, "cannot be read: ", system_message(errno));
  position_ += got;
  return static_cast<size_t>(got);
}

size_t InputFile::read_compressed(std::span<std::byte> out) {
  z_stream& stream = inflater_->stream;
  size_t filled = 0;
  while (filled < out.size()) {
    if (stream.avail_in == 0) {
      const size_t got = read_plain(inflater_->input);
      if (got == 0 && inflater_->member_done) break;
      require(got > 0, "is truncated: the compressed data ends after ", inflater_->produced,
              " bytes of output");
      stream.next_in = reinterpret_cast<Bytef*>(inflater_->input.data());
      stream.avail_in = static_cast<uInt>(got);
    }
    if (std::exchange(inflater_->member_done, false)) inflateReset(&stream);
    const auto room = static_cast<uInt>(std::min<size_t>(out.size() - filled, 1u << 30));
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + filled);
    stream.avail_out = room;
    const int status = inflate(&stream, Z_NO_FLUSH);
    filled += room - stream.avail_out;
    inflater_->produced += room - stream.avail_out;
    inflater_->member_done = status == Z_STREAM_END;
    require(status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR,
            "is corrupt: ", stream.msg ? stream.msg : "zlib refuses the compressed data", " after ",
            inflater_->produced, " bytes of output");
  }
  return filled;
}

void InputFile::require_payload(int64_t needed, int64_t present, std::string_view what) const {
  require(present >= needed, "is truncated: ", what, " needs ", needed, " bytes of data, has ",
          present);
  require(present <= needed, "is oversized: ", what, " needs ", needed, " bytes of data, has ",
          present);
}

void InputFile::require_end(int64_t needed, std::string_view what) {
  std::array<std::byte, 1> extra;
  require(read_bytes(extra) == 0, "is oversized: ", what, " needs ", needed,
          " bytes of data, has more");
}

}  // namespace gradus::nn
