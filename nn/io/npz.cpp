#include "nn/io/npz.h"

#include <zip.h>

#include <memory>

#include "nn/io/atomic_file.h"
#include "nn/io/input_file.h"
#include "nn/io/npy_bytes.h"

namespace gradus::nn {
namespace {

constexpr std::string_view kSuffix = ".npy";

struct ZipDiscard {
  void operator()(zip_t* archive) const { zip_discard(archive); }
  void operator()(zip_file_t* file) const { zip_fclose(file); }
  void operator()(zip_source_t* source) const { zip_source_free(source); }
};
template <class T>
using ZipHandle = std::unique_ptr<T, ZipDiscard>;

// Reading.

ZipHandle<zip_t> open_archive(const NpySource& source) {
  int code = 0;
  ZipHandle<zip_t> archive(zip_open(source.place.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &code));
  if (archive == nullptr) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    // That the file exists is known: its parts name others that do not.
    const std::string text =
        code == ZIP_ER_NOENT ? "a part is missing" : zip_error_strerror(&error);
    zip_error_fini(&error);
    source.refuse("is not a readable npz file: ", text);
  }
  return archive;
}

// The whole entry, whose checksum the last read compares; of one that holds more than its header
// says, little more than that.
std::vector<std::byte> read_entry(const NpySource& source, zip_t* archive, zip_uint64_t index) {
  constexpr size_t kStep = 1 << 20;
  ZipHandle<zip_file_t> file(zip_fopen_index(archive, index, 0));
  source.require(file != nullptr, "cannot be opened: ", zip_strerror(archive));
  std::vector<std::byte> bytes;
  int64_t whole = 0;
  for (;;) {
    const size_t filled = bytes.size();
    bytes.resize(filled + kStep);
    const zip_int64_t got = zip_fread(file.get(), bytes.data() + filled, kStep);
    source.require(got >= 0, "is damaged: ", zip_file_strerror(file.get()));
    bytes.resize(filled + static_cast<size_t>(got));
    if (got == 0) return bytes;
    if (filled == 0) whole = npy_size(source, bytes);
    if (std::ssize(bytes) > whole) return bytes;
  }
}

// Writing.

// The zip library would cut a longer name, whose length it keeps in 16 bits, and one at a NUL.
void check_name(const std::string& name) {
  constexpr size_t kMostBytes = UINT16_MAX - kSuffix.size();
  check(name.size() <= kMostBytes, "write_npz", "the name of an array has at most ", kMostBytes,
        " bytes, got ", name.size());
  check(!name.empty() && name.find_first_of(std::string_view("/\0", 2)) == std::string::npos,
        "write_npz", "an array cannot be named '", name, "'");
}

// Entries live until the archive has been closed: the zip library reads them then.
void add_entry(zip_t* archive, const std::string& name, const std::vector<std::byte>& bytes) {
  zip_source_t* data = zip_source_buffer(archive, bytes.data(), bytes.size(), 0);
  const zip_int64_t index =
      data == nullptr
          ? -1
          : zip_file_add(archive, (name + std::string(kSuffix)).c_str(), data, ZIP_FL_ENC_UTF_8);
  if (index < 0) {
    if (data != nullptr) zip_source_free(data);
    check(zip_error_code_zip(zip_get_error(archive)) != ZIP_ER_INVAL, "write_npz",
          "the name of an array must be UTF-8, got '", name, "'");
    fail(ErrorCode::io, "write_npz", "'", name, "': ", zip_strerror(archive));
  }
  // No clock: equal arrays give equal files. 33 is 1980-01-01, the first date that zip knows.
  const zip_uint64_t entry = static_cast<zip_uint64_t>(index);
  check(zip_set_file_compression(archive, entry, ZIP_CM_STORE, 0) == 0 &&
            zip_file_set_dostime(archive, entry, 0, 33, 0) == 0,
        "write_npz", zip_strerror(archive));
}

std::vector<std::byte> contents(zip_source_t* target) {
  zip_stat_t status;
  zip_stat_init(&status);
  check(zip_source_stat(target, &status) == 0 && zip_source_open(target) == 0, "write_npz",
        zip_error_strerror(zip_source_error(target)));
  std::vector<std::byte> bytes(status.size);
  const zip_int64_t got = zip_source_read(target, bytes.data(), bytes.size());
  zip_source_close(target);
  check(got == std::ssize(bytes), "write_npz", "the archive cannot be read back");
  return bytes;
}

}  // namespace

NpyArrays read_npz(const std::string& path) {
  const NpySource file{"read_npz", path};
  InputFile(file.op, path);  // throws unless it is a readable regular file
  const ZipHandle<zip_t> archive = open_archive(file);
  NpyArrays arrays;
  const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  for (zip_uint64_t index = 0; index < static_cast<zip_uint64_t>(count); ++index) {
    const char* found = zip_get_name(archive.get(), index, ZIP_FL_ENC_GUESS);
    file.require(found != nullptr, "has an entry without a name");
    std::string name = found;
    const NpySource entry{file.op, concat(path, "' entry '", name)};
    entry.require(name.ends_with(kSuffix), "is no array: its name does not end in .npy");
    name.resize(name.size() - kSuffix.size());
    entry.require(!arrays.contains(name), "stands twice in the file");
    arrays.emplace(name, parse_npy(entry, read_entry(entry, archive.get(), index)));
  }
  return arrays;
}

void write_npz(const std::string& path, const NpyArrays& arrays) {
  check(!arrays.empty(), "write_npz", "there are no arrays");  // a zip file has an entry or more
  std::vector<std::vector<std::byte>> entries;
  for (const auto& [name, array] : arrays) {
    check_name(name);
    const std::string header =
        npy_header("write_npz", array.dtype, array.shape, std::ssize(array.bytes));
    const auto bytes = std::as_bytes(std::span(header));
    entries.emplace_back(bytes.begin(), bytes.end());
    entries.back().insert(entries.back().end(), array.bytes.begin(), array.bytes.end());
  }
  const ZipHandle<zip_source_t> target(zip_source_buffer_create(nullptr, 0, 0, nullptr));
  check(target != nullptr, "write_npz", "out of memory");
  zip_source_keep(target.get());  // one for the archive, which frees it when it is closed
  ZipHandle<zip_t> archive(zip_open_from_source(target.get(), ZIP_TRUNCATE, nullptr));
  if (archive == nullptr) {
    zip_source_free(target.get());
    fail(ErrorCode::io, "write_npz", "cannot begin an archive");
  }
  size_t next = 0;
  for (const auto& [name, array] : arrays) add_entry(archive.get(), name, entries[next++]);
  check(zip_close(archive.get()) == 0, "write_npz", zip_strerror(archive.get()));
  (void)archive.release();  // closed
  AtomicFile file("write_npz", path);
  file.write(contents(target.get()));
  file.commit();
}

}  // namespace gradus::nn
