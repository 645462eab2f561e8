#include "nn/autotune_file.h"

#include <cmath>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "nn/io/atomic_file.h"
#include "nn/io/input_file.h"

namespace gradus::nn {
namespace {

using Json = nlohmann::json;  // its keys are in order

constexpr const char* kOp = "autotune";
constexpr const char* kFormat = "gradus_autotune";
constexpr int kVersion = 1;
constexpr int64_t kMostBytes = 64 << 20;

template <class... Parts>
[[noreturn]] void refuse(const std::string& path, const Parts&... parts) {
  fail(ErrorCode::io, kOp, "'", path, "': ", parts...);
}

// Text for an error. What is nested, perhaps without end, is only named: dump() is recursive.
std::string shown(const Json& json) {
  return json.is_structured() ? json.type_name() : json.dump();
}

std::optional<double> time_from(const Json& json, const std::string& path, const std::string& key) {
  if (json.is_null()) return {};
  const double us = json.is_number() ? json.get<double>() : -1;
  if (!(us > 0) || !std::isfinite(us)) {
    refuse(path, "'", key, "' has a time that is not a positive number: ", shown(json));
  }
  return us;
}

TunedChoice choice_from(const Json& json, const std::string& path, const std::string& key) {
  const bool whole = json.is_object() && json.size() == 2 && json.contains("way") &&
                     json["way"].is_string() && json.contains("us") && json["us"].is_object();
  if (!whole) refuse(path, "'", key, "' is not {\"way\": text, \"us\": {way: µs}}: ", shown(json));
  TunedChoice choice{.way = json["way"].get<std::string>()};
  for (const auto& [way, us] : json["us"].items()) choice.us[way] = time_from(us, path, key);
  const auto timed = choice.us.find(choice.way);
  if (timed == choice.us.end() || !timed->second) {
    refuse(path, "'", key, "' takes '", choice.way, "', for which it has no time");
  }
  return choice;
}

Autotune read_table(const std::string& path, bool measures) {
  std::error_code ignored;  // of a path that leads nowhere: InputFile says what is wrong
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (status.type() == std::filesystem::file_type::not_found) return Autotune(true);
  InputFile file(kOp, path);
  const auto bytes = file.read_up_to<char>(kMostBytes);
  return parse_autotune(std::string_view(bytes.data(), bytes.size()), path, measures);
}

std::string count_of(const Autotune::Problems& problems) {
  return concat(problems.size(), problems.size() == 1 ? " problem" : " problems");
}

}  // namespace

std::string to_json(const Autotune& table) {
  Json cards = Json::object();
  for (const auto& [card, choices] : table.cards()) {
    for (const auto& [key, choice] : choices) {
      Json us = Json::object();
      for (const auto& [way, time] : choice.us) us[way] = time ? Json(*time) : Json();
      cards[card][key] = {{"way", choice.way}, {"us", us}};
    }
  }
  return Json{{kFormat, kVersion}, {"cards", cards}}.dump(1, ' ', false,
                                                          Json::error_handler_t::replace) +
         "\n";
}

Autotune parse_autotune(std::string_view text, const std::string& path, bool measures) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) refuse(path, "is not JSON, or not all of it");
  if (!json.is_object() || !json.contains(kFormat)) {
    refuse(path, "is not a file of measured choices: it has no '", kFormat, "'");
  }
  if (json[kFormat] != kVersion) {
    refuse(path, "has format ", shown(json[kFormat]), ", this gradus reads ", kVersion);
  }
  if (!json.contains("cards") || !json["cards"].is_object()) refuse(path, "has no 'cards'");
  Autotune table(measures);
  for (const auto& [card, choices] : json["cards"].items()) {
    if (!choices.is_object()) refuse(path, "card '", card, "' is not {key: choice}");
    for (const auto& [key, choice] : choices.items()) {
      table.set(card, key, choice_from(choice, path, key));
    }
  }
  return table;
}

AutotuneFile::AutotuneFile(std::string path, bool measures)
    : path_(std::move(path)), table_(read_table(path_, measures)) {}

void AutotuneFile::run(const std::function<void()>& body) {
  try {
    const AutotuneGuard guard(table_);
    body();
  } catch (...) {
    try {
      save();
    } catch (const std::exception&) {  // the first error is the one to know
    }
    throw;
  }
  save();
}

void AutotuneFile::save() const {
  if (table_.measured().empty()) return;
  Autotune all = read_table(path_, false);
  for (const auto& [card, choices] : table_.cards()) {
    for (const auto& [key, choice] : choices) all.set(card, key, choice);
  }
  write_atomically(kOp, path_, to_json(all));
}

std::vector<std::string> AutotuneFile::notes() const {
  std::vector<std::string> notes;
  const auto add = [&](const Autotune::Problems& problems, const auto&... parts) {
    if (!problems.empty()) notes.push_back(concat(count_of(problems), parts...));
  };
  add(table_.replayed(), " computed as '", path_, "' says");
  add(table_.measured(), " measured and added to '", path_, "'");
  add(table_.missing(), " not in '", path_, "' took the static choice, such as: ",
      table_.missing().empty() ? "" : *table_.missing().begin());
  add(table_.outdated(), " in '", path_,
      "' measured among other ways than there are now: delete the file to measure anew");
  if (notes.empty())
    notes.push_back(concat("nothing in this run had a choice to take from '", path_, "'"));
  return notes;
}

}  // namespace gradus::nn
