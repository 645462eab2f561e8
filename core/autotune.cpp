#include "core/autotune.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace gradus {
namespace {

thread_local Autotune* g_current = nullptr;

std::string list_of(std::span<const std::string> ways) {
  std::string text;
  for (const std::string& way : ways) text += (text.empty() ? "" : ", ") + way;
  return text;
}

// Times every way; no name where none can run.
TunedChoice measure(std::span<const std::string> ways, const Autotune::TimeWay& time_us) {
  TunedChoice choice;
  double best = INFINITY;
  for (size_t i = 0; i < ways.size(); ++i) {
    const double us = time_us(i);
    std::optional<double>& timed = choice.us[ways[i]];
    if (!std::isfinite(us)) continue;
    timed = us;
    if (us < best * (choice.way == ways[0] ? 1 - Autotune::kLeastGain : 1)) {
      best = us;
      choice.way = ways[i];
    }
  }
  return choice;
}

bool has_other_ways(const TunedChoice& choice, std::span<const std::string> ways) {
  const auto is_today = [&](const auto& timed) { return std::ranges::count(ways, timed.first); };
  return choice.us.size() != ways.size() || !std::ranges::all_of(choice.us, is_today);
}

}  // namespace

size_t Autotune::choose(const std::string& card, const std::string& key,
                        std::span<const std::string> ways, const TimeWay& time_us) {
  if (ways.size() < 2) return 0;
  const std::string problem = key + " on " + card;
  const auto choices = cards_.find(card);
  if (choices != cards_.end()) {
    if (const auto found = choices->second.find(key); found != choices->second.end()) {
      const auto at = std::ranges::find(ways, found->second.way);
      if (at == ways.end()) {
        fail(ErrorCode::io, "autotune", "'", problem, "' is to be computed by '", found->second.way,
             "', which is not one of its ways (", list_of(ways),
             "): its choice is another version's and must be measured anew");
      }
      if (!measured_.contains(problem)) replayed_.insert(problem);
      if (has_other_ways(found->second, ways)) outdated_.insert(problem);
      return static_cast<size_t>(at - ways.begin());
    }
  }
  TunedChoice choice;
  if (measures_ && time_us) choice = measure(ways, time_us);
  if (choice.way.empty()) {
    missing_.insert(problem);
    return 0;
  }
  const auto at = std::ranges::find(ways, choice.way);
  set(card, key, std::move(choice));
  measured_.insert(problem);
  missing_.erase(problem);
  return static_cast<size_t>(at - ways.begin());
}

Autotune* Autotune::current() { return g_current; }

AutotuneGuard::AutotuneGuard(Autotune& table) : outer_(std::exchange(g_current, &table)) {}
AutotuneGuard::~AutotuneGuard() { g_current = outer_; }

}  // namespace gradus
