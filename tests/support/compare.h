// Compares what a kernel gave with the f64 reference.
//
//   const Comparison result = compare(got, want.data, tolerance(DType::bf16, m));
//   if (!result) puts(result.text().c_str());
//
// The tolerance comes from the dtype and the number of values that are added, never from a constant
// chosen by hand, so that it is as tight for 6 values as the arithmetic allows.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/tolerance.h"

namespace gradus {

struct Comparison {
  bool ok = true;
  bool same_size = true;
  int64_t count = 0;       // values compared
  int64_t violations = 0;  // values beyond the tolerance
  int64_t worst = -1;      // index of the largest error as a share of what is allowed; -1 if exact
  double got = 0, want = 0;
  double error = 0, allowed = 0;  // |got - want| and its limit at `worst`
  double ulps = 0;                // error at `worst` in units of the last place of the dtype
  double relative = 0;            // error at `worst` / |want|
  double scale = 0;               // the scale that the limit was computed with

  explicit operator bool() const { return ok; }
  std::string text() const;  // one line: how many are off, the worst with both values
};

// NaN agrees with NaN only; inf with the same inf, or with a `want` that overflows `dtype`.
// Scale 0 stands for the largest finite |want|; pass more where larger terms cancel, as for
// statistics of data far from 0.
Comparison compare(std::span<const double> got, std::span<const double> want, DType dtype,
                   const Tolerance& tolerance, double scale = 0);
Comparison compare(std::span<const double> got, std::span<const double> want, DType dtype,
                   int64_t reduction_length, double scale = 0);

}  // namespace gradus
