// The program `gradus`.

#include <fmt/core.h>

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <new>
#include <system_error>
#include <vector>

#include "core/build_config.h"
#include "core/error.h"
#include "examples/cli/commands.h"

namespace {

// A closed standard stream's number would go to the next file that is opened, and texts into it.
void open_standard_streams() {
  for (int number = 0; number <= 2; ++number) {
    if (fcntl(number, F_GETFD) == -1) (void)open("/dev/null", O_RDWR);  // takes the lowest number
  }
}

}  // namespace

void gradus::cli::finish_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  fail(ErrorCode::io, "standard output",
       "cannot be written: ", std::generic_category().message(errno));
}

int main(int argc, char** argv) {
  using namespace gradus::cli;
  open_standard_streams();
  CLI::App app("gradus " GRADUS_VERSION ": trains small CNNs on the CPU or a CUDA GPU.", "gradus");
  app.set_version_flag("--version", "gradus " GRADUS_VERSION);
  app.require_subcommand(0, 1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.footer("`gradus COMMAND --help` lists the options of a command.");
  Action action;
  add_train(app, action);
  add_compare(app, action);
  add_bench(app, action);
  add_explain(app, action);
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
  } catch (const std::bad_alloc&) {
    std::fputs("gradus: out of memory: the system gives the host no more\n", stderr);
    return kFailed;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gradus: {}\n", error.what());
    return kFailed;
  }
}
