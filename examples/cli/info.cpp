// `gradus info`: what this build is and what it runs on.

#include <fmt/core.h>
#include <unistd.h>
#include <zip.h>
#include <zlib.h>

#include <CLI/Version.hpp>
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/build_config.h"
#include "cpu/context.h"
#include "cuda/context.h"
#include "examples/cli/build_info.h"
#include "examples/cli/commands.h"

namespace gradus::cli {
namespace {

using Json = nlohmann::ordered_json;

// The processor's name, as the kernel shows it; "unknown" where it does not.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

Json list_of(std::string_view names) {
  Json list = Json::array();
  for (size_t start = 0; start < names.size();) {
    const size_t end = std::min(names.find(';', start), names.size());
    list.push_back(names.substr(start, end - start));
    start = end + 1;
  }
  return list;
}

Json build_json() {
  Json build{{"type", GRADUS_BUILD_TYPE},
             {"compiler", GRADUS_COMPILER},
             {"sanitizers", GRADUS_SANITIZE},
             {"instruction_sets", list_of(GRADUS_ISAS)},
             {"cuda", GRADUS_HAS_CUDA != 0}};
  if constexpr (GRADUS_HAS_CUDA) {
    build["cuda_toolkit"] = GRADUS_CUDA_TOOLKIT;
    build["cuda_architectures"] = list_of(GRADUS_CUDA_ARCHITECTURES);
  }
  return build;
}

Json cpu_json() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGE_SIZE);
  return {{"name", processor_name()},
          {"instruction_set", to_string(cpu().isa())},
          {"threads", cpu().threads()},
          {"memory_bytes", pages * page_bytes}};
}

Json libraries_json() {
  Json libraries{
      {"eigen", GRADUS_EIGEN_VERSION},
      {"fmt",
       fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"zlib", zlibVersion()},
      {"libzip", zip_libzip_version()},
      {"nlohmann_json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                    NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
      {"cli11", CLI11_VERSION}};
  if constexpr (GRADUS_HAS_CUDA) {
    const CudaVersions versions = cuda_versions();
    const auto dotted = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
    libraries["cuda_runtime"] = dotted(versions.runtime);
    libraries["cuda_driver"] = versions.driver == 0 ? "none" : dotted(versions.driver);
    libraries["cublas_lt"] = fmt::format("{}.{}.{}", versions.cublas_lt / 10000,
                                         versions.cublas_lt / 100 % 100, versions.cublas_lt % 100);
  }
  return libraries;
}

Json info_json() {
  Json gpus = Json::array();
  if constexpr (GRADUS_HAS_CUDA) {
    for (const CudaDeviceInfo& gpu : cuda_devices()) {
      gpus.push_back(
          {{"name", gpu.name},
           {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
           {"multiprocessors", gpu.multiprocessors},
           {"memory_bytes", gpu.total_bytes}});
    }
  }
  return {{"schema", 1},       {"version", GRADUS_VERSION}, {"build", build_json()},
          {"cpu", cpu_json()}, {"cuda_devices", gpus},      {"libraries", libraries_json()}};
}

std::string gib(const Json& bytes) {
  return fmt::format("{:.1f} GiB", bytes.get<double>() / (1 << 30));
}

std::string joined(const Json& list) {
  std::string text;
  for (const Json& item : list) text += (text.empty() ? "" : " ") + item.get<std::string>();
  return text;
}

void print_text(const Json& info) {
  const auto text = [](const Json& value) { return value.get<std::string>(); };
  const Json &build = info["build"], &cpu = info["cpu"];
  fmt::print("gradus {}\n", text(info["version"]));
  fmt::print("build      {}, {}, CPU kernels for {}\n", text(build["type"]),
             text(build["compiler"]), joined(build["instruction_sets"]));
  if (!text(build["sanitizers"]).empty()) {
    fmt::print("           sanitizers {}\n", text(build["sanitizers"]));
  }
  if (build["cuda"]) {
    fmt::print("           CUDA {} for {}\n", text(build["cuda_toolkit"]),
               joined(build["cuda_architectures"]));
  } else {
    fmt::print("           without CUDA\n");
  }
  const int threads = cpu["threads"].get<int>();
  fmt::print("cpu        {}, {} in use, {} thread{}, {}\n", text(cpu["name"]),
             text(cpu["instruction_set"]), threads, threads == 1 ? "" : "s",
             gib(cpu["memory_bytes"]));
  int index = 0;
  for (const Json& gpu : info["cuda_devices"]) {
    fmt::print("cuda:{}     {}, compute capability {}, {} multiprocessors, {}\n", index++,
               text(gpu["name"]), text(gpu["compute_capability"]),
               gpu["multiprocessors"].get<int>(), gib(gpu["memory_bytes"]));
  }
  if (build["cuda"] && index == 0) fmt::print("cuda       no GPU was found\n");
  std::string libraries;
  for (const auto& [name, version] : info["libraries"].items()) {
    libraries += fmt::format("{}{} {}", libraries.empty() ? "" : ", ", name, text(version));
  }
  fmt::print("libraries  {}\n", libraries);
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "info", "Show the version, the devices, the build options and the libraries");
  const auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print one JSON object");
  command->callback([as_json, &action] {
    action = [as_json] {
      const Json info = info_json();
      *as_json ? fmt::print("{}\n", info.dump(2)) : print_text(info);
      finish_output();
      return 0;
    };
  });
}

}  // namespace gradus::cli
