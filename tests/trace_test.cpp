// What a Trace records of launches and of their parts.
#include "core/trace.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "core/launch.h"
#include "core/ops/copy.h"
#include "core/tensor.h"

namespace gradus {
namespace {

TEST(Trace, RecordsALaunch) {
  const Tensor x = Tensor::ones({2, 3}), y = Tensor::empty({2, 3});
  const Trace trace;
  launch(Copy{.x = x.raw(), .y = y.raw()});
  ASSERT_EQ(trace.records().size(), 1u);
  const TraceRecord& record = trace.records()[0];
  EXPECT_EQ(record.name, "copy");
  EXPECT_EQ(record.device, kCpu);
  EXPECT_EQ(record.dtype, DType::f32);
  EXPECT_EQ(record.bytes, 48);
  EXPECT_GT(record.seconds, 0);
  EXPECT_FALSE(record.part);
}

TEST(Trace, AnInnerTraceTakesOver) {
  const Tensor x = Tensor::ones({2}), y = Tensor::empty({2});
  const Trace outer;
  {
    const Trace inner;
    launch(Copy{.x = x.raw(), .y = y.raw()});
    EXPECT_EQ(inner.records().size(), 1u);
  }
  EXPECT_TRUE(outer.records().empty());
  launch(Copy{.x = x.raw(), .y = y.raw()});
  EXPECT_EQ(outer.records().size(), 1u) << "it goes on";
}

// The times of a launch and of its parts add up to that of the whole.
TEST(Trace, PartsAreRecordedFirstAndByThemselves) {
  using namespace std::chrono_literals;
  using Clock = std::chrono::steady_clock;
  const Trace trace;
  const Clock::time_point start = Clock::now();
  const auto named = [](const char* name, bool part) {
    return [=] { return TraceRecord{.name = name, .device = kCpu, .bytes = 7, .part = part}; };
  };
  trace_step(cpu(), named("whole", false), [&] {
    std::this_thread::sleep_for(2ms);
    for (const char* name : {"first", "second"}) {
      trace_step(cpu(), named(name, true), [] { std::this_thread::sleep_for(20ms); });
    }
  });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  ASSERT_EQ(trace.records().size(), 3u);
  EXPECT_EQ(trace.records()[0].name, "first");
  EXPECT_EQ(trace.records()[1].name, "second");
  EXPECT_EQ(trace.records()[2].name, "whole");
  double sum = 0;
  for (const TraceRecord& record : trace.records()) sum += record.seconds;
  EXPECT_GE(trace.records()[0].seconds, 0.02);
  EXPECT_GE(trace.records()[2].seconds, 0.002);
  EXPECT_GE(sum, 0.042);
  EXPECT_LE(sum, seconds);
  EXPECT_TRUE(trace.records()[1].part);
  EXPECT_FALSE(trace.records()[2].part);
}

TEST(Trace, StepsRunWithoutOne) {
  int calls = 0;
  trace_step(
      cpu(), [] { return TraceRecord{}; }, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace gradus
