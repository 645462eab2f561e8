// Checks of options that need more than one of them, or the file system. They throw what the parser
// throws, so that a wrong command line ends with one line and kBadUsage, before anything is done.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/shape.h"

namespace gradus::cli {

// Checks of an option's text: empty when it will do, else what is wrong with it.
std::string check_positive_real(const std::string& text);      // finite and above 0
std::string check_non_negative_real(const std::string& text);  // finite, 0 or above
std::string check_name(const std::string& text);               // of a file or folder: not empty

// An option's integer, for transform(): it is decimal. The parser by itself takes 010 as octal.
inline constexpr uint64_t kMostInteger = std::numeric_limits<int64_t>::max();
CLI::Validator integer(uint64_t first, uint64_t last = kMostInteger);

// "2,4,3": up to eight sizes of 1 or more; nothing for another text.
std::optional<Shape> parse_shape(std::string_view text);

// An option and the file that it names; empty: none.
using NamedFile = std::pair<const char*, std::string>;

// No file that is written may be another of these, whatever the spelling and the links.
void check_files_differ(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read);

// Refuses those of the options that were given: "--groups: is for group_norm, not for layer_norm".
void refuse(const CLI::App& command, std::initializer_list<const char*> options,
            const std::string& why);

// What is printed is lost if a file turns out at the end not to be writable. Throws io.
void check_can_be_created(const char* option, const std::string& path);

}  // namespace gradus::cli
