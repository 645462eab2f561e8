// The list of argument structs that the coverage table is written from.
#include "bench/cases/launches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "bench/cases/op_case.h"
#include "tests/support/coverage.h"

namespace gradus {
namespace {

// Also writes the list down where the coverage is recorded.
TEST(Launches, NamesAreDistinct) {
  record_launches();
  std::set<std::string_view> names;
  for (const LaunchInfo& launch : all_launches()) {
    EXPECT_TRUE(names.insert(launch.name).second) << launch.name;
  }
}

TEST(Launches, EveryOpWithCasesIsListed) {
  const std::vector<LaunchInfo> launches = all_launches();
  for (const std::string& op : ops_with_cases()) {
    const auto is_of_op = [&](const LaunchInfo& launch) { return launch.op == op; };
    EXPECT_TRUE(std::ranges::any_of(launches, is_of_op))
        << op << " has cases and no argument struct";
  }
}

TEST(Launches, BothBackendsHaveTheSameDtypes) {
  for (const LaunchInfo& launch : all_launches()) {
    EXPECT_EQ(launch.support.cpu.bits, launch.support.cuda.bits) << launch.name;
    EXPECT_NE(launch.support.cpu.bits, 0u) << launch.name;
    EXPECT_TRUE(launch.guarantee.deterministic) << launch.name;
  }
}

}  // namespace
}  // namespace gradus
