#include "core/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "core/box_muller.h"
#include "core/generator.h"
#include "cpu/context.h"
#include "nn/capture.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"
#include "tests/support/isas.h"

namespace gradus {
namespace {

std::array<uint32_t, 4> words(const Philox4& block) {
  return {block.words[0], block.words[1], block.words[2], block.words[3]};
}

// The known answers that the authors of Philox publish with their code.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(words(philox(0, 0, 0)),
            (std::array<uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(words(philox(~0ull, ~0ull, ~0ull)),
            (std::array<uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(words(philox(0x299f31d0a4093822ull, 0x0370734413198a2eull, 0x85a308d3243f6a88ull)),
            (std::array<uint32_t, 4>{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, UniformStaysBelowOneAndReachesTheEdges) {
  EXPECT_EQ(uniform_f32(0), 0.0f);
  EXPECT_EQ(uniform_f32(~0u), 1.0f - 0x1p-24f);
  EXPECT_EQ(uniform_f64(0, 0), 0.0);
  EXPECT_EQ(uniform_f64(~0u, ~0u), 1.0 - 0x1p-53);
  EXPECT_EQ(uniform_below(0, 10), 0u);
  EXPECT_EQ(uniform_below(~0u, 10), 9u);
  EXPECT_EQ(uniform_below(~0u, uint64_t{1} << 32), ~0u);
}

TEST(Philox, SequencesOfTwoStreamsDiffer) {
  PhiloxSequence a(7, random_stream::kInit), b(7, random_stream::kShuffle);
  PhiloxSequence again(7, random_stream::kInit);
  std::set<uint32_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const uint32_t word = a.next();
    EXPECT_EQ(word, again.next());
    seen.insert(word);
    seen.insert(b.next());
  }
  EXPECT_GT(seen.size(), 1990u);
}

TEST(Philox, UniformHasTheRightMeanAndVariance) {
  PhiloxSequence sequence(3, random_stream::kInit);
  double sum = 0, squares = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double value = sequence.uniform(-1, 1);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.01);
  EXPECT_NEAR(squares / kCount, 1.0 / 3.0, 0.005);
}

// Against the library's functions in long double: every octant, the ends, and 100,000 draws.
TEST(BoxMuller, MatchesItsFormula) {
  const auto expect_close = [](const Philox4& block) {
    double first, second;
    box_muller(block, first, second);
    const long double u =
        1 - static_cast<long double>(uniform_f64(~block.words[0], ~block.words[1]));
    const long double v = uniform_f64(block.words[2], block.words[3]);
    const long double radius = std::sqrt(-2 * std::log(u));
    const long double angle = 2 * std::acos(-1.0L) * v;
    const double limit = 8 * std::numeric_limits<double>::epsilon() * static_cast<double>(radius);
    EXPECT_NEAR(first, static_cast<double>(radius * std::cos(angle)), limit);
    EXPECT_NEAR(second, static_cast<double>(radius * std::sin(angle)), limit);
  };
  // u = 1 - (value of the inverted words) makes words 0 and 1 the bits of u, one step lower.
  for (const uint32_t u : {0u, 1u, 0x7FFFFFFFu, 0x80000000u, 0xB504F333u, 0xFFFFFFFEu}) {
    for (uint32_t eighth = 0; eighth < 8; ++eighth) {
      expect_close({{u, 0, eighth << 29, 0}});
      expect_close({{u, ~0u, (eighth << 29) + 12345, 67}});
      expect_close({{u, 5, (eighth << 29) + 0x1FFFFFFFu, ~0u}});
    }
  }
  PhiloxSequence bits(1, random_stream::kTensor);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t a = bits.next(), b = bits.next(), c = bits.next(), d = bits.next();
    expect_close({{a, b, c, d}});
  }
}

// Element i of call n is a function of (seed, n, i) alone.
TEST(Generator, ElementsFollowTheCounter) {
  Generator generator(kCpu, 42);
  for (uint64_t call = 0; call < 3; ++call) {
    for (const int64_t n : {1, 2, 3, 4, 5, 70000}) {
      generator.set_state({.seed = 42, .calls = static_cast<int64_t>(call)});
      const std::vector<float> f32 = rand({n}, {}, &generator).to_vector<float>();
      generator.set_state({.seed = 42, .calls = static_cast<int64_t>(call)});
      const std::vector<double> f64 =
          rand({n}, {.dtype = DType::f64}, &generator).to_vector<double>();
      for (size_t i = 0; i < f32.size(); i += i < 8 ? 1 : 997) {
        const uint64_t stream = random_stream::kTensor + call;
        EXPECT_EQ(f32[i], uniform_f32(philox(42, stream, i / 4).words[i % 4]));
        const Philox4 block = philox(42, stream, i / 2);
        EXPECT_EQ(f64[i], uniform_f64(block.words[i % 2 * 2], block.words[i % 2 * 2 + 1]));
      }
      EXPECT_EQ(generator.state(), (Generator::State{42, static_cast<int64_t>(call) + 1}));
    }
  }
}

TEST(Generator, CallsDifferAndStatesRepeat) {
  Generator generator(kCpu, 7);
  const std::vector<float> first = randn({100}, {}, &generator).to_vector<float>();
  const Generator::State state = generator.state();
  const std::vector<float> second = randn({100}, {}, &generator).to_vector<float>();
  EXPECT_NE(first, second);
  generator.set_state(state);
  EXPECT_EQ(randn({100}, {}, &generator).to_vector<float>(), second);
  generator.manual_seed(7);
  EXPECT_EQ(randn({100}, {}, &generator).to_vector<float>(), first);
  generator.manual_seed(8);
  EXPECT_NE(randn({100}, {}, &generator).to_vector<float>(), first);
  manual_seed(7);
  EXPECT_EQ(randn({100}).to_vector<float>(), first);
  EXPECT_EQ(default_generator(kCpu).state(), (Generator::State{7, 1}));
  manual_seed(0);
}

TEST(Generator, FormatDoesNotChangeTheElements) {
  Generator a(kCpu, 1), b(kCpu, 1);
  const Tensor x = rand({2, 3, 4, 5}, {}, &a);
  const Tensor y = rand({2, 3, 4, 5}, {.format = MemoryFormat::channels_last}, &b);
  EXPECT_TRUE(y.is_contiguous(MemoryFormat::channels_last));
  EXPECT_EQ(x.to_vector<float>(), y.to_vector<float>());
}

TEST(Random, UniformUsesEveryBitAndStaysBelowOne) {
  Generator generator(kCpu, 3);
  const struct {
    DType dtype;
    double step;
  } cases[] = {{DType::f16, 0x1p-11}, {DType::bf16, 0x1p-8}, {DType::f32, 0x1p-24}};
  for (const auto& [dtype, step] : cases) {
    double sum = 0, lowest = 1, highest = 0;
    std::set<double> low_bits;
    const std::vector<double> values =
        rand({100000}, {.dtype = dtype}, &generator).to_vector<double>();
    for (const double value : values) {
      EXPECT_EQ(std::fmod(value, step), 0);
      low_bits.insert(std::fmod(value / step, 16));
      sum += value;
      lowest = std::min(lowest, value);
      highest = std::max(highest, value);
    }
    EXPECT_EQ(low_bits.size(), 16u);
    EXPECT_NEAR(sum / 100000, 0.5 - step / 2, 0.004);
    EXPECT_LT(lowest, 0.005);
    EXPECT_GT(highest, 0.995);
    EXPECT_LT(highest, 1);
  }
}

TEST(Random, UniformBetweenBounds) {
  Generator generator(kCpu, 3);
  double lowest = 9, highest = -9;
  for (const double v : rand({20000}, {}, &generator, -3, 5).to_vector<double>()) {
    lowest = std::min(lowest, v);
    highest = std::max(highest, v);
  }
  EXPECT_GE(lowest, -3);
  EXPECT_LT(lowest, -2.99);
  EXPECT_LT(highest, 5);
  EXPECT_GT(highest, 4.99);
}

TEST(Random, UniformStaysBelowItsUpperBoundInEveryDtype) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (const auto& [low, high] : {std::pair{1.0, 2.0}, {-1.0, 0.0}, {0.3, 0.7}, {-3.0, -2.0}}) {
      Generator generator(kCpu, 3);
      const Tensor x = rand({200000}, {.dtype = dtype}, &generator, low, high);
      for (const double v : x.to_vector<double>()) ASSERT_LT(v, high) << to_string(dtype);
    }
    Generator generator(kCpu, 3);
    EXPECT_EQ(rand({1}, {.dtype = dtype}, &generator, 2.0, 2.0).item<double>(), 2.0);
  }
}

TEST(Random, UniformReachesTheLargestValuesOfADtype) {
  const TensorOptions f16{.dtype = DType::f16};
  for (const auto& [low, high] : {std::pair{-65504.0, 0.0}, {0.0, 65504.0}, {-65504.0, 65504.0}}) {
    Generator generator(kCpu, 3);
    double largest = 0;
    for (const double v : rand({20000}, f16, &generator, low, high).to_vector<double>()) {
      ASSERT_TRUE(v >= low && v < high) << v;
      largest = std::max(largest, std::abs(v));
    }
    EXPECT_GT(largest, 65000);
  }
}

TEST(Random, AGeneratorThatCannotBeMadeLeavesNothingBehind) {
  if (has_gpu()) GTEST_SKIP() << "needs a machine without a GPU";
  EXPECT_THROW(rand({2}, {.device = kCuda}), Error);
  manual_seed(1);
}

TEST(Random, NormalHasItsMomentsAndTails) {
  Generator generator(kCpu, 5);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    constexpr int kCount = 200000;
    const std::vector<double> values =
        randn({kCount}, {.dtype = dtype}, &generator, 1.0, 2.0).to_vector<double>();
    double moments[5] = {}, neighbours = 0;
    int within_one = 0, beyond_three = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double z = (values[i] - 1) / 2;
      for (int k = 1; k <= 4; ++k) moments[k] += std::pow(z, k) / kCount;
      if (i % 2 == 1) neighbours += z * (values[i - 1] - 1) / 2 / kCount * 2;
      within_one += std::abs(z) < 1;
      beyond_three += std::abs(z) > 3;
    }
    EXPECT_NEAR(moments[1], 0, 0.01);
    EXPECT_NEAR(moments[2], 1, 0.015);
    EXPECT_NEAR(moments[3], 0, 0.04);
    EXPECT_NEAR(moments[4], 3, 0.12);
    EXPECT_NEAR(neighbours, 0, 0.015);
    EXPECT_NEAR(within_one / double(kCount), 0.6827, 0.005);
    EXPECT_NEAR(beyond_three / double(kCount), 0.0027, 0.0005);
  }
}

