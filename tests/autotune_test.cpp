// Measured choices: what is timed, what is taken, and the file that keeps them.
#include "core/autotune.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "nn/autotune_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/files.h"

namespace gradus {
namespace {

using Ways = std::vector<std::string>;
const Ways kWays{"static", "second", "third"};
constexpr double kNever = std::numeric_limits<double>::infinity();

// Times from a list; counts how often it was asked.
struct Clock {
  std::vector<double> us;
  int asked = 0;
  Autotune::TimeWay timer() {
    return [this](size_t way) {
      ++asked;
      return us.at(way);
    };
  }
};

size_t choose(Autotune& table, Clock& clock, const char* key = "conv", const Ways& ways = kWays,
              const char* card = "card") {
  return table.choose(card, key, ways, clock.timer());
}

TEST(Autotune, TakesTheFastestAndMeasuresOnce) {
  Autotune table;
  Clock clock{{10, 9, 8}};
  EXPECT_EQ(choose(table, clock), 2u);
  EXPECT_EQ(clock.asked, 3);
  clock.us = {1, 9, 8};
  EXPECT_EQ(choose(table, clock), 2u);
  EXPECT_EQ(clock.asked, 3);
  EXPECT_EQ(table.measured(), Autotune::Problems{"conv on card"});
  EXPECT_TRUE(table.replayed().empty());
  EXPECT_TRUE(table.missing().empty());
}

TEST(Autotune, KeepsTheStaticChoiceWhereTheGainIsNoise) {
  const auto chosen = [](std::vector<double> us) {
    Autotune table;
    Clock clock{std::move(us)};
    return choose(table, clock);
  };
  EXPECT_EQ(chosen({100, 97.5, 98}), 0u);
  EXPECT_EQ(chosen({100, 97.5, 96}), 2u);
  EXPECT_EQ(chosen({100, 96, 95.9}), 2u);
  EXPECT_EQ(chosen({100, 200, 300}), 0u);
  EXPECT_EQ(chosen({100, 100, 100}), 0u);
}

TEST(Autotune, LeavesOutWhatCannotRun) {
  const auto chosen = [](std::vector<double> us) {
    Autotune table;
    Clock clock{std::move(us)};
    const size_t way = choose(table, clock);
    EXPECT_EQ(table.measured().size(), 1u);
    return way;
  };
  EXPECT_EQ(chosen({10, kNever, NAN}), 0u);
  EXPECT_EQ(chosen({kNever, 9, 8}), 2u);
  EXPECT_EQ(chosen({NAN, 7, 8}), 1u);
  Autotune table;
  Clock clock{{kNever, NAN, kNever}};
  EXPECT_EQ(choose(table, clock), 0u);
  EXPECT_TRUE(table.cards().empty());
  EXPECT_EQ(table.missing().size(), 1u);
}

TEST(Autotune, ProblemsAndCardsAreKeptApart) {
  Autotune table;
  Clock clock{{10, 5, 8}};
  EXPECT_EQ(choose(table, clock, "a"), 1u);
  clock.us = {10, 8, 5};
  EXPECT_EQ(choose(table, clock, "b"), 2u);
  EXPECT_EQ(choose(table, clock, "a", kWays, "other card"), 2u);
  EXPECT_EQ(choose(table, clock, "a"), 1u);
  EXPECT_EQ(table.measured().size(), 3u);
}

TEST(Autotune, NothingIsTimedWhereItMayNotBe) {
  Autotune table;
  EXPECT_EQ(table.choose("card", "conv", kWays, {}), 0u);  // a graph is being recorded
  EXPECT_EQ(table.missing(), Autotune::Problems{"conv on card"});
  Clock clock{{10, 5, 8}};
  EXPECT_EQ(choose(table, clock), 1u);  // outside, it is
  EXPECT_TRUE(table.missing().empty());
  EXPECT_EQ(table.choose("card", "conv", kWays, {}), 1u);  // and recorded as measured

  Autotune replays(false);
  EXPECT_EQ(choose(replays, clock), 0u);
  EXPECT_EQ(clock.asked, 3);
  EXPECT_EQ(replays.missing().size(), 1u);
}

TEST(Autotune, OneWayIsNoChoice) {
  Autotune table;
  Clock clock{{10}};
  EXPECT_EQ(choose(table, clock, "conv", {"static"}), 0u);
  EXPECT_EQ(clock.asked, 0);
  EXPECT_TRUE(table.cards().empty());
  EXPECT_TRUE(table.missing().empty());
}

TEST(Autotune, AWayThatIsNoneIsRefused) {
  Autotune table(false);
  table.set("card", "conv", {"of old", {{"of old", 3.0}}});
  Clock clock{{1, 2, 3}};
  EXPECT_ERROR(choose(table, clock), ErrorCode::io,
               "autotune: 'conv on card' is to be computed by 'of old'", "static, second, third");
}

TEST(Autotune, OtherWaysThanTodaysAreNoted) {
  Autotune table(false);
  table.set("card", "fewer", {"second", {{"static", 4.0}, {"second", 3.0}}});
  table.set("card", "same", {"second", {{"static", 4.0}, {"second", 3.0}, {"third", {}}}});
  Clock clock;
  EXPECT_EQ(choose(table, clock, "fewer"), 1u);
  EXPECT_EQ(choose(table, clock, "same"), 1u);
  EXPECT_EQ(table.outdated(), Autotune::Problems{"fewer on card"});
  EXPECT_EQ(table.replayed().size(), 2u);
}

TEST(Autotune, TheTableInPlaceIsTheInnermost) {
  EXPECT_EQ(Autotune::current(), nullptr);
  Autotune outer, inner;
  {
    const AutotuneGuard a(outer);
    {
      const AutotuneGuard b(inner);
      EXPECT_EQ(Autotune::current(), &inner);
    }
    EXPECT_EQ(Autotune::current(), &outer);
  }
  EXPECT_EQ(Autotune::current(), nullptr);
}

// Files.

std::string text_of(const std::string& path) {
  const test::Bytes bytes = test::read_file(path);
  return {bytes.begin(), bytes.end()};
}

TEST(AutotuneFile, TheFirstRunMeasuresAndLaterOnesReplay) {
  const test::TempDir dir;
  const std::string path = dir.path("choices.json");
  Clock clock{{10, kNever, 8.125}};
  nn::AutotuneFile first(path);
  EXPECT_EQ(choose(first.table(), clock), 2u);
  first.save();
  EXPECT_EQ(first.notes(), Ways{"1 problem measured and added to '" + path + "'"});
  EXPECT_EQ(text_of(path), R"({
 "cards": {
  "card": {
   "conv": {
    "us": {
     "second": null,
     "static": 10.0,
     "third": 8.125
    },
    "way": "third"
   }
  }
 },
 "gradus_autotune": 1
}
)");
  EXPECT_EQ(dir.names(), Ways{"choices.json"});

