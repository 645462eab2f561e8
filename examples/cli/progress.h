// What a run shows while it goes: a bar that is redrawn in place on a terminal, plain lines
// elsewhere, nothing when quiet. A run does not end because nobody reads its output any more.
#pragma once

#include <chrono>
#include <string>

#include "nn/trainer.h"

namespace gradus::cli {

class ProgressPrinter {
 public:
  explicit ProgressPrinter(bool quiet);  // looks whether standard output is a terminal
  ~ProgressPrinter();                    // an error must not stand behind a bar
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  void line(const std::string& text);       // one line of its own
  void last_line(const std::string& text);  // on standard error where `line` cannot be seen
  void show(const nn::Progress& progress);  // drawn at most ten times a second
  void report(const nn::EpochReport& report, int64_t epochs);  // at the end of an epoch

 private:
  using Clock = std::chrono::steady_clock;

  bool quiet_;
  bool terminal_;
  bool bar_open_ = false;
  Clock::time_point last_ = Clock::now();
};

// One line on standard error that says how far a command is, if that is a terminal; removes itself.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  void show(const std::string& text);  // cut where the terminal ends

 private:
  bool terminal_;
};

// On standard error; unlike fmt::print it does not throw: what cannot be said there is lost, and
// the run and its exit status stay what they are.
void print_error(const std::string& text);

// 80 where the stream is no terminal.
size_t terminal_columns(int stream);

// "1:02", "1:00:03"; "?" unless finite.
std::string time_text(double seconds);

// "60,000".
std::string count_text(int64_t count);

}  // namespace gradus::cli