TEST(Random, IntegersCoverTheirRangeEvenly) {
  Generator generator(kCpu, 9);
  std::vector<int> counts(7);
  for (const int64_t v :
       randint(-3, 4, {70000}, {.dtype = DType::i32}, &generator).to_vector<int64_t>()) {
    ASSERT_TRUE(v >= -3 && v < 4);
    ++counts[static_cast<size_t>(v + 3)];
  }
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - 10000.0) * (count - 10000.0) / 10000.0;
  EXPECT_LT(chi_square, 22.5);  // 6 degrees of freedom, 1 in 1000
  std::set<int64_t> bytes;
  for (const int64_t v :
       randint(0, 256, {5000}, {.dtype = DType::u8}, &generator).to_vector<int64_t>()) {
    bytes.insert(v);
  }
  EXPECT_EQ(bytes.size(), 256u);
  const int64_t top = INT32_MAX;
  EXPECT_EQ(randint(top, top + 1, {}, {.dtype = DType::i32}, &generator).item<int64_t>(), top);
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int negative = 0;
  const Tensor wide = randint(kMin, kMax, {1000}, {.dtype = DType::i64}, &generator);
  for (const int64_t v : wide.to_vector<int64_t>()) negative += v < 0;
  EXPECT_NEAR(negative, 500, 60);
  const Tensor one = randint(kMax - 1, kMax, {3}, {.dtype = DType::i64}, &generator);
  EXPECT_EQ(one.to_vector<int64_t>(), std::vector<int64_t>(3, kMax - 1));
}