  clock.us = {1, 2, 3};  // on another day
  nn::AutotuneFile second(path);
  EXPECT_EQ(choose(second.table(), clock), 2u);
  EXPECT_EQ(choose(second.table(), clock, "new"), 0u);
  EXPECT_EQ(choose(second.table(), clock, "conv", kWays, "other card"), 0u);
  EXPECT_EQ(clock.asked, 3);
  EXPECT_EQ(second.notes(), (Ways{"1 problem computed as '" + path + "' says",
                                  "2 problems not in '" + path +
                                      "' took the static choice, such as: conv on other card"}));
  const std::string before = text_of(path);
  second.save();
  EXPECT_EQ(text_of(path), before);
}

TEST(AutotuneFile, AddsWhatItLacksWhereAsked) {
  const test::TempDir dir;
  const std::string path = dir.path("choices.json");
  Clock clock{{10, 5, 8}};
  nn::AutotuneFile first(path);
  choose(first.table(), clock, "a");
  first.save();
  clock.us = {10, 8, 5};
  nn::AutotuneFile second(path, true);
  EXPECT_EQ(choose(second.table(), clock, "a"), 1u);
  EXPECT_EQ(choose(second.table(), clock, "b"), 2u);
  second.save();
  nn::AutotuneFile third(path);
  EXPECT_EQ(third.table().cards(), second.table().cards());
  EXPECT_EQ(choose(third.table(), clock, "a"), 1u);
  EXPECT_EQ(choose(third.table(), clock, "b"), 2u);
}

TEST(AutotuneFile, SaysWhereNothingHadAChoice) {
  const test::TempDir dir;
  const std::string path = dir.path("choices.json");
  const nn::AutotuneFile file(path);
  file.save();
  EXPECT_TRUE(dir.names().empty());
  EXPECT_EQ(file.notes(), Ways{"nothing in this run had a choice to take from '" + path + "'"});
}

TEST(AutotuneFile, SaysWhichChoicesAreOfOtherWays) {
  const test::TempDir dir;
  Autotune table;
  table.set("card", "conv", {"second", {{"static", 4.0}, {"second", 3.0}}});
  nn::AutotuneFile file(dir.file("f", test::to_bytes(nn::to_json(table))));
  Clock clock;
  EXPECT_EQ(choose(file.table(), clock), 1u);
  ASSERT_EQ(file.notes().size(), 2u);
  EXPECT_NE(file.notes()[1].find("measured among other ways"), std::string::npos);
}

TEST(AutotuneFile, RefusesWhatIsNotOne) {
  const test::TempDir dir;
  const auto open = [&](std::string_view text) {
    nn::AutotuneFile file(dir.file("f", test::to_bytes(text)));
  };
  const auto io = ErrorCode::io;
  EXPECT_ERROR(open(""), io, "autotune: '", "/f': is not JSON, or not all of it");
  EXPECT_ERROR(open(R"({"gradus_autotune": 1, "cards": {)"), io, "is not JSON, or not all of it");
  EXPECT_ERROR(open("[]"), io, "is not a file of measured choices: it has no 'gradus_autotune'");
  EXPECT_ERROR(open(R"({"schema": 1, "rows": []})"), io, "it has no 'gradus_autotune'");
  EXPECT_ERROR(open(R"({"gradus_autotune": 2, "cards": {}})"), io,
               "has format 2, this gradus reads 1");
  EXPECT_ERROR(open(R"({"gradus_autotune": "1", "cards": {}})"), io, "has format \"1\"");
  EXPECT_ERROR(open(R"({"gradus_autotune": 1})"), io, "has no 'cards'");
  EXPECT_ERROR(open(R"({"gradus_autotune": 1, "cards": []})"), io, "has no 'cards'");
  EXPECT_ERROR(open(R"({"gradus_autotune": 1, "cards": {"c": 3}})"), io, "card 'c' is not");
  const auto choice = [&](const std::string& text) {
    open(R"({"gradus_autotune": 1, "cards": {"c": {"key": )" + text + "}}}");
  };
  EXPECT_ERROR(choice("3"), io, "'key' is not {\"way\"");
  EXPECT_ERROR(choice(R"({"way": "a"})"), io, "'key' is not {\"way\"");
  EXPECT_ERROR(choice(R"({"way": 1, "us": {}})"), io, "'key' is not {\"way\"");
  EXPECT_ERROR(choice(R"({"way": "a", "us": {"a": 1}, "more": 1})"), io, "'key' is not {\"way\"");
  EXPECT_ERROR(choice(R"({"way": "a", "us": {"b": 1}})"), io, "'key' takes 'a', for which it has");
  EXPECT_ERROR(choice(R"({"way": "a", "us": {"a": null}})"), io, "'key' takes 'a'");
  EXPECT_ERROR(choice(R"({"way": "a", "us": {"a": -1}})"), io, "not a positive number: -1");
  EXPECT_ERROR(choice(R"({"way": "a", "us": {"a": 0}})"), io, "not a positive number: 0");
  EXPECT_ERROR(choice(R"({"way": "a", "us": {"a": "1"}})"), io, "not a positive number: \"1\"");
  EXPECT_ERROR(choice(R"({"way": "a", "us": {"a": 1e999}})"), io, "is not JSON");
  EXPECT_ERROR(nn::AutotuneFile{dir.path()}, io, "is not a regular file");
}

// Every damage is an io error or leaves a table that can be read.
TEST(AutotuneFile, FlippedBitsAreRefusedOrRead) {
  const test::TempDir dir;
  Autotune table;
  table.set("card", "conv", {"second", {{"static", 4.5}, {"second", 3.0}, {"third", {}}}});
  const test::Bytes bytes = test::to_bytes(nn::to_json(table));
  const int readable = test::count_readable_flips(
      dir, bytes, [](const std::string& path) { nn::AutotuneFile file(path); });
  EXPECT_LT(readable, static_cast<int>(8 * bytes.size()));
}

// Neither the reader nor the text of its error may go down into what is nested without end.
TEST(AutotuneFile, RefusesWhatIsNestedDeeply) {
  const test::TempDir dir;
  constexpr size_t kLevels = 1'000'000;
  const std::string deep = std::string(kLevels, '[') + std::string(kLevels, ']');
  const auto open = [&](const std::string& text) {
    nn::AutotuneFile file(dir.file("f", test::to_bytes(text)));
  };
  const auto io = ErrorCode::io;
  const std::string head = R"({"gradus_autotune": 1, "cards": )";
  EXPECT_ERROR(open(R"({"gradus_autotune": )" + deep + R"(, "cards": {}})"), io,
               "has format array, this gradus reads 1");
  EXPECT_ERROR(open(head + R"({"c": {"key": )" + deep + "}}}"), io, "'key' is not {\"way\"");
  EXPECT_ERROR(open(head + R"({"c": {"key": {"way": "a", "us": {"a": )" + deep + "}}}}}"), io,
               "not a positive number: array");
}

TEST(AutotuneFile, RefusesPathsThatLeadNowhere) {
  const test::TempDir dir;
  std::filesystem::create_symlink("loop", dir.path("loop"));
  EXPECT_ERROR(nn::AutotuneFile{dir.path("loop")}, ErrorCode::io, "autotune: '",
               "/loop': cannot be opened: ");
  EXPECT_ERROR(nn::AutotuneFile{dir.path(std::string(300, 'x'))}, ErrorCode::io, "autotune: '",
               "cannot be opened: ");
  std::filesystem::create_symlink("later", dir.path("link"));  // to a file that is yet to be
  nn::AutotuneFile file(dir.path("link"));
  Clock clock{{3, 2, 1}};
  choose(file.table(), clock);
  file.save();
  EXPECT_TRUE(std::filesystem::is_symlink(dir.path("link")));
  EXPECT_EQ(nn::AutotuneFile{dir.path("later")}.table().cards(), file.table().cards());
}

TEST(AutotuneFile, KeepsWhatOtherRunsAddedMeanwhile) {
  const test::TempDir dir;
  const std::string path = dir.path("choices.json");
  Clock clock{{3, 2, 1}};
  nn::AutotuneFile one(path), other(path);
  choose(one.table(), clock, "a");
  choose(one.table(), clock, "b");
  choose(other.table(), clock, "b", kWays, "other card");
  clock.us = {3, 1, 2};
  choose(other.table(), clock, "a");
  one.save();
  other.save();
  nn::AutotuneFile both(path);
  EXPECT_EQ(choose(both.table(), clock, "a"), 1u);  // of the last writer
  EXPECT_EQ(choose(both.table(), clock, "b"), 2u);
  EXPECT_EQ(choose(both.table(), clock, "b", kWays, "other card"), 2u);
  EXPECT_EQ(both.table().replayed().size(), 3u);

  choose(other.table(), clock, "c");
  dir.file("choices.json", test::to_bytes("[]"));
  EXPECT_ERROR(other.save(), ErrorCode::io, "is not a file of measured choices");
  EXPECT_EQ(text_of(path), "[]");
}

TEST(AutotuneFile, KeepsWhatWasMeasuredBeforeAnError) {
  const test::TempDir dir;
  const std::string path = dir.path("choices.json");
  Clock clock{{3, 2, 1}};
  nn::AutotuneFile file(path);
  const auto run = [&] {
    choose(*Autotune::current(), clock);
    fail(ErrorCode::io, "run", "ends early");
  };
  EXPECT_ERROR(file.run(run), ErrorCode::io, "run: ends early");
  EXPECT_EQ(Autotune::current(), nullptr);
  EXPECT_EQ(nn::AutotuneFile{path}.table().cards(), file.table().cards());

  nn::AutotuneFile lost(dir.path("no/such/folder/f"));  // the first error is the one to know
  EXPECT_ERROR(lost.run(run), ErrorCode::io, "run: ends early");
  EXPECT_ERROR(lost.run([] {}), ErrorCode::io, "autotune: ");
}

TEST(AutotuneFile, CannotBeSavedWhereItCannotBe) {
  const test::TempDir dir;
  nn::AutotuneFile file(dir.path("no/such/folder/f"));
  Clock clock{{3, 2, 1}};
  choose(file.table(), clock);
  EXPECT_ERROR(file.save(), ErrorCode::io, "autotune: ");
}

}  // namespace
}  // namespace gradus
