// Launch plans of batch normalization: host code, tested without a GPU.
#include "cuda/batch_norm_plan.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace gradus {
namespace {

// Counts how often each element is visited when all threads of all blocks walk the packs of all
// channels in ranges of `size` packs.
void expect_walked_once(int64_t n, int64_t c, int64_t s, int width) {
  const BatchNormRows plan = plan_batch_norm_rows(n, c, s, width);
  const int64_t evaluated = batch_norm_evaluate_unroll(width) * kBatchNormThreads;
  for (const int64_t size : {plan.chunk, plan.slice, evaluated}) {
    std::vector<int> visits(static_cast<size_t>(n * c * s));
    for (int64_t channel = 0; channel < c; ++channel) {
      for (int64_t begin = 0; begin < plan.packs; begin += size) {
        const int64_t end = std::min(plan.packs, begin + size);
        for (int64_t thread = 0; thread < kBatchNormThreads; ++thread) {
          BatchNormWalk walk(plan, channel, begin + thread, width);
          for (int64_t pack = begin + thread; pack < end; pack += kBatchNormThreads) {
            ASSERT_LT(walk.at / s % c, c);
            ASSERT_EQ(walk.at / s % c, channel);
            for (int i = 0; i < width; ++i) ++visits[static_cast<size_t>(walk.at + i)];
            walk.step(plan);
          }
        }
      }
    }
    for (const int count : visits) ASSERT_EQ(count, 1);
  }
}

// The same for the blocks of the clusters that hold channels.
void expect_held_walked_once(int64_t n, int64_t c, int64_t s, int width) {
  const BatchNormHeld plan =
      plan_batch_norm_held(plan_batch_norm_rows(n, c, s, width), 16, 1, 227 * 1024);
  ASSERT_GT(plan.cluster, 0);
  std::vector<int> visits(static_cast<size_t>(n * c * s));
  for (int64_t channel = 0; channel < c; ++channel) {
    for (int begin = 0; begin < plan.packs; begin += plan.piece) {
      const int end = std::min(plan.packs, begin + plan.piece);
      for (int thread = 0; thread < plan.threads(); ++thread) {
        BatchNormHeldWalk walk(plan, static_cast<uint32_t>(channel),
                               static_cast<uint32_t>(begin + thread), width);
        for (int pack = begin + thread; pack < end; pack += plan.threads(), walk.step(plan)) {
          ASSERT_EQ(walk.at / s % c, channel);
          for (int i = 0; i < width; ++i) ++visits[walk.at + static_cast<size_t>(i)];
        }
      }
    }
  }
  for (const int count : visits) ASSERT_EQ(count, 1);
}

TEST(BatchNormPlan, HeldRowsAreWalkedOnce) {
  expect_held_walked_once(37, 3, 48, 4);
  expect_held_walked_once(7, 2, 784, 8);
  expect_held_walked_once(128, 64, 1024, 4);
  expect_held_walked_once(128, 32, 784, 8);
  expect_held_walked_once(300, 32, 784, 8);
  EXPECT_EQ(
      plan_batch_norm_held(plan_batch_norm_rows(1024, 1 << 16, 64, 8), 16, 1, 227 * 1024).cluster,
      0);  // more elements than 32 bits count
}

TEST(BatchNormPlan, RowsAreWalkedOnce) {
  expect_walked_once(1, 1, 1, 1);
  expect_walked_once(3, 2, 5, 1);
  expect_walked_once(700, 3, 7, 1);
  expect_walked_once(37, 3, 48, 4);
  expect_walked_once(5, 2, 1024, 8);
  expect_walked_once(3, 2, 3136, 4);
  expect_walked_once(1, 1, 40000, 4);
}

TEST(BatchNormPlan, ChunksAreFewAndLong) {
  for (const int64_t c : {1, 3, 64, 128, 2048, 70000}) {
    for (const int64_t n : {1, 8, 256}) {
      for (const int width : {1, 4, 8}) {
        const BatchNormRows plan = plan_batch_norm_rows(n, c, 56 * 56, width);
        const int64_t group = kBatchNormThreads * batch_norm_unroll(width);
        EXPECT_EQ(plan.chunk % group, 0);
        EXPECT_LE(plan.chunks, 512);
        EXPECT_GE(plan.chunk * plan.chunks, plan.packs);
        EXPECT_LT(plan.chunk * (plan.chunks - 1), plan.packs);
        EXPECT_GE(plan.slice * plan.slices, plan.packs);
      }
    }
  }
}

void expect_columns_cover(int64_t m, int64_t c, int width, int together) {
  SCOPED_TRACE(concat("m ", m, " c ", c, " width ", width, " together ", together));
  const BatchNormColumns plan = plan_batch_norm_columns(m, c, width, together);
  EXPECT_EQ(plan.lanes * plan.rows, kBatchNormThreads);
  EXPECT_LE(plan.lanes * width, kBatchNormThreads);  // a thread for each channel
  EXPECT_EQ(plan.group, plan.rows * together);
  EXPECT_GE(plan.groups * plan.group, m);
  EXPECT_LT((plan.groups - 1) * plan.group, m);
  EXPECT_GE(plan.channel_blocks * plan.lanes * width, c);
  EXPECT_LT((plan.channel_blocks - 1) * plan.lanes * width, c);
  EXPECT_GE(plan.chunks, 1);
  EXPECT_LE(plan.chunks, plan.groups);
  EXPECT_LE(plan.chunks, kMaxGridY);
  // All at work at once on a card of 132 multiprocessors.
  EXPECT_LE(plan.chunks * plan.channel_blocks,
            std::max<int64_t>(plan.channel_blocks, 132 * kColumnBlocks));
}

TEST(BatchNormPlan, ColumnsCoverTheChannels) {
  for (const int64_t c : {1, 3, 19, 64, 128, 1000, 70000}) {
    for (const int64_t m : {1, 7, 300, 100000}) {
      for (const int width : {1, 2, 4, 8}) {
        if (c % width != 0) continue;
        for (const int inputs : {1, 2}) {
          expect_columns_cover(m, c, width, kColumnSums / inputs);
          expect_columns_cover(m, c, width, kColumnSums / inputs / 2);  // evaluation
          expect_columns_cover(m, c, width, kColumnWrites / inputs);
        }
      }
    }
  }
}

constexpr int64_t kHopper = 227 * 1024;  // bytes that a block may have

TEST(BatchNormPlan, ClustersHoldChannelsThatFit) {
  const auto held = [](int64_t n, int64_t c, int64_t s, int width, int inputs,
                       int64_t shared_limit = kHopper) {
    return plan_batch_norm_held(plan_batch_norm_rows(n, c, s, width), 16, inputs, shared_limit);
  };
  for (const int64_t n : {1, 3, 128, 1000}) {
    for (const int64_t c : {1, 3, 16, 60, 64, 128, 2048}) {
      for (const int64_t s : {8, 64, 1024, 3136}) {
        for (const int width : {2, 4, 8}) {
          for (const int inputs : {1, 2}) {
            const BatchNormHeld plan = held(n, c, s, width, inputs);
            if (plan.cluster == 0) continue;
            EXPECT_LE(plan.cluster, BatchNormHeld::kMostBlocks);
            EXPECT_LE(plan.bytes, plan.wide ? kHopper - 5120 : BatchNormHeld::kMostBytes);
            EXPECT_EQ(plan.in_shared, std::max(0, plan.piece - plan.kept * plan.threads()));
            EXPECT_TRUE(!plan.wide || plan.kept == 8 / inputs);
            if (!plan.wide && plan.kept > 0) {  // four blocks on a multiprocessor
              EXPECT_EQ(plan.kept, 4 / inputs);
              EXPECT_GE(plan.piece, plan.kept * plan.threads());
              EXPECT_LE(4 * (plan.bytes + 3 * 1024), 228 * 1024);
            }
            EXPECT_EQ(plan.bytes, plan.in_shared * 16 * inputs);
            EXPECT_TRUE(!plan.wide || c * plan.cluster <= 128);
            EXPECT_GE(int64_t{plan.piece} * plan.cluster, n * s / width);
            EXPECT_LT(int64_t{plan.piece} * (plan.cluster - 1), n * s / width);
          }
        }
      }
    }
  }
  // 128 x 64 x 32 x 32, forward: eight narrow blocks of a channel, three or four for each
  // multiprocessor.
  for (const int width : {4, 8}) {
    EXPECT_EQ(held(128, 64, 1024, width, 1).cluster, 8);
    EXPECT_FALSE(held(128, 64, 1024, width, 1).wide);
  }
  // 32 KB of a block in 16 bits; 64 in f32 and backward, of which 16 stay in registers. Backward in
  // f32 a channel does not fit.
  EXPECT_EQ(held(128, 64, 1024, 8, 1).bytes, 32 * 1024);
  EXPECT_EQ(held(128, 64, 1024, 4, 1).bytes, 48 * 1024);
  EXPECT_EQ(held(128, 64, 1024, 4, 1).kept, 4);
  EXPECT_EQ(held(128, 64, 1024, 8, 2).bytes, 48 * 1024);
  EXPECT_EQ(held(128, 64, 1024, 8, 2).kept, 2);
  EXPECT_EQ(held(128, 64, 1024, 8, 2).cluster, 8);
  // Where channels are too long for narrow blocks, or few or many.
  for (const auto& [n, c, width, inputs, cluster] :
       {std::tuple(140, 64, 8, 2, 2), {150, 32, 4, 1, 4}, {128, 32, 4, 1, 4}, {40, 128, 4, 1, 1}}) {
    EXPECT_EQ(held(n, c, 1024, width, inputs).cluster, cluster);
    EXPECT_TRUE(held(n, c, 1024, width, inputs).wide);
  }
  // What batch_norm_test computes on both.
  EXPECT_TRUE(held(129, 32, 1000, 4, 1).wide);
  EXPECT_FALSE(held(129, 60, 1000, 4, 1).wide);
  EXPECT_EQ(held(129, 60, 1000, 4, 1).cluster, 8);
  // Where a block has less shared memory, eight blocks.
  EXPECT_EQ(held(128, 64, 1024, 8, 2, 99 * 1024).cluster, 8);
  EXPECT_EQ(held(128, 64, 1024, 4, 2).cluster, 0);
  EXPECT_EQ(held(128, 80, 1024, 4, 1).cluster, 8);  // 80 blocks would leave the card idle, 160 wait
  EXPECT_EQ(held(256, 128, 3136, 4, 1).cluster, 0);
  EXPECT_EQ(held(128, 3, 1024, 4, 1).cluster, 0);  // 24 blocks would leave the card idle
  EXPECT_EQ(held(2, 3, 64, 4, 1).cluster, 1);
}

// Counts how often the threads of the clusters that hold bands visit each element, when they copy
// packs and when they take elements of their channel.
void expect_bands_walked_once(int64_t n, int64_t c, int64_t s, int width, int inputs) {
  SCOPED_TRACE(concat(n, "x", c, "x", s, " width ", width, " inputs ", inputs));
  const BatchNormBands plan = plan_batch_norm_bands(n, c, s, width, inputs, kHopper);
  ASSERT_GT(plan.held.cluster, 0);
  EXPECT_LE(plan.held.bytes, BatchNormBands::kMostBytes);
  EXPECT_EQ(plan.channels * s % width, 0);
  EXPECT_EQ(c % plan.channels, 0);
  std::vector<int> copied(static_cast<size_t>(n * c * s)), taken = copied;
  const int threads = kBatchNormThreads / plan.channels, run = plan.channels * plan.plane;
  for (int64_t band = 0; band < c / plan.channels; ++band) {
    for (int rank = 0; rank < plan.held.cluster; ++rank) {
      const int begin = rank * plan.held.piece;
      const int count = std::max(0, std::min(plan.held.piece, plan.held.packs - begin));
      std::vector<int64_t> place(static_cast<size_t>(plan.held.piece * width), -1);  // in memory
      for (int thread = 0; thread < kBatchNormThreads; ++thread) {
        BatchNormHeldWalk walk(plan.held, static_cast<uint32_t>(band),
                               static_cast<uint32_t>(begin + thread), width);
        for (int i = thread; i < count; i += kBatchNormThreads, walk.step(plan.held)) {
          for (int j = 0; j < width; ++j) {
            ++copied[walk.at + static_cast<size_t>(j)];
            place[static_cast<size_t>(i * width + j)] = walk.at + j;
          }
        }
      }
      const int samples = count * width / run;
      for (int thread = 0; thread < kBatchNormThreads; ++thread) {
        const int channel = thread / threads;
        BatchNormBandWalk walk(plan, channel, thread % threads, samples);
        for (; walk.left > 0; walk.step()) {
          const int64_t element = place.at(static_cast<size_t>(walk.at));
          ASSERT_GE(element, 0);
          EXPECT_EQ(element / s % c, band * plan.channels + channel);
          ++taken[static_cast<size_t>(element)];
        }
      }
    }
  }
  for (const int count : copied) ASSERT_EQ(count, 1);
  for (const int count : taken) ASSERT_EQ(count, 1);
}

TEST(BatchNormPlan, BandsAreWalkedOnce) {
  for (const int inputs : {1, 2}) {
    expect_bands_walked_once(256, 16, 49, 8, inputs);
    expect_bands_walked_once(9, 24, 49, 4, inputs);
    expect_bands_walked_once(64, 6, 196, 8, inputs);
    expect_bands_walked_once(1, 8, 1, 8, inputs);
    expect_bands_walked_once(3, 4, 9, 4, inputs);
    expect_bands_walked_once(5, 2, 169, 2, inputs);
    expect_bands_walked_once(2, 8, 3025, 8, inputs);
  }
}

TEST(BatchNormPlan, BandsOfTheShapesOfNetworks) {
  const auto bands = [](int64_t n, int64_t c, int64_t s, int width, int inputs) {
    return plan_batch_norm_bands(n, c, s, width, inputs, kHopper);
  };
  // 256 x 2048 x 7 x 7 in 16 bits: 49 KB of a block.
  EXPECT_EQ(bands(256, 2048, 49, 8, 1).channels, 8);
  EXPECT_EQ(bands(256, 2048, 49, 8, 1).held.cluster, 4);
  EXPECT_EQ(bands(256, 2048, 49, 8, 2).held.cluster, 8);
  EXPECT_EQ(bands(256, 2048, 49, 8, 2).held.bytes, 49 * 1024);
  EXPECT_EQ(bands(256, 2048, 49, 4, 2).channels, 4);
  EXPECT_EQ(bands(256, 1024, 196, 8, 2).channels, 2);
  // Short runs take more channels, where there are as many.
  EXPECT_EQ(bands(128, 64, 9, 4, 1).channels, 8);
  EXPECT_EQ(bands(128, 12, 9, 4, 1).channels, 4);
  // Few bands are shared by all blocks of a cluster.
  EXPECT_EQ(bands(128, 64, 49, 4, 1).held.cluster, 8);
  // Channels that make no whole runs; bands that do not fit; more elements than 32 bits count.
  EXPECT_EQ(bands(128, 62, 49, 4, 1).held.cluster, 0);
  EXPECT_EQ(bands(256, 64, 3025, 8, 1).held.cluster, 0);
  EXPECT_EQ(bands(1 << 20, 1 << 10, 49, 8, 1).held.cluster, 0);
}

// The first element of a thread far beyond 2^32 packs.
TEST(BatchNormPlan, WalksUse64Bits) {
  const int64_t s = int64_t(1) << 34, pack = (int64_t(1) << 34) + 5;
  const BatchNormRows plan = plan_batch_norm_rows(2, 3, s, 1);
  BatchNormWalk walk(plan, 2, pack, 1);
  EXPECT_EQ(walk.at, 3 * s + 2 * s + 5);
  walk.step(plan);
  EXPECT_EQ(walk.at, 3 * s + 2 * s + 5 + kBatchNormThreads);
}

TEST(BatchNormPlan, WavesTakeEachPackOnceAndWriteLater) {
  for (const auto& [n, c, s, pack, inputs] : {std::tuple{256, 128, 3136, 16, 1},
                                              {256, 128, 3136, 16, 2},
                                              {333, 130, 952, 16, 1},
                                              {340, 36, 1296, 16, 2},
                                              {160, 64, 840, 16, 2}}) {
    SCOPED_TRACE(concat(n, "x", c, "x", s, ", ", inputs, " inputs"));
    const int width = 8;
    BatchNormRows rows = plan_batch_norm_rows(n, c, s, width);
    const BatchNormWaves waves = plan_batch_norm_waves(rows, pack, inputs);
    ASSERT_GE(waves.lag, 2);
    EXPECT_GE(waves.lag * rows.packs * pack * inputs, kBatchNormLagBytes);
    EXPECT_LT((waves.lag - 1) * rows.packs * pack * inputs, kBatchNormLagBytes);
    EXPECT_LT((rows.chunks - 1) * rows.chunk, rows.packs);
    EXPECT_GE(rows.chunks * rows.chunk, rows.packs);
    EXPECT_LT((rows.slices - 1) * rows.slice, rows.packs);
    EXPECT_GE(rows.slices * rows.slice, rows.packs);
    EXPECT_EQ(waves.per_step, rows.chunks + rows.slices);
    // The last step writes the last channel.
    EXPECT_EQ(waves.blocks, waves.per_step * (c + waves.lag));
    for (const int64_t block : {int64_t{0}, waves.blocks / 2, waves.blocks - 1})
      EXPECT_EQ(waves.by_step.quotient(static_cast<uint32_t>(block)), block / waves.per_step);
  }
}

TEST(BatchNormPlan, WavesNeedSmallChannelsAndManyOfThem) {
  for (const auto& [n, c, s] : {std::tuple{1024, 64, 3136}, {256, 4, 3136}, {2, 1, 1 << 22}}) {
    BatchNormRows rows = plan_batch_norm_rows(n, c, s, 4);
    EXPECT_EQ(plan_batch_norm_waves(rows, 16, 2).lag, 0) << n << " " << c;
  }
}

}  // namespace
}  // namespace gradus
