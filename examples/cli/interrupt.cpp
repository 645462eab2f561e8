#include "examples/cli/interrupt.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>

namespace gradus::cli {
namespace {

std::atomic<bool> g_interrupted{false};
std::atomic<int> g_signal{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

constexpr std::string_view kNotice = "finishing the step; again to stop at once\n";

void on_signal(int number) {
  g_signal = number;
  if (g_interrupted.exchange(true)) return;
  const int error = errno;
  [[maybe_unused]] const ssize_t count = write(STDERR_FILENO, kNotice.data(), kNotice.size());
  errno = error;
}

void handle(int number, int flags) {
  struct sigaction before {};
  if (sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = flags;
  sigaction(number, &action, nullptr);
}

}  // namespace

const std::atomic<bool>& catch_interrupts() {
  for (const int number : {SIGINT, SIGTERM}) {
    handle(number, static_cast<int>(SA_RESETHAND));  // a second one has its usual effect
  }
  handle(SIGHUP, 0);
  std::signal(SIGPIPE, SIG_IGN);
  return g_interrupted;
}

int interrupted_status() { return 128 + g_signal; }

}  // namespace gradus::cli