TEST(Random, BernoulliHasItsProbability) {
  Generator generator(kCpu, 11);
  for (const double p : {0.0, 0.25, 0.9, 1.0}) {
    int64_t ones = 0;
    for (const int64_t v :
         bernoulli(p, {40000}, {.dtype = DType::u8}, &generator).to_vector<int64_t>()) {
      ASSERT_TRUE(v == 0 || v == 1);
      ones += v;
    }
    EXPECT_NEAR(static_cast<double>(ones) / 40000, p, p == 0 || p == 1 ? 0 : 0.012);
  }
}

// The bytes of one draw of every kind and dtype.
std::vector<std::vector<char>> draw_everything(Generator& generator) {
  const Device device = generator.device();
  std::vector<Tensor> tensors;
  for (const int64_t n : {0, 1, 7, 40001}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      const TensorOptions options{.dtype = dtype, .device = device};
      tensors.push_back(rand({n}, options, &generator));
      tensors.push_back(rand({n}, options, &generator, -0.3, 1.7));
      tensors.push_back(randn({n}, options, &generator));
      tensors.push_back(randn({n}, options, &generator, 0.1, 0.3));
      tensors.push_back(bernoulli(0.3, {n}, options, &generator));
    }
    for (const DType dtype : {DType::u8, DType::i32, DType::i64}) {
      const TensorOptions options{.dtype = dtype, .device = device};
      tensors.push_back(randint(3, 200, {n}, options, &generator));
      tensors.push_back(bernoulli(0.5, {n}, options, &generator));
    }
  }
  std::vector<std::vector<char>> all;
  for (const Tensor& tensor : tensors) {
    const Tensor host = tensor.to(kCpu);
    std::vector<char> bytes(static_cast<size_t>(host.nbytes()));
    if (!bytes.empty()) std::memcpy(bytes.data(), host.raw().data, bytes.size());
    all.push_back(std::move(bytes));
  }
  return all;
}

