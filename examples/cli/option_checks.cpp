#include "examples/cli/option_checks.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "nn/io/atomic_file.h"

namespace gradus::cli {
namespace {

namespace fs = std::filesystem;

template <class T>
bool parses(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// The file itself, also where it and what links to it do not exist yet.
fs::path full_path(const std::string& name) {
  std::error_code ignored;
  const fs::path path = nn::followed(fs::absolute(name, ignored), ignored);
  const fs::path full = fs::weakly_canonical(path, ignored);
  return full.empty() ? path.lexically_normal() : full;
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  if (a.empty() || b.empty()) return false;
  return full_path(a) == full_path(b) || fs::equivalent(a, b, ignored);  // hard links
}

}  // namespace

std::string check_positive_real(const std::string& text) {
  double value = 0;
  if (parses(text, value) && std::isfinite(value) && value > 0) return "";
  return fmt::format("expected a finite number above 0, got '{}'", text);
}

std::string check_non_negative_real(const std::string& text) {
  double value = 0;
  if (parses(text, value) && std::isfinite(value) && value >= 0) return "";
  return fmt::format("expected a finite number of 0 or more, got '{}'", text);
}

std::string check_name(const std::string& text) {
  return text.empty() ? "expected the name of a file or folder, got ''" : "";
}

CLI::Validator integer(uint64_t first, uint64_t last) {
  const auto rewrite = [=](std::string& text) -> std::string {
    uint64_t value = 0;
    const bool is_one = parses(text, value);
    if (!is_one || value < first || value > last) {
      const bool is_open = last == kMostInteger && !(is_one && value > last);
      const std::string range = is_open ? "or more" : fmt::format("to {}", last);
      return fmt::format("expected an integer of {} {}, got '{}'", first, range, text);
    }
    text = std::to_string(value);
    return "";
  };
  return CLI::Validator(rewrite, "");
}

std::optional<Shape> parse_shape(std::string_view text) {
  Shape shape;
  while (shape.rank() < kMaxRank) {
    const size_t comma = std::min(text.find(','), text.size());
    int64_t extent = 0;
    if (!parses(text.substr(0, comma), extent) || extent < 1) return {};
    shape.append(extent);
    if (comma == text.size()) return shape;
    text.remove_prefix(comma + 1);
  }
  return {};
}

void check_files_differ(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read) {
  std::vector<NamedFile> earlier = read;
  for (const NamedFile& file : written) {
    for (const auto& [other, name] : earlier) {
      if (!is_same_file(file.second, name)) continue;
      throw CLI::ValidationError(file.first,
                                 fmt::format("'{}' is the file of {}", file.second, other));
    }
    earlier.push_back(file);
  }
}

void refuse(const CLI::App& command, std::initializer_list<const char*> options,
            const std::string& why) {
  for (const char* option : options) {
    if (command.count(option) > 0) throw CLI::ValidationError(option, why);
  }
}

void check_can_be_created(const char* option, const std::string& path) {
  if (path.empty()) return;
  const nn::AtomicFile probe(option, path);  // leaves nothing behind
}

}  // namespace gradus::cli
