// The contexts: the two texts for a missing GPU, the thread team, the choice of instruction set.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "autograd/gradcheck.h"
#include "autograd/ops/batch_norm.h"
#include "core/tensor.h"
#include "cpu/context.h"
#include "nn/capture.h"
#include "tests/support/expect_error.h"
#include "tests/support/isas.h"
#if GRADUS_HAS_CUDA
#include "cuda/context.h"
#endif

namespace gradus {
namespace {

#if GRADUS_HAS_CUDA
TEST(Device, AGpuThatIsNotThereIsNamed) {
  const size_t count = cuda_devices().size();
  const int beyond = static_cast<int>(count);
  if (count == 0) {
    EXPECT_ERROR(Tensor::zeros({1}, {.device = kCuda}), ErrorCode::cuda,
                 "cuda: no CUDA device was found");
  } else {
    EXPECT_ERROR(Tensor::zeros({1}, {.device = {DeviceType::cuda, beyond}}), ErrorCode::cuda,
                 concat("cuda: expected a device below ", count, ", got cuda:", beyond));
    EXPECT_ERROR(cuda(-1), ErrorCode::cuda, "got cuda:-1");
  }
}
#else
TEST(Device, ABuildWithoutGpusSaysSo) {
  EXPECT_ERROR(Tensor::zeros({1}, {.device = kCuda}), ErrorCode::unsupported,
               "cuda: this build of gradus has no CUDA backend");
}
#endif

class Team : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { before_ = cpu().threads(), cpu().set_threads(GetParam()); }
  void TearDown() override { cpu().set_threads(before_); }

