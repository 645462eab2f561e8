// Launches that can be computed in several ways: each way timed once, the choice replayed since.
//
//   Autotune table;
//   const AutotuneGuard guard(table);  // launches of this thread ask the table
//   ...
//   nn::AutotuneFile keeps a table in a file.
//
// What the table holds is taken, so that runs with the same table compute the same bits; ways may
// differ in the order of their sums. Without a table every launch takes its static choice.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

namespace gradus {

// What was measured for one problem.
struct TunedChoice {
  std::string way;                                  // the one to take
  std::map<std::string, std::optional<double>> us;  // of every way; none where it could not run
  friend bool operator==(const TunedChoice&, const TunedChoice&) = default;
};

class Autotune {
 public:
  // A way is taken instead of the static choice only where it saves this share of its time: less is
  // noise, and would make tables differ from run to run.
  static constexpr double kLeastGain = 0.03;

  using Choices = std::map<std::string, TunedChoice>;  // by the problem's key
  // Microseconds of the way with this index; NaN or infinite where it cannot run.
  using TimeWay = std::function<double(size_t way)>;

  // measures: whether problems that the table lacks are timed; else they take their static choice.
  explicit Autotune(bool measures = true) : measures_(measures) {}

  // The index of the way to take for a problem. ways: their names, the static choice first. With an
  // empty `time_us` nothing is timed now, as in the recording of a graph. Throws io where the table
  // names a way that is not among `ways`.
  size_t choose(const std::string& card, const std::string& key, std::span<const std::string> ways,
                const TimeWay& time_us);

  void set(const std::string& card, const std::string& key, TunedChoice choice) {
    cards_[card][key] = std::move(choice);
  }
  const std::map<std::string, Choices>& cards() const { return cards_; }
  bool measures() const { return measures_; }

  // What became of the problems of this table's launches, each "key on card".
  using Problems = std::set<std::string>;
  const Problems& replayed() const { return replayed_; }
  const Problems& measured() const { return measured_; }
  const Problems& missing() const { return missing_; }    // took their static choice
  const Problems& outdated() const { return outdated_; }  // measured among other ways than today's

  // The table that launches of this thread ask, or null.
  static Autotune* current();

 private:
  bool measures_;
  std::map<std::string, Choices> cards_;
  Problems replayed_, measured_, missing_, outdated_;
};

// Puts a table in place for this thread while alive; tables are used by one thread at a time.
class AutotuneGuard {
 public:
  explicit AutotuneGuard(Autotune& table);
  ~AutotuneGuard();
  AutotuneGuard(const AutotuneGuard&) = delete;
  AutotuneGuard& operator=(const AutotuneGuard&) = delete;

 private:
  Autotune* outer_;
};

}  // namespace gradus
