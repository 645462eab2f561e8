#include "nn/io/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

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

// As /dev/stdout leads to the file behind `>`, which would go on as one without a name.
TEST(AtomicFile, RefusesWhatIsOpenElsewhere) {
  const TempDir dir;
  const FileDescriptor file(::open(dir.file("a", to_bytes("old")).c_str(), O_WRONLY));
  for (const char* folder : {"/dev/fd/", "/proc/self/fd/"}) {
    const std::string name = concat(folder, file.get());
    EXPECT_ERROR(AtomicFile("save", name), ErrorCode::io, name, "is not a regular file");
    fs::remove(dir.path("link"));
    fs::create_symlink(name, dir.path("link"));
    EXPECT_ERROR(AtomicFile("save", dir.path("link")), ErrorCode::io, "is not a regular file");
  }
  EXPECT_EQ(read_file(dir.path("a")), to_bytes("old"));
}

TEST(AtomicFile, TakesTheLongestNames) {
  const TempDir dir;
  const std::string name(255, 'n');
  write_atomically("save", dir.path(name), "text");
  EXPECT_EQ(read_file(dir.path(name)), to_bytes("text"));
  EXPECT_EQ(dir.names(), Names{name});
}

TEST(AtomicFile, KeepsTheModeOfTheOldFile) {
  const TempDir dir;
  for (const auto mode : {fs::perms(0600), fs::perms(0666)}) {
    fs::permissions(dir.file("a", to_bytes("old")), mode);
    write_atomically("save", dir.path("a"), "new");
    EXPECT_EQ(fs::status(dir.path("a")).permissions(), mode);
  }
}

// Another user's rights for a program of root's, which may write everything.
class OtherUser {
 public:
  OtherUser() : is_root_(::geteuid() == 0), is_other_(!is_root_ || ::seteuid(65534) == 0) {}
  ~OtherUser() {
    if (is_root_ && is_other_ && ::seteuid(0) != 0) std::abort();
  }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;
  explicit operator bool() const { return is_other_; }

 private:
  bool is_root_, is_other_;
};

TEST(AtomicFile, LeavesWriteProtectedFiles) {
  const TempDir dir;
  fs::permissions(dir.path(), fs::perms::all);
  const std::string path = dir.file("a", to_bytes("old"));
  fs::permissions(path, fs::perms(0444));
  {
    const OtherUser user;
    if (!user || !std::ifstream(path)) GTEST_SKIP() << "no other user who can read the folder";
    EXPECT_ERROR(AtomicFile("save", path), ErrorCode::io, "cannot be written", "Permission denied");
  }
  EXPECT_EQ(dir.names(), Names{"a"});
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
