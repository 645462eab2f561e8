#include "core/random.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

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

}  // namespace
}  // namespace gradus
