// Running a program as a user would: arguments in, exit status and output out.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace gradus::test {

struct ProcessResult {
  int status = -1;  // exit status, or 128 + the signal that ended it
  std::string out;  // standard output
  std::string err;  // standard error
};

struct ProcessOptions {
  std::string dir = ".";  // working directory; also holds the files of the output
  int64_t memory = 0;     // limit of the address space in bytes; 0: none
  // Called again and again with the output so far; true sends SIGINT, once.
  std::function<bool(const std::string& out)> interrupt_when;
};

inline std::string read_text(const std::string& path) {
  std::ifstream in(path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

namespace detail {

[[noreturn]] inline void become(const std::vector<std::string>& command,
                                const ProcessOptions& options) {
  const auto redirect = [&](const char* name, int to) {
    const int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, to) < 0) _exit(125);
  };
  if (chdir(options.dir.c_str()) != 0) _exit(125);
  // Tests that run under nohup or in the background of a script have them ignored.
  for (const int number : {SIGHUP, SIGINT, SIGTERM}) signal(number, SIG_DFL);
  redirect("stdout.txt", STDOUT_FILENO);
  redirect("stderr.txt", STDERR_FILENO);
  if (options.memory > 0) {
    const rlimit limit{static_cast<rlim_t>(options.memory), static_cast<rlim_t>(options.memory)};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(125);
  }
  std::vector<char*> arguments;
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  _exit(127);
}

}  // namespace detail

// command[0] is the program's absolute path.
inline ProcessResult run_process(const std::vector<std::string>& command,
                                 const ProcessOptions& options) {
  const std::string out_path = options.dir + "/stdout.txt", err_path = options.dir + "/stderr.txt";
  unlink(out_path.c_str());  // an earlier run's output must not be taken for this one's
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) detail::become(command, options);
  int status = 0;
  for (bool interrupted = !options.interrupt_when;;) {
    if (waitpid(child, &status, interrupted ? 0 : WNOHANG) == child) break;
    if (!interrupted && options.interrupt_when(read_text(out_path))) {
      kill(child, SIGINT);
      interrupted = true;
    }
    if (!interrupted) usleep(2000);
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {code, read_text(out_path), read_text(err_path)};
}

}  // namespace gradus::test
