// Where the sources and the programs lie. Only paths.cpp holds absolute paths, so that the tests'
// other objects are the same in every clone.
#pragma once

#include <string>

namespace gradus::test {

// A file or folder of the sources: source_path("tests/golden").
std::string source_path(const std::string& path);

// A program of examples/, as built: program_path("quickstart").
std::string program_path(const std::string& name);

}  // namespace gradus::test