TEST(Random, SameBitsForAnyTeam) {
  const int before = cpu().threads();
  std::vector<std::vector<char>> first;
  for (const int threads : {1, 2, 3}) {
    cpu().set_threads(threads);
    Generator generator(kCpu, 13);
    const auto all = draw_everything(generator);
    if (first.empty()) first = all;
    EXPECT_TRUE(all == first) << threads;
  }
  cpu().set_threads(before);
}

TEST(Random, SameBitsForEveryInstructionSet) {
  const Isa before = cpu().isa();
  std::vector<std::vector<char>> first;
  for (const Isa isa : test::usable_isas()) {
    cpu().set_isa(isa);
    Generator generator(kCpu, 13);
    const auto all = draw_everything(generator);
    if (first.empty()) first = all;
    EXPECT_TRUE(all == first) << to_string(isa);
  }
  cpu().set_isa(before);
}

TEST(RandomCuda, SameBitsAsTheCpu) {
  GRADUS_SKIP_WITHOUT(kCuda);
  Generator host(kCpu, 17), device(kCuda, 17);
  const auto want = draw_everything(host), got = draw_everything(device);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i] == want[i]) << "draw " << i;
  EXPECT_EQ(device.state(), host.state());
}

// A replayed step draws on; a new seed and a restored state reach it, too.
void expect_steps_draw_anew(Device device) {
  Generator generator(device, 19), other(kCpu, 19);
  const Tensor y = Tensor::zeros({1000}, {.device = device});
  nn::CapturedStep step(device,
                        [&] { Tensor(y).copy_(randn({1000}, {.device = device}, &generator)); });
  for (int i = 0; i < 6; ++i) {
    step.run();
    EXPECT_EQ(y.to_vector<float>(), randn({1000}, {}, &other).to_vector<float>()) << i;
  }
  EXPECT_EQ(step.captured(), device != kCpu);
  for (const Generator::State& state : {Generator::State{23, 0}, Generator::State{19, 2}}) {
    generator.set_state(state);
    other.set_state(state);
    step.run();
    EXPECT_EQ(y.to_vector<float>(), randn({1000}, {}, &other).to_vector<float>());
  }
}

TEST(Generator, StepsDrawAnew) { expect_steps_draw_anew(kCpu); }
TEST(GeneratorCuda, ReplayedStepsDrawAnew) {
  GRADUS_SKIP_WITHOUT(kCuda);
  expect_steps_draw_anew(kCuda);
}

TEST(Random, Errors) {
  const auto invalid = ErrorCode::invalid_argument;
  EXPECT_ERROR(rand({2}, {.dtype = DType::i64}), invalid, "rand: expected a floating dtype", "i64");
  EXPECT_ERROR(rand({2}, {}, nullptr, -3e38, 3e38), invalid, "of a finite distance");
  EXPECT_ERROR(rand({2}, {.dtype = DType::f16}, nullptr, -1e5, 0), invalid,
               "rand: values from -1e+05 to 0 do not fit f16");
  EXPECT_ERROR(rand({2}, {.dtype = DType::f16}, nullptr, 0, 1e5), invalid, "do not fit f16");
  EXPECT_ERROR(rand({2}, {.dtype = DType::bf16}, nullptr, 0, 3.4e38), invalid, "not fit bf16");
  EXPECT_ERROR(rand({2}, {}, nullptr, -1e39, -9e38), invalid, "do not fit f32");
  EXPECT_ERROR(randn({2}, {.dtype = DType::u8}), invalid, "randn", "u8");
  EXPECT_ERROR(randn({2}, {}, nullptr, 0, -1), invalid, "std must not be negative", "-1");
  EXPECT_ERROR(rand({2}, {}, nullptr, 1, 0), invalid, "low <= high", "1 and 0");
  EXPECT_ERROR(randint(0, 10, {2}, {.dtype = DType::f32}), invalid, "u8, i32 or i64", "f32");
  EXPECT_ERROR(randint(5, 5, {2}), invalid, "low < high", "5 and 5");
  EXPECT_ERROR(randint(0, 257, {2}, {.dtype = DType::u8}), invalid, "do not fit u8", "256");
  EXPECT_ERROR(randint(-1, 5, {2}, {.dtype = DType::u8}), invalid, "do not fit u8");
  EXPECT_ERROR(bernoulli(1.5, {2}), invalid, "probability", "1.5");
  EXPECT_ERROR(rand({-1}), invalid, "negative");
  EXPECT_ERROR(default_generator(kCpu).set_state({.seed = 0, .calls = -1}), invalid, "negative");
  Generator counts;
  EXPECT_ERROR(rand({2}, {.format = MemoryFormat::channels_last}, &counts), invalid, "rank 4");
  EXPECT_EQ(counts.state().calls, 0);
}

}  // namespace
}  // namespace gradus
