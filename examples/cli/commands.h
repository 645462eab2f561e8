// The commands of the program `gradus`. Each adds itself to the parser and, when it is the one that
// was called, sets the action that main() then runs; the action's result is the exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace gradus::cli {

using Action = std::function<int()>;

void add_train(CLI::App& app, Action& action);
void add_compare(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_explain(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);
// Of `gradus bench`.
void add_bench_step(CLI::App& bench, Action& action);
void add_bench_layers(CLI::App& bench, Action& action);
void add_bench_conv(CLI::App& bench, Action& action);

// Writes out what was printed; throws io when standard output does not take it.
void finish_output();

// Exit statuses beside 0, and beside that of interrupt.h.
inline constexpr int kFailed = 1;    // an error, on standard error; or a verdict other than right
inline constexpr int kBadUsage = 2;  // the command line

}  // namespace gradus::cli
