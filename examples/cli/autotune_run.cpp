#include "examples/cli/autotune_run.h"

#include <fmt/core.h>

#include "examples/cli/option_checks.h"
#include "examples/cli/progress.h"
#include "nn/autotune_file.h"

namespace gradus::cli {

void add_autotune_options(CLI::App& command, AutotuneOptions& options) {
  CLI::Option* file =
      command
          .add_option("--autotune", options.path,
                      "Compute convolutions on a GPU as this file says, the fastest way that was "
                      "measured for each; without such a file, measure and write it")
          ->type_name("FILE")
          ->check(check_name)
          ->envname("GRADUS_AUTOTUNE");
  command
      .add_flag("--autotune-measure", options.measure,
                "Also measure what the file lacks, and add it")
      ->needs(file);
}

int with_autotune(const AutotuneOptions& options, const std::function<int()>& run, bool quiet) {
  if (options.path.empty()) return run();
  nn::AutotuneFile file(options.path, options.measure);
  if (file.table().measures()) check_can_be_created("--autotune", options.path);
  int status = 0;
  file.run([&] { status = run(); });
  if (quiet) return status;
  for (const std::string& note : file.notes()) print_error(fmt::format("autotune: {}\n", note));
  return status;
}

}  // namespace gradus::cli
