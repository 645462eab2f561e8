// The steps after a convolution's sums, and the moments of what was stored.
#include "cuda/device/conv2d_epilogue.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/ops/activation_functions.h"

namespace gradus {
namespace {

using Part = Partial<float, 3>;
enum Field { kCount, kMean, kM2 };

TEST(ConvEpilogue, StepsFollowEachOther) {
  const float bias[] = {1, -2, 0.5f};
  const Epilogue none{};
  EXPECT_EQ(none(3.0f, 0), 3.0f);
  const Epilogue adds{AddBias<float>{bias}};
  EXPECT_EQ(adds(1.5f, 1), -0.5f);
  EXPECT_EQ(adds(1.5f, 2), 2.0f);
  const Epilogue both{AddBias<float>{bias}, Activate<Relu>{}};
  EXPECT_EQ(both(1.5f, 0), 2.5f);
  EXPECT_EQ(both(1.5f, 1), 0.0f);
  const Epilogue other{Activate<Relu>{}, AddBias<float>{bias}};
  EXPECT_EQ(other(-1.0f, 1), -2.0f);  // the order is that of the list
  const Epilogue leaky{AddBias<float>{}, Activate<LeakyRelu>{{.negative_slope = 0.25}}};
  EXPECT_EQ(leaky(-8.0f, 7), -2.0f);  // without a bias
  const double exact[] = {1e-12};
  EXPECT_EQ((Epilogue{AddBias<double>{exact}}(1.0, 0)), 1 + 1e-12);
}

TEST(ConvEpilogue, NaNPasses) {
  const Epilogue relu{Activate<Relu>{}};
  EXPECT_TRUE(std::isnan(relu(NAN, 0)));
}

struct Reference {
  double mean = 0, m2 = 0;
};
template <class T>
Reference reference_of(const std::vector<T>& values) {
  Reference result;
  for (const T v : values) result.mean += static_cast<double>(static_cast<float>(v));
  result.mean /= static_cast<double>(values.size());
  for (const T v : values) {
    result.m2 += std::pow(static_cast<double>(static_cast<float>(v)) - result.mean, 2);
  }
  return result;
}

std::vector<float> draw(int count, float mean, uint32_t seed) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values.push_back(mean + static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1);
  }
  return values;
}

// As blocks do it: `threads` take the pixels in turn, tiles of `tile` pixels one after the other.
template <class T>
Part moments_in_tiles(const std::vector<T>& values, size_t tile, size_t threads) {
  std::vector<Part> tiles;
  for (size_t begin = 0; begin < values.size(); begin += tile) {
    std::vector<Part> parts;
    for (size_t thread = 0; thread < threads; ++thread) {
      StoredMoments<T, 1> mine;
      const size_t end = std::min(begin + tile, values.size());
      for (size_t i = begin + thread; i < end; i += threads) mine.take({values[i]});
      parts.push_back(mine.part(0));
    }
    tiles.push_back(merge_moments(parts.data(), static_cast<int64_t>(parts.size()), 1));
  }
  return merge_moments(tiles.data(), static_cast<int64_t>(tiles.size()), 1);
}

TEST(ConvEpilogue, MomentsOfTilesAreThoseOfTheWhole) {
  for (const float mean : {0.0f, 3.0f, 1e4f}) {
    for (const int count : {1, 2, 7, 128, 1000}) {
      const std::vector<float> values = draw(count, mean, 5);
      const Reference want = reference_of(values);
      for (const size_t tile : {1, 64, 128, 5000}) {
        for (const size_t threads : {1, 3, 16}) {
          const Part part = moments_in_tiles(values, tile, threads);
          EXPECT_EQ(part.v[kCount], static_cast<float>(count));
          EXPECT_NEAR(part.v[kMean], want.mean, 1e-6 * (1 + std::abs(want.mean)));
          EXPECT_NEAR(part.v[kM2], want.m2, 2e-3 * want.m2 + 1e-9)
              << mean << ' ' << count << ' ' << tile << ' ' << threads;
        }
      }
    }
  }
}

// The moments are of what is stored, not of the sums: 16-bit values differ.
TEST(ConvEpilogue, MomentsAreOfTheStoredValues) {
  const float sums[] = {1.001f, 1.003f};  // both are stored as 1 in bf16
  StoredMoments<BFloat16, 1> moments;
  for (const float sum : sums) moments.take({BFloat16(sum)});
  EXPECT_EQ(moments.part(0).v[kMean], 1.0f);
  EXPECT_EQ(moments.part(0).v[kM2], 0.0f);
}

TEST(ConvEpilogue, ChannelsAreKeptApart) {
  StoredMoments<float, 3> moments;
  for (const float x : {1.0f, 2.0f, 6.0f}) moments.take({x, -x, 4.0f});
  const float means[] = {3, -3, 4}, m2s[] = {14, 14, 0};
  for (int i = 0; i < 3; ++i) {
    EXPECT_FLOAT_EQ(moments.part(i).v[kMean], means[i]);
    EXPECT_FLOAT_EQ(moments.part(i).v[kM2], m2s[i]);
  }
}

// Parts [tile][channel]: a channel's are `stride` apart; empty ones change nothing.
TEST(ConvEpilogue, MergesAlongItsStride) {
  const Part parts[] = {{2, 1, 2}, {9, 9, 9}, {0, 0, 0}, {9, 9, 9}, {2, 3, 0}, {9, 9, 9}};
  const Part all = merge_moments(parts, 3, 2);
  EXPECT_EQ(all.v[kCount], 4);
  EXPECT_EQ(all.v[kMean], 2);
  EXPECT_EQ(all.v[kM2], 6);  // 2 + 0 + 2 · 2 / 4 · (3 - 1)²
  EXPECT_EQ(merge_moments(parts, 0, 2).v[kCount], 0);
}

TEST(ConvEpilogue, InfinityMakesTheMomentsNaNOrInfinite) {
  const Part part = moments_in_tiles(std::vector<float>{1, INFINITY, 2}, 2, 1);
  EXPECT_FALSE(std::isfinite(part.v[kM2]));
}

}  // namespace
}  // namespace gradus
