// What becomes of a convolution's sums before they are stored, as a chain of small steps, and the
// moments of what was stored, for a normalization that follows. Host and device.
//
//   const Epilogue epilogue{AddBias<float>{bias}, Activate<Relu>{}};
//   StoredMoments<Half, 1> moments;
//   for (...) {
//     const Half stored[1] = {Half(epilogue(sum, channel))};
//     moments.take(stored);
//   }
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/ops/reductions.h"

namespace gradus {

// A step is called as step(value, channel), in acc.

// value + bias[channel]; without a bias the value.
template <class Acc>
struct AddBias {
  const Acc* bias = nullptr;  // [channels], or null
  GRADUS_HD Acc operator()(Acc value, int64_t channel) const {
    return bias == nullptr ? value : value + bias[channel];
  }
};

// f(value), for an F of core/ops/activation_functions.h.
template <class F>
struct Activate {
  F f = {};
  template <class Acc>
  GRADUS_HD Acc operator()(Acc value, int64_t) const {
    return f.f(value);
  }
};

// Steps one after the other, each type at most once; without any, the value itself.
template <class... Steps>
struct Epilogue : Steps... {
  template <class Acc>
  GRADUS_HD Acc operator()(Acc value, [[maybe_unused]] int64_t channel) const {
    ((value = static_cast<const Steps&>(*this)(value, channel)), ...);
    return value;
  }
};
template <class... Steps>
Epilogue(Steps...) -> Epilogue<Steps...>;

// Count, mean and m2 = Σ (x - mean)² of the values, as they are stored, of N neighbouring channels,
// a pixel at a time. Taken about the first pixel, so that a mean far from 0 costs no digits.
template <class T, int N>
struct StoredMoments {
  using Acc = acc_t<T>;
  using Part = Partial<Acc, 3>;
  Acc count = 0, pivot[N] = {}, mean[N] = {}, m2[N] = {};

  GRADUS_HD void take(const T (&stored)[N]) {
    const bool first = count == Acc(0);
    count += Acc(1);
    const Acc share = Acc(1) / count;
    GRADUS_UNROLL
    for (int i = 0; i < N; ++i) {
      const Acc x = static_cast<Acc>(stored[i]);
      if (first) pivot[i] = x;
      const Acc delta = (x - pivot[i]) - mean[i];
      mean[i] += delta * share;
      m2[i] += delta * ((x - pivot[i]) - mean[i]);
    }
  }
  GRADUS_HD Part part(int i) const { return {count, pivot[i] + mean[i], m2[i]}; }
};

struct MomentsMath {
  template <class V>
  GRADUS_HD static V share(V part, V whole) {
    return part / whole;
  }
};

// Parts of one channel, `stride` apart, merged by Chan's formula in their order.
template <class Acc>
GRADUS_HD Partial<Acc, 3> merge_moments(const Partial<Acc, 3>* parts, int64_t count,
                                        int64_t stride) {
  auto all = reductions::Moments::identity<Acc>();
  for (int64_t i = 0; i < count; ++i) {
    all = reductions::Moments::merge<MomentsMath>(all, parts[i * stride]);
  }
  return all;
}

}  // namespace gradus
