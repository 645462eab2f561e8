// Counter-based random numbers, Philox-4x32-10: a pure function of (seed, stream, counter), so that
// any element can be drawn by any thread on any device and comes out the same.
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace gradus {

// Four independent 32-bit words.
struct Philox4 {
  uint32_t words[4];
};

// One purpose, one stream: no draw of one kind repeats another's under the same seed. The lower 56
// bits are free for the purpose itself (an epoch, a layer).
namespace random_stream {
inline constexpr uint64_t kInit = uint64_t{1} << 56;
inline constexpr uint64_t kShuffle = uint64_t{2} << 56;
inline constexpr uint64_t kAugment = uint64_t{3} << 56;
inline constexpr uint64_t kTensor = uint64_t{4} << 56;  // random tensors, dropout masks
}  // namespace random_stream

GRADUS_HD Philox4 philox(uint64_t seed, uint64_t stream, uint64_t counter) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;  // golden ratio
    k1 += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return {{c0, c1, c2, c3}};
}

// Uniform in [0, 1), a multiple of 2^-24: exact in f32.
GRADUS_HD float uniform_f32(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Uniform in [0, 1), a multiple of 2^-53.
GRADUS_HD double uniform_f64(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

// Uniform in [0, count), for count up to 2^32; the bias is below count / 2^32.
GRADUS_HD uint32_t uniform_below(uint32_t word, uint64_t count) {
  return static_cast<uint32_t>(word * count >> 32);
}

// The words of one stream, one after another, for host code that draws in a row.
class PhiloxSequence {
 public:
  PhiloxSequence(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  uint32_t next() {
    if (used_ == 4) {
      block_ = philox(seed_, stream_, counter_++);
      used_ = 0;
    }
    return block_.words[used_++];
  }
  double uniform(double low, double high) {
    const uint32_t word = next();
    return low + (high - low) * uniform_f64(word, next());
  }
  uint32_t below(uint64_t count) { return uniform_below(next(), count); }

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t counter_ = 0;
  Philox4 block_{};
  int used_ = 4;
};

}  // namespace gradus
