#include "nn/io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>

#include "tests/support/expect_error.h"
#include "tests/support/files.h"

namespace gradus::nn {
namespace {

using namespace gradus::test;  // NOLINT: tests only
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

TEST(AtomicFile, AppearsOnCommit) {
  const TempDir dir;
  dir.file("a", to_bytes("old"));
  {
    AtomicFile file("save", dir.path("a"));
    file.write("new ");
    file.write("text");
    EXPECT_EQ(read_file(dir.path("a")), to_bytes("old"));
    file.commit();
    EXPECT_EQ(read_file(dir.path("a")), to_bytes("new text"));
  }
  EXPECT_EQ(dir.names(), Names{"a"});
}

TEST(AtomicFile, WithoutCommitNothingChanges) {
  const TempDir dir;
  dir.file("a", to_bytes("old"));
  {
    AtomicFile file("save", dir.path("a"));
    file.write("new");
    EXPECT_EQ(dir.names().size(), 2u);
  }
  EXPECT_EQ(read_file(dir.path("a")), to_bytes("old"));
  EXPECT_EQ(dir.names(), Names{"a"});
}

TEST(AtomicFile, TwoWritersTakeTwoTemporaryNames) {
  const TempDir dir;
  AtomicFile first("save", dir.path("a"));
  AtomicFile second("save", dir.path("a"));
  EXPECT_EQ(dir.names().size(), 2u);
  first.write("first");
  second.write("second");
  second.commit();
  first.commit();
  EXPECT_EQ(read_file(dir.path("a")), to_bytes("first"));
  EXPECT_EQ(dir.names(), Names{"a"});
}

TEST(AtomicFile, FollowsLinks) {
  const TempDir dir;
  dir.file("store/target", to_bytes("old"));
  fs::create_symlink("store/target", dir.path("link"));
  AtomicFile file("save", dir.path("link"));
  file.write("new");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(dir.path("link")));
  EXPECT_EQ(read_file(dir.path("store/target")), to_bytes("new"));
}

TEST(AtomicFile, FollowsLinksToWhatIsYetToBe) {
  const TempDir dir;
  fs::create_directory(dir.path("store"));
  fs::create_symlink("../target", dir.path("store/second"));
  fs::create_symlink("store/second", dir.path("first"));
  AtomicFile file("save", dir.path("first"));
  file.write("new");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(dir.path("first")));
  EXPECT_TRUE(fs::is_symlink(dir.path("store/second")));
  EXPECT_EQ(read_file(dir.path("target")), to_bytes("new"));
  fs::create_symlink("loop", dir.path("loop"));
  EXPECT_ERROR(AtomicFile("save", dir.path("loop")), ErrorCode::io, "cannot follow the link: ");
}

TEST(AtomicFile, RefusesWhatIsNoFile) {
  const TempDir dir;
  EXPECT_ERROR(AtomicFile("save", dir.path()), ErrorCode::io, "save: '" + dir.path(),
               "is not a regular file");
  EXPECT_ERROR(AtomicFile("save", "/dev/null"), ErrorCode::io, "/dev/null",
               "is not a regular file");
  EXPECT_ERROR(AtomicFile("save", dir.path("no/a")), ErrorCode::io, "cannot be created",
               "No such file");
  EXPECT_ERROR(AtomicFile("save", ""), ErrorCode::io, "save: ''", "names no file");
  EXPECT_ERROR(AtomicFile("save", dir.path("no/")), ErrorCode::io, "names no file");
}

TEST(AtomicFile, FullDiskKeepsTheOldFile) {
  const TempDir dir;
  dir.file("a", to_bytes("old"));
  // A limit on the file size stands in for a full disk.
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    AtomicFile file("save", dir.path("a"));
    EXPECT_ERROR(file.write(std::string(5000, 'x')), ErrorCode::io, dir.path("a"),
                 "cannot be written", "File too large");
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(read_file(dir.path("a")), to_bytes("old"));
  EXPECT_EQ(dir.names(), Names{"a"});
}

TEST(AtomicFile, ModeFollowsTheUmask) {
  const TempDir dir;
  const mode_t old = ::umask(027);
  AtomicFile file("save", dir.path("a"));
  ::umask(old);
  file.commit();
  EXPECT_EQ(fs::status(dir.path("a")).permissions(), fs::perms(0640));
}

}  // namespace
}  // namespace gradus::nn
