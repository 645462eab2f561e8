// Which convolutions Hopper's products take, and how a strided backward pass is cut into parts.
#include "cuda/conv2d_wgmma_plan.h"

#include <gtest/gtest.h>

#include <set>

#include "cuda/conv2d_plan.h"
#include "cuda/device/conv2d_turned_tile.h"

namespace gradus {
namespace {

using Kind = ConvProblem::Kind;

ConvProblem problem(Kind kind, DType dtype, ConvMath math, int64_t c, int64_t k) {
  ConvProblem result{.kind = kind,
                     .dtype = dtype,
                     .math = math,
                     .n = 8,
                     .c = c,
                     .h = 16,
                     .w = 16,
                     .k = k,
                     .p = 16,
                     .q = 16};
  result.window = {.kernel = 3, .padding = 1};
  result.wgmma = true;
  return result;
}

TEST(ConvWgmmaPlan, TakesManyChannels) {
  for (const Kind kind : {Kind::forward, Kind::input, Kind::weight}) {
    ConvProblem half = problem(kind, DType::bf16, ConvMath::tensor, 128, 128);
    EXPECT_EQ(plan_conv_path(half), ConvPath::wgmma);
    half.wgmma = false;
    EXPECT_EQ(plan_conv_path(half), ConvPath::gemm);
    half.wgmma = true, half.groups = 2;
    EXPECT_EQ(plan_conv_path(half), ConvPath::gemm);
  }
  // 16-bit channels fill 128 bytes by 64, 32-bit ones by 32.
  EXPECT_FALSE(conv_takes_wgmma(problem(Kind::forward, DType::f16, ConvMath::tensor, 32, 64)));
  EXPECT_TRUE(conv_takes_wgmma(problem(Kind::forward, DType::f32, ConvMath::tensor, 32, 64)));
  EXPECT_FALSE(conv_takes_wgmma(problem(Kind::input, DType::f32, ConvMath::tensor, 32, 64)));
  EXPECT_TRUE(conv_takes_wgmma(problem(Kind::weight, DType::f32, ConvMath::tensor, 128, 128)));
  EXPECT_FALSE(conv_takes_wgmma(problem(Kind::weight, DType::f32, ConvMath::tensor, 64, 128)));
  EXPECT_TRUE(conv_takes_wgmma(problem(Kind::weight, DType::f32, ConvMath::f32, 64, 64)));
  EXPECT_FALSE(conv_takes_wgmma(problem(Kind::weight, DType::f32, ConvMath::f32, 64, 32)));
  EXPECT_FALSE(conv_takes_wgmma(problem(Kind::forward, DType::f64, ConvMath::f64, 128, 128)));
  // Short sums in strict f32 stay with plain multiply-adds.
  ConvProblem strict = problem(Kind::forward, DType::f32, ConvMath::f32, 64, 64);
  EXPECT_TRUE(conv_takes_wgmma(strict));
  strict.window = {.kernel = 1};
  EXPECT_FALSE(conv_takes_wgmma(strict));
}

TEST(ConvWgmmaPlan, LeavesWhatTheCopyEngineCannotDescribe) {
  const auto taken = [](Kind kind, const Window& window) {
    ConvProblem one = problem(kind, DType::bf16, ConvMath::tensor, 128, 128);
    one.window = window, one.h = one.w = 40;
    one.p = window.positions(0, 40), one.q = window.positions(1, 40);
    return conv_takes_wgmma(one);
  };
  EXPECT_TRUE(taken(Kind::input, {.kernel = 3, .stride = 2, .padding = 1}));
  EXPECT_TRUE(taken(Kind::input, {.kernel = 3, .stride = 2, .padding = 1, .dilation = 3}));
  EXPECT_FALSE(taken(Kind::input, {.kernel = 3, .stride = 2, .padding = 1, .dilation = 2}));
  EXPECT_FALSE(taken(Kind::input, {.kernel = 1, .stride = 2}));  // odd positions read nothing
  EXPECT_FALSE(taken(Kind::input, {.kernel = 3, .stride = 3, .padding = 1}));
  EXPECT_TRUE(taken(Kind::forward, {.kernel = 3, .stride = 3, .padding = 1}));
  EXPECT_FALSE(taken(Kind::forward, {.kernel = 3, .padding = 129}));
  EXPECT_FALSE(taken(Kind::forward, {.kernel = 3, .stride = 9}));
}

// Backward, every pair of an input position and a tap that some output position reads is in exactly
// one part, once.
TEST(ConvWgmmaPlan, PartsCoverEveryReadOnce) {
  for (const int64_t kernel : {1, 2, 3, 5}) {
    for (const int64_t stride : {1, 2}) {
      for (const int64_t padding : {0, 1, 3}) {
        for (const int64_t dilation : {1, 3}) {
          const Window window{
              .kernel = kernel, .stride = stride, .padding = padding, .dilation = dilation};
          const int64_t extent = dilation * (kernel - 1) + 6;
          const int64_t outputs = window.positions(0, extent);
          using Read = std::array<int64_t, 3>;  // input position, tap, output position
          std::multiset<Read> wanted, found;
          for (int64_t p = 0; p < outputs; ++p) {
            for (int64_t r = 0; r < kernel; ++r) {
              const int64_t at = p * stride - padding + r * dilation;
              if (at >= 0 && at < extent) wanted.insert({at, r, p});
            }
          }
          for (const ConvAxisPart& part : backward_parts(window, 0, extent)) {
            for (int i = 0; i < part.positions; ++i) {
              EXPECT_LT(part.first + i * part.stride, extent);
              for (int t = 0; t < part.taps; ++t) {
                const int64_t p = i * part.scale + part.shift + t * part.step;
                if (p < 0 || p >= outputs) continue;
                found.insert({part.first + i * part.stride, part.tap_first + t * part.tap_step, p});
              }
            }
          }
          EXPECT_EQ(found, wanted) << kernel << ' ' << stride << ' ' << padding << ' ' << dilation;
        }
      }
    }
  }
}

// A word of a box as the copy engine leaves it: vector v of pixel p at v ^ (p % 8).
int box_word(int pixel, int channel) {
  return pixel * 32 + ((channel / 4 ^ pixel % 8) * 4) + channel % 4;
}

// What a thread loads of x and what is turned of dy meet as the same pixels.
TEST(ConvWgmmaPlan, TurnedTermsAreTheSamePixels) {
  for (int t = 0; t < 128; ++t) {
    const int w = t / 32, g = t % 32 / 4, q = t % 4;
    using X = TurnedTaps<1, 64, false>;
    const uint32_t first = X::rows_at(0, 0, t, 0), second = X::rows_at(0, 0, t, 1);
    const uint32_t loads[] = {first, first ^ 32, second, second ^ 32};
    for (int i = 0; i < 4; ++i) {
      const int row = 16 * w + g + i % 2 * 8, pixel = 2 * q + i / 2;  // term q + i / 2 * 4
      EXPECT_EQ(loads[i] / 4, row / 32 * 1024 + box_word(pixel, row % 32)) << t << ' ' << i;
    }
  }
  for (int channel = 0; channel < 32; ++channel) {
    for (int p = 0; p < 8; ++p) {
      const uint32_t at = (turned_channel_at(channel) ^ (p << 4)) + p * 128;
      EXPECT_EQ(at / 4, box_word(p, channel));
    }
  }
  std::set<uint32_t> places;
  for (int channel = 0; channel < 128; ++channel) {
    for (int v = 0; v < 8; ++v) {
      EXPECT_EQ(turned_terms_at(channel, v) / 4, box_word(channel, 4 * v));
      places.insert(turned_terms_at(channel, v));
    }
  }
  EXPECT_EQ(places.size(), 1024);
}

// Each of a warp's loads of x and of dy touches every bank once; 8 lanes' stores every 16 bytes.
TEST(ConvWgmmaPlan, TurnedLoadsAndStoresMeetNoBankTwice) {
  for (int warp = 0; warp < 4; ++warp) {
    for (int shift = 0; shift < 4; ++shift) {
      for (const uint32_t flip : {0, 32}) {
        std::set<uint32_t> banks;
        for (int lane = 0; lane < 32; ++lane)
          banks.insert((turned_rows_at(32 * warp + lane, shift) ^ flip) / 4 % 32);
        EXPECT_EQ(banks.size(), 32);
      }
    }
  }
  for (int p = 0; p < 8; ++p) {
    std::set<uint32_t> banks, vectors;
    for (int lane = 0; lane < 32; ++lane)
      banks.insert((turned_channel_at(lane) ^ (p << 4)) / 4 % 32);
    for (int lane = 0; lane < 8; ++lane) vectors.insert(turned_terms_at(lane, p) / 16 % 8);
    EXPECT_EQ(banks.size(), 32);
    EXPECT_EQ(vectors.size(), 8);
  }
}

TEST(ConvWgmmaPlan, TilesFillTheBlocks) {
  const auto strict = [](int64_t rows) {
    return plan_wgmma_wgrad(DType::f32, ConvMath::f32, 65536, rows, 576).tile;
  };
  EXPECT_EQ(strict(64), (WgmmaTile{64, 256}));
  EXPECT_EQ(strict(72), (WgmmaTile{128, 256}));
  EXPECT_EQ(plan_wgmma_gather(ConvMath::tensor, 65536, 128), (WgmmaTile{128, 256}));
  EXPECT_EQ(plan_wgmma_gather(ConvMath::tensor, 16384, 128), (WgmmaTile{128, 128}));
  EXPECT_EQ(plan_wgmma_gather(ConvMath::tensor, 65536, 64), (WgmmaTile{64, 256}));
  EXPECT_EQ(plan_wgmma_gather(ConvMath::tensor, 65536, 192), (WgmmaTile{64, 256}));
  EXPECT_EQ(plan_wgmma_gather(ConvMath::f32, 65536, 128), (WgmmaTile{128, 128}));
  for (const int64_t pixels : {1024, 1087, 65536}) {
    for (const auto& [dtype, math, tiles] : {std::tuple{DType::bf16, ConvMath::tensor, 5},
                                             {DType::f32, ConvMath::tensor, 3},
                                             {DType::f32, ConvMath::f32, 5}}) {
      const WgmmaWgradPlan plan = plan_wgmma_wgrad(dtype, math, pixels, 128, 1152);
      EXPECT_EQ(plan.split, math == ConvMath::f32);
      EXPECT_EQ(ceil_div(1152, plan.tile.columns), tiles);
      EXPECT_EQ(plan.chunks.size % 64, 0);
      EXPECT_GE(plan.chunks.count * plan.chunks.size, pixels);
      EXPECT_LT((plan.chunks.count - 1) * plan.chunks.size, pixels);
      EXPECT_LE(plan.chunks.count * tiles, 132);
    }
  }
}

}  // namespace
}  // namespace gradus
