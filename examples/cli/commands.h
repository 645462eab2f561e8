// The commands of the program `gradus`. Each adds itself to the parser and, when it is the one that
// was called, sets the action that main() then runs; the action's result is the exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace gradus::cli {

using Action = std::function<int()>;

void add_info(CLI::App& app, Action& action);

// Exit statuses beside 0.
inline constexpr int kFailed = 1;         // a gradus::Error: its text has been printed
inline constexpr int kBadUsage = 2;       // the command line
inline constexpr int kInterrupted = 130;  // Ctrl-C, everything saved

}  // namespace gradus::cli
