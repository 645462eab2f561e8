#include "examples/cli/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace gradus::cli {
namespace {

std::string bar(double fraction) {
  constexpr size_t kWidth = 12;
  const auto filled = static_cast<size_t>(fraction * kWidth);
  std::string text(kWidth, ' ');
  text.replace(0, filled, filled, '=');
  if (filled < kWidth) text[filled] = '>';
  return text;
}

// Seconds that the rest of the run takes at this speed, evaluations not counted.
double remaining_seconds(const nn::Progress& p, double images_per_step) {
  const auto steps = static_cast<double>(p.steps - p.step + (p.epochs - p.epoch - 1) * p.steps);
  return steps * images_per_step / p.images_per_second;
}

std::string numbers(const nn::Progress& p) {
  const double images_per_step =
      static_cast<double>(p.train.samples) / static_cast<double>(std::max<int64_t>(p.step, 1));
  return fmt::format("loss {:.4f}, accuracy {:.1f} %, {} images/s, ETA {}", p.train.loss,
                     100 * p.train.accuracy, count_text(std::lround(p.images_per_second)),
                     time_text(remaining_seconds(p, images_per_step)));
}

constexpr const char* kClearLine = "\r\033[K";

// The text over the line that was there, cut where the terminal ends.
std::string in_place(const std::string& text, int stream) {
  return fmt::format("\r{}\033[K", text.substr(0, terminal_columns(stream) - 1));
}

// Unlike fmt::print, it does not throw.
void write_to(std::FILE* stream, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

void write_out(const std::string& text) { write_to(stdout, text); }

}  // namespace

ProgressPrinter::ProgressPrinter(bool quiet)
    : quiet_(quiet), terminal_(isatty(STDOUT_FILENO) == 1) {}

ProgressPrinter::~ProgressPrinter() {
  if (bar_open_) write_out(kClearLine);
}

void ProgressPrinter::line(const std::string& text) {
  if (quiet_) return;
  write_out(fmt::format("{}{}\n", bar_open_ ? kClearLine : "", text));
  bar_open_ = false;
}

void ProgressPrinter::last_line(const std::string& text) {
  line(text);
  if (quiet_ || std::ferror(stdout) != 0) print_error(fmt::format("gradus: {}\n", text));
}

void ProgressPrinter::show(const nn::Progress& progress) {
  const auto pause = std::chrono::milliseconds(terminal_ ? 100 : 10000);
  if (quiet_ || Clock::now() - last_ < pause) return;
  last_ = Clock::now();
  const double fraction = static_cast<double>(progress.step) /
                          static_cast<double>(std::max<int64_t>(progress.steps, 1));
  const std::string head = fmt::format("epoch {}/{}", progress.epoch + 1, progress.epochs);
  if (!terminal_)
    return line(fmt::format("{}  {:.0f} %  {}", head, 100 * fraction, numbers(progress)));
  const std::string text = fmt::format("{} [{}] {}", head, bar(fraction), numbers(progress));
  write_out(in_place(text, STDOUT_FILENO));
  bar_open_ = true;
}

void ProgressPrinter::report(const nn::EpochReport& r, int64_t epochs) {
  std::string text = fmt::format("epoch {}/{}  loss {:.4f}, accuracy {:.2f} %", r.epoch + 1, epochs,
                                 r.train.loss, 100 * r.train.accuracy);
  if (r.test) {
    text += fmt::format("  test loss {:.4f}, test accuracy {:.2f} %", r.test->loss,
                        100 * r.test->accuracy);
  }
  line(text + fmt::format("  {:.1f} s, {} images/s", r.seconds,
                          count_text(std::lround(r.images_per_second))));
}

StatusLine::StatusLine() : terminal_(isatty(STDERR_FILENO) == 1) {}

StatusLine::~StatusLine() {
  if (terminal_) print_error(kClearLine);
}

void StatusLine::show(const std::string& text) {
  if (terminal_) print_error(in_place(text, STDERR_FILENO));
}

void print_error(const std::string& text) { write_to(stderr, text); }

size_t terminal_columns(int stream) {
  winsize size{};
  const bool known = ioctl(stream, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

std::string time_text(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const int64_t s = std::llround(seconds);
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string count_text(int64_t count) {
  std::string text = std::to_string(count);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

}  // namespace gradus::cli
