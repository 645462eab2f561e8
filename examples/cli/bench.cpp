#include "examples/cli/commands.h"

namespace gradus::cli {

void add_bench(CLI::App& app, Action& action) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed")->require_subcommand(0, 1);
  add_bench_step(*bench, action);
  add_bench_layers(*bench, action);
  add_bench_conv(*bench, action);
}

}  // namespace gradus::cli
