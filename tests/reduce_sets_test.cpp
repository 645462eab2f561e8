// Reductions of sets for which the GPU has kernels of their own: in one turn of a block, in chunks,
// logsumexp of values two by two.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops/reduce.h"
#include "autograd/ops/sum.h"
#include "core/error.h"
#include "tests/support/each_device.h"

namespace gradus {
namespace {

using Values = std::vector<double>;
constexpr double kInf = INFINITY;

class ReduceSets : public test::EachDevice {
 protected:
  Tensor make(const Values& values, const Shape& shape, DType dtype) {
    return Tensor::from_vector(values, shape, {.dtype = dtype, .device = GetParam()});
  }
};
GRADUS_ON_EACH_DEVICE(ReduceSets);

Values few_values(int64_t count) {
  Values x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<double>((i * 2654435761u >> 8) % 64) / 8 - 3;
  }
  return x;
}

// What a rounding to the dtype may be off, relative; in f32 a little more.
double eps_of(DType dtype) {
  return dtype == DType::f32 ? 1e-6 : dtype == DType::f16 ? 1.0 / 2048 : 1.0 / 256;
}

// Reductions of x over `axes`, queued one behind the other; item r of output o is
// values[place(o, r)] for r < count.
template <class Place>
void expect_reductions(const Tensor& x, const Values& values, const std::vector<int>& axes,
                       size_t count, Place&& place) {
  const double eps = eps_of(x.dtype());
  const Tensor y[] = {sum(x, axes), max(x, axes), var(x, axes, 0), logsumexp(x, axes)};
  const Values sums = y[0].to_vector<double>(), best = y[1].to_vector<double>(),
               vars = y[2].to_vector<double>(), logs = y[3].to_vector<double>();
  for (size_t o = 0; o < sums.size(); ++o) {
    double want_sum = 0, want_max = -kInf, squares = 0, exps = 0;
    for (size_t r = 0; r < count; ++r) {
      const double value = values[place(o, r)];
      want_sum += value;
      want_max = std::max(want_max, value);
      squares += value * value;
      exps += std::exp(value);
    }
    const double m = static_cast<double>(count), mean = want_sum / m;
    ASSERT_NEAR(sums[o], want_sum, eps * (1 + std::abs(want_sum))) << o;
    ASSERT_EQ(best[o], want_max) << o;
    ASSERT_NEAR(vars[o], squares / m - mean * mean, 8 * eps) << o;
    ASSERT_NEAR(logs[o], std::log(exps), eps * (1 + std::abs(std::log(exps)))) << o;
  }
}

// Over columns: sets that a block has in one turn of eight rows per thread, with tiles that end
// beyond the last column, and sets of several such chunks.
TEST_P(ReduceSets, SetsOfOneTurn) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Shape& shape : {Shape{3, 64, 200}, Shape{2, 128, 256}, Shape{5, 8, 2000},
                               Shape{1, 1024, 64}, Shape{1, 256, 8}, Shape{2, 16, 40}}) {
      SCOPED_TRACE(concat(to_string(dtype), " ", to_string(shape)));
      const auto rows = static_cast<size_t>(shape[1]), columns = static_cast<size_t>(shape[2]);
      const Values x = few_values(shape.numel());
      expect_reductions(make(x, shape, dtype), x, {1}, rows, [=](size_t o, size_t r) {
        return (o / columns * rows + r) * columns + o % columns;
      });
    }
  }
}

struct Columns {
  size_t rows, columns;
};
// Of one turn, of 64 and 128 rows; and too few columns for one.
constexpr Columns kColumnSets[] = {{64, 256}, {128, 256}, {64, 16}};

// Their terms are the largest one's 1 and others near or far: over columns and along rows.
TEST_P(ReduceSets, LogSumExpOfLargeValues) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Values sizes{1, 300, 4000, 60000};
    if (dtype != DType::f16) sizes.insert(sizes.end(), {70000, 1e6, 1e15, 3e38});
    for (const auto& [rows, columns] : kColumnSets) {
      SCOPED_TRACE(concat(to_string(dtype), " [", rows, ", ", columns, "]"));
      Values x(rows * columns);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t c = 0; c < columns; ++c) {
          const double size = sizes[c * sizes.size() / columns] * (c % 2 == 0 ? 1 : -1);
          x[r * columns + c] = r % 3 == 0 ? size : size - std::abs(size) / 128;
        }
      }
      const Tensor given =
          make(x, {static_cast<int64_t>(rows), static_cast<int64_t>(columns)}, dtype);
      const Values stored = given.to_vector<double>(),
                   down = logsumexp(given, {0}).to_vector<double>(),
                   along = logsumexp(given.transpose(0, 1).contiguous(), {1}).to_vector<double>();
      for (size_t c = 0; c < columns; ++c) {
        double most = -kInf, exps = 0;
        for (size_t r = 0; r < rows; ++r) most = std::max(most, stored[r * columns + c]);
        for (size_t r = 0; r < rows; ++r) exps += std::exp(stored[r * columns + c] - most);
        const double want = most + std::log(exps);
        EXPECT_NEAR(down[c], want, std::abs(want) * eps_of(dtype)) << c;
        EXPECT_NEAR(along[c], want, std::abs(want) * eps_of(dtype)) << c;
      }
    }
  }
}

// NaN or infinities in some columns leave their neighbours in a pack alone.
TEST_P(ReduceSets, LogSumExpBesideNaN) {
  const auto log_of = [](size_t count) { return std::log(static_cast<double>(count)); };
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const double tolerance = dtype == DType::bf16 ? 8e-3 : 1e-3;
    for (const double odd : {static_cast<double>(NAN), kInf, -kInf}) {
      for (const auto& [rows, columns] : kColumnSets) {
        SCOPED_TRACE(concat(to_string(dtype), " ", odd, " [", rows, ", ", columns, "]"));
        Values x(rows * columns, -3), want(columns, log_of(rows) - 3);
        for (const size_t column : {size_t(2), size_t(13), columns - 7}) {
          x[37 * columns + column] = odd;
          want[column] = odd == -kInf ? log_of(rows - 1) - 3 : odd;
        }
        const Tensor given =
            make(x, {static_cast<int64_t>(rows), static_cast<int64_t>(columns)}, dtype);
        const Values got = logsumexp(given, {0}).to_vector<double>();
        for (size_t c = 0; c < got.size(); ++c) {
          const bool is_same = std::isnan(want[c]) ? std::isnan(got[c]) : got[c] == want[c];
          EXPECT_TRUE(is_same || std::abs(got[c] - want[c]) < tolerance) << c << ": " << got[c];
        }
      }
    }
  }
}

// Sets of few outputs in chunks: eight or four of each for a cluster, five with a short one, two,
// and so many that another kernel merges them.
TEST_P(ReduceSets, SetsInChunks) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape& shape :
         {Shape{8, 64, 4096}, Shape{5, 40, 3600}, Shape{2, 200, 8192}, Shape{2, 9, 12345}}) {
      SCOPED_TRACE(concat(to_string(dtype), " ", to_string(shape)));
      const auto outputs = static_cast<size_t>(shape[1]), run = static_cast<size_t>(shape[2]);
      const Values x = few_values(shape.numel());
      expect_reductions(
          make(x, shape, dtype), x, {0, 2}, static_cast<size_t>(shape[0]) * run,
          [=](size_t o, size_t r) { return (r / run * outputs + o) * run + r % run; });
    }
  }
}

}  // namespace
}  // namespace gradus