 private:
  int before_ = 1;
};

TEST_P(Team, RunsEachTaskOnce) {
  EXPECT_EQ(cpu().threads(), GetParam());
  for (const int64_t count : {0, 1, 2, 3, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
    cpu().parallel(count, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
    EXPECT_TRUE(std::all_of(runs.begin(), runs.end(), [](const auto& n) { return n == 1; }));
  }
}

// A thread that wakes late finds another run, or none.
TEST_P(Team, ShortRunsInARowStayApart) {
  for (int64_t round = 0; round < 3000; ++round) {
    const int64_t count = 2 + round % 17;
    std::atomic<int64_t> sum = 0;
    cpu().parallel(count, [&sum, round](int64_t i) { sum += round * i; });
    ASSERT_EQ(sum, round * count * (count - 1) / 2) << "round " << round;
  }
}

TEST_P(Team, AThrowReachesTheCallerAndTheTeamGoesOn) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_ERROR(cpu().parallel(50, [](int64_t i) { check(i % 10 != 7, "task", "no good"); }),
                 ErrorCode::invalid_argument, "task: no good");
    std::atomic<int64_t> sum = 0;
    cpu().parallel(100, [&](int64_t i) { sum += i; });
    EXPECT_EQ(sum, 4950);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, Team, testing::Values(1, 2, 3, 16));

TEST(Cpu, ThreadsAreOneTo256) {
  const int before = cpu().threads();
  for (const int count : {0, -1, 257}) {
    EXPECT_ERROR(cpu().set_threads(count), ErrorCode::invalid_argument,
                 concat("threads: expected 1 to 256, got ", count));
  }
  EXPECT_EQ(cpu().threads(), before);
}

// Makes a context with an environment variable set: on a new thread, whose first use reads it.
template <class F>
void with_environment(const char* name, const char* value, F&& f) {
  const char* before = std::getenv(name);
  const std::string saved = before == nullptr ? "" : before;
  setenv(name, value, 1);
  std::thread(f).join();
  before == nullptr ? unsetenv(name) : setenv(name, saved.c_str(), 1);
}

TEST(Cpu, TheEnvironmentChoosesThreads) {
  with_environment("GRADUS_THREADS", "3", [] { EXPECT_EQ(cpu().threads(), 3); });
  for (const char* text : {"0", "many", "257", "4x", ""}) {
    with_environment("GRADUS_THREADS", text, [&] {
      EXPECT_ERROR(cpu().threads(), ErrorCode::invalid_argument,
                   concat("GRADUS_THREADS: expected 1 to 256, got '", text, "'"));
      cpu().set_threads(2);
      EXPECT_EQ(cpu().threads(), 2);
    });
  }
}

// No launch works, that of a destructor included.
TEST(Cpu, DifferencesWithoutThreadsEndWithTheFirstError) {
  const Tensor x = Tensor::ones({2}, {.dtype = DType::f64}), dy = x.clone();
  const std::vector<double> steps(2, 1e-6);
  with_environment("GRADUS_THREADS", "many", [&] {
    EXPECT_ERROR(finite_differences([&] { return x; }, x, dy, steps), ErrorCode::invalid_argument,
                 "GRADUS_THREADS: expected 1 to 256, got 'many'");
  });
}

// The count of batches is a running statistic, too.
TEST(Cpu, BatchNormWithoutThreadsCountsNothing) {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = Tensor::ones({2, 3, 2, 2}, {.format = format});
    const BatchNormState state{Tensor::zeros({3}), Tensor::ones({3}),
                               Tensor::zeros({}, {.dtype = DType::i64})};
    with_environment("GRADUS_THREADS", "many", [&] {
      EXPECT_ERROR(batch_norm(x, {}, {}, state), ErrorCode::invalid_argument,
                   "GRADUS_THREADS: expected 1 to 256, got 'many'");
    });
    EXPECT_EQ(state.batches.item<int64_t>(), 0);
  }
}

constexpr Isa kBuilt[] = {GRADUS_BUILT_ISAS};

bool is_built(Isa isa) { return std::ranges::count(kBuilt, isa) > 0; }

TEST(Cpu, TheInstructionSetCanBeChosen) {
  const Isa before = cpu().isa();
  const std::vector<Isa> usable = test::usable_isas();
  EXPECT_EQ(std::ranges::count(usable, Isa::baseline), is_built(Isa::baseline));
  EXPECT_TRUE(std::ranges::count(usable, before)) << to_string(before);
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
    const std::string name(to_string(isa));
    if (std::ranges::count(usable, isa)) {
      EXPECT_TRUE(is_built(isa)) << name;
      cpu().set_isa(isa);
      EXPECT_EQ(cpu().isa(), isa);
      with_environment("GRADUS_ISA", name.c_str(), [&] { EXPECT_EQ(cpu().isa(), isa); });
    } else {
      const std::string why =
          (is_built(isa) ? "this processor has no " : "gradus was built without ") + name;
      EXPECT_ERROR(cpu().set_isa(isa), ErrorCode::unsupported, why);
      with_environment("GRADUS_ISA", name.c_str(),
                       [&] { EXPECT_ERROR(cpu(), ErrorCode::unsupported, why); });
    }
  }
  cpu().set_isa(before);
  with_environment("GRADUS_ISA", "mmx", [] {
    EXPECT_ERROR(cpu(), ErrorCode::invalid_argument,
                 "GRADUS_ISA: expected baseline, avx2 or avx512, got 'mmx'");
  });
}

TEST(Cpu, EveryInstructionSetGivesTheSameCopy) {
  const Isa before = cpu().isa();
  std::vector<float> values(1001), expected;
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.37f * static_cast<float>(i) - 100.0f;
  const Tensor x = Tensor::from_vector(values, {7, 143});
  for (const Isa isa : test::usable_isas()) {
    cpu().set_isa(isa);
    const auto copy = x.transpose(0, 1).contiguous().to(DType::bf16).to_vector<float>();
    if (expected.empty()) expected = copy;
    EXPECT_EQ(copy, expected) << to_string(isa);
  }
  cpu().set_isa(before);
}

TEST(CapturedStep, TheCpuCallsTheFunctionEachTime) {
  int calls = 0;
  nn::CapturedStep step(kCpu, [&] { ++calls; });
  for (int i = 1; i <= 5; ++i) {
    step.run();
    EXPECT_EQ(calls, i);
    EXPECT_FALSE(step.captured());
  }
}

}  // namespace
}  // namespace gradus
