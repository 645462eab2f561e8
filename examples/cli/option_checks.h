// Checks of options that need more than one of them, or the file system. They throw what the parser
// throws, so that a wrong command line ends with one line and kBadUsage, before anything is done.
#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace gradus::cli {

// Checks of an option's text: empty when it will do, else what is wrong with it.
std::string check_count(const std::string& text);              // an integer of 1 or more
std::string check_positive_real(const std::string& text);      // finite and above 0
std::string check_non_negative_real(const std::string& text);  // finite, 0 or above
std::string check_seed(const std::string& text);               // an integer of 0 to 2^64 - 1
std::string check_name(const std::string& text);               // of a file: not empty

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
