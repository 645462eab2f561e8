// --autotune of `train` and `bench`: measured choices of how to compute, kept in a file.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace gradus::cli {

struct AutotuneOptions {
  std::string path;  // empty: static choices
  bool measure = false;
};

void add_autotune_options(CLI::App& command, AutotuneOptions& options);

// Calls `run` with the file's choices in place, then writes what was measured to it and, unless
// quiet, says on stderr what the file was good for.
int with_autotune(const AutotuneOptions& options, const std::function<int()>& run,
                  bool quiet = false);

}  // namespace gradus::cli
