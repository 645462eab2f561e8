// Random numbers for tensors: a generator per device, and the functions that draw from it.
//
//   manual_seed(1);
//   Tensor x = randn({8, 3, 32, 32}, {.device = kCuda});
#pragma once

#include "core/random.h"
#include "core/tensor.h"

namespace gradus {

// A seed and the number of calls made so far, both on the device, where each call counts itself:
// a captured graph draws anew in every replay. With the same seed and the same calls, all devices
// give the same numbers, bit for bit (core/ops/random.h). Used by one thread at a time.
class Generator {
 public:
  struct State {
    uint64_t seed = 0;
    int64_t calls = 0;
    friend bool operator==(const State&, const State&) = default;
  };

  explicit Generator(Device device = kCpu, uint64_t seed = 0);
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  Device device() const { return state_.device(); }
  // Starts anew. Captured graphs that draw from this generator follow, too.
  void manual_seed(uint64_t seed) { set_state({.seed = seed, .calls = 0}); }
  // Waits for the device.
  State state() const;
  void set_state(const State& state);

  // [2], i64: seed and calls, read and counted on by kernels.
  const Tensor& tensor() const { return state_; }

 private:
  Tensor state_;
};

// The calling thread's generator for `device`, which the functions below use when they are given
// none. Its seed is 0 until manual_seed() is called.
Generator& default_generator(Device device);
// Seeds the calling thread's default generators, those of devices not used yet included, and the
// initial values of layers (nn/init.h).
void manual_seed(uint64_t seed);

// The calling thread's seed and how often it has been set: whoever draws on the host from the same
// seed starts anew when the count changes.
struct Seeding {
  uint64_t seed = 0;
  int64_t count = 0;
};
Seeding seeding();

// New tensors without history, in row-major order of draws whatever the format. `generator` must be
// on options.device.
// Uniform in [low, high), low as the dtype rounds it, or low where the two are equal, with as many
// random bits as the dtype's significand; floating. Throws invalid_argument unless low <= high,
// both finite in the dtype and their distance in its acc_dtype.
Tensor rand(const Shape& shape, const TensorOptions& options = {}, Generator* generator = nullptr,
            double low = 0.0, double high = 1.0);
// Normal with the given mean and standard deviation, at most 8.6 of them away; floating.
Tensor randn(const Shape& shape, const TensorOptions& options = {}, Generator* generator = nullptr,
             double mean = 0.0, double std = 1.0);
// Uniform over low, ..., high - 1; options.dtype is u8, i32 or i64.
Tensor randint(int64_t low, int64_t high, const Shape& shape,
               const TensorOptions& options = {.dtype = DType::i64},
               Generator* generator = nullptr);
// 1 with probability p (rounded to 2^-24), else 0; any dtype.
Tensor bernoulli(double p, const Shape& shape, const TensorOptions& options = {},
                 Generator* generator = nullptr);

}  // namespace gradus
