// The program `gradus`.

#include <fmt/core.h>

#include <cstdio>
#include <exception>

#include "core/build_config.h"
#include "examples/cli/commands.h"

int main(int argc, char** argv) {
  using namespace gradus::cli;
  CLI::App app("gradus " GRADUS_VERSION ": trains small CNNs on the CPU or a CUDA GPU.", "gradus");
  app.set_version_flag("--version", "gradus " GRADUS_VERSION);
  app.require_subcommand(1);
  app.footer("`gradus COMMAND --help` lists the options of a command.");
  Action action;
  add_info(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadUsage;
  }
  try {
    return action();
  } catch (const std::exception& error) {
    fmt::print(stderr, "gradus: {}\n", error.what());
    return kFailed;
  }
}
