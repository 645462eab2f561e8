// Puts a locale in force for one scope, then restores the old ones.
#pragma once

#include <clocale>
#include <locale>
#include <string>

namespace gradus::test {

// "1.234,5": thousands grouped by points, a decimal comma.
class GroupedNumbers : public std::numpunct<char> {
 protected:
  char do_thousands_sep() const override { return '.'; }
  char do_decimal_point() const override { return ','; }
  std::string do_grouping() const override { return "\3"; }
};

class CppLocaleGuard {
 public:
  CppLocaleGuard() : old_(std::locale::global(std::locale(std::locale(), new GroupedNumbers))) {}
  ~CppLocaleGuard() { std::locale::global(old_); }
  CppLocaleGuard(const CppLocaleGuard&) = delete;
  CppLocaleGuard& operator=(const CppLocaleGuard&) = delete;

 private:
  std::locale old_;
};

// The first installed C locale with a decimal comma.
class CLocaleGuard {
 public:
  CLocaleGuard() : old_(std::setlocale(LC_ALL, nullptr)) {
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "ru_RU.UTF-8"}) {
      if (std::setlocale(LC_ALL, name)) {
        found_ = true;
        return;
      }
    }
  }
  ~CLocaleGuard() { std::setlocale(LC_ALL, old_.c_str()); }
  CLocaleGuard(const CLocaleGuard&) = delete;
  CLocaleGuard& operator=(const CLocaleGuard&) = delete;

  bool found() const { return found_; }

 private:
  std::string old_;
  bool found_ = false;
};

}  // namespace gradus::test
