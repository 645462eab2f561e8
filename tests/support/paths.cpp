#include "tests/support/paths.h"

namespace gradus::test {

std::string source_path(const std::string& path) { return GRADUS_SOURCE_DIR "/" + path; }

std::string program_path(const std::string& name) {
  return (name == "gradus" ? GRADUS_PROGRAM_DIR "/" : GRADUS_EXAMPLES_DIR "/") + name;
}

}  // namespace gradus::test
