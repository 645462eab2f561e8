// EXPECT_ERROR(statement, code, "part of the text", ...): the statement throws a gradus::Error of
// that code whose text holds every part.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/error.h"

namespace gradus::test {

template <class F>
testing::AssertionResult throws_error(F&& f, ErrorCode code,
                                      std::initializer_list<std::string_view> parts) {
  try {
    f();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.code() != code) {
      return testing::AssertionFailure() << "code " << to_string(error.code()) << ": " << text;
    }
    for (const std::string_view part : parts) {
      if (text.find(part) == std::string::npos) {
        return testing::AssertionFailure() << "'" << part << "' is not in: " << text;
      }
    }
    return testing::AssertionSuccess();
  } catch (const std::exception& error) {
    return testing::AssertionFailure() << "not a gradus::Error: " << error.what();
  }
  return testing::AssertionFailure() << "nothing was thrown";
}

}  // namespace gradus::test

#define EXPECT_ERROR(statement, code, ...) \
  EXPECT_TRUE(::gradus::test::throws_error([&] { statement; }, code, {__VA_ARGS__}))
