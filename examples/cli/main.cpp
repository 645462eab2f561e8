// The program `gradus`.

#include <fmt/core.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/build_config.h"
#include "core/error.h"
#include "examples/cli/commands.h"
#include "examples/cli/progress.h"
#include "examples/cli/text_page.h"

namespace {

// A closed standard stream's number would go to the next file that is opened, and texts into it.
void open_standard_streams() {
  for (int number = 0; number <= 2; ++number) {
    if (fcntl(number, F_GETFD) == -1) (void)open("/dev/null", O_RDWR);  // takes the lowest number
  }
}

// The parser's own order is from the last to the first. For an empty value, as `--save=$FILE` of a
// script may have, it would take the next argument; behind `--save ""` it takes the empty one.
std::vector<std::string> arguments_of(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string text = argv[i];
    const bool is_empty = text.starts_with("--") && text.find('=') == text.size() - 1;
    if (is_empty) text.pop_back();
    arguments.push_back(std::move(text));
    if (is_empty) arguments.emplace_back();
  }
  std::ranges::reverse(arguments);
  return arguments;
}

// Breaks the texts into lines of a terminal.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    return beside(CLI::Formatter::make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::string text = beside(command->get_description());
    const std::string indent = "\n" + std::string(get_column_width(), ' ');
    for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += indent.size())
      text.replace(at, 1, indent);
    return fmt::format("  {:<{}}{}\n", command->get_name(), get_column_width() - 2, text);
  }
  std::string make_footer(const CLI::App* app) const override {
    std::string text;
    std::istringstream lines(CLI::Formatter::make_footer(app));
    for (std::string line; std::getline(lines, line);)
      text += gradus::cli::wrapped(line, columns(), "  ") + "\n";
    return text;
  }

 private:
  static size_t columns() {
    return std::clamp<size_t>(gradus::cli::terminal_columns(STDOUT_FILENO), 60, 100);
  }
  std::string beside(const std::string& text) const {
    return gradus::cli::wrapped(text, columns() - get_column_width(), "");
  }
};

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
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(0, 1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.footer(
      "`gradus COMMAND --help` lists the options of a command.\n"
      "Exit status: 0 for success; 1 for an error, which standard error says, or where a command "
      "that judges (compare, explain --check, bench conv) finds anything else than right; 2 for a "
      "wrong command line; 128 + the number of the signal that ended a training: 130 after Ctrl-C, "
      "143 after SIGTERM, 129 after its terminal has closed.");
  Action action;
  add_train(app, action);
  add_compare(app, action);
  add_bench(app, action);
  add_explain(app, action);
  add_info(app, action);
  try {
    app.parse(arguments_of(argc, argv));
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return kBadUsage;
    action = [] {  // help or the version, which has been printed
      std::cout.flush();
      finish_output();
      return 0;
    };
  }
  if (!action) {
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    print_error(chosen.empty() ? app.help() : chosen[0]->help(app.get_name()));
    return kBadUsage;
  }
  try {
    return action();
  } catch (const std::bad_alloc&) {
    std::fputs("gradus: out of memory: the system gives the host no more\n", stderr);
    return kFailed;
  } catch (const std::exception& error) {
    print_error(fmt::format("gradus: {}\n", error.what()));
    return kFailed;
  }
}
