// Measured choices (core/autotune.h) kept in a JSON file, so that later runs replay them.
//
//   nn::AutotuneFile file("choices.json");
//   file.run([&] { train(); });  // the first run measures, later ones do as the file says
//   for (const std::string& note : file.notes()) print(note);
//
// The file holds {"gradus_autotune": 1, "cards": {card: {key: {"way": ..., "us": {way: µs}}}}};
// what a key is made of is the op's matter. Problems that one file holds for several cards do not
// meet.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/autotune.h"

namespace gradus::nn {

// The same table always gives the same text.
std::string to_json(const Autotune& table);
// Throws io, naming `path`, for a text that is not such a table.
Autotune parse_autotune(std::string_view text, const std::string& path, bool measures);

class AutotuneFile {
 public:
  // Reads `path`; throws io where it is not a file of choices. Without such a file everything is
  // measured; with one nothing is, unless `measures`: then what the file lacks.
  explicit AutotuneFile(std::string path, bool measures = false);

  Autotune& table() { return table_; }

  // Calls `body` with the table in place, then saves: after an error of `body`, too, whose
  // measurements hold all the same; that error is thrown then, whether they could be saved or not.
  void run(const std::function<void()>& body);

  // Writes the file, as a whole or not at all, if something was measured; what other runs have
  // added to it before stays (not of one that writes at the same moment). Throws io.
  void save() const;

  // What the run owes to the file and what it did not find there, a sentence each: how many
  // problems were replayed, measured, or took their static choice.
  std::vector<std::string> notes() const;

 private:
  std::string path_;
  Autotune table_;
};

}  // namespace gradus::nn
