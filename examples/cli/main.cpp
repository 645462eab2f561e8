// The program `gradus`.

#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <vector>

#include "core/build_config.h"
#include "examples/cli/commands.h"

int main(int argc, char** argv) {
  using namespace gradus::cli;
  CLI::App app("gradus " GRADUS_VERSION ": trains small CNNs on the CPU or a CUDA GPU.", "gradus");
  app.set_version_flag("--version", "gradus " GRADUS_VERSION);
  app.require_subcommand(0, 1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.footer("`gradus COMMAND --help` lists the options of a command.");
  Action action;
  add_train(app, action);
  add_bench(app, action);
  add_info(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadUsage;
  }
  if (!action) {
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    fmt::print(stderr, "{}", chosen.empty() ? app.help() : chosen[0]->help(app.get_name()));
    return kBadUsage;
  }
  try {
    return action();
  } catch (const std::exception& error) {
    fmt::print(stderr, "gradus: {}\n", error.what());
    return kFailed;
  }
}
