// Layer and RMS normalization on the CPU: one formula over the rows of x [rows, m], with a mean
// (kMean) or without. A row is read twice or three times while it is in cache; lanes run over m.
// The order of every sum depends on rows and m only. What walks a row is flattened: the sums stay
// in registers only where everything is inlined.
#pragma once

#include "core/ops/normalization.h"
#include "cpu/moments.h"
#include "cpu/parallel.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {

template <class T>
struct RowNormForward {
  using A = acc_t<T>;
  const T* x;
  const A *gamma, *beta;  // null: 1, 0
  T* y;
  A *mean, *rstd;  // mean null without one
  int64_t rows, m;
  double eps;
};

template <class T>
struct RowNormBackward {
  using A = acc_t<T>;
  const T *x, *dy;
  const A *gamma, *mean, *rstd;
  T* dx;              // null: not wanted
  A *dgamma, *dbeta;  // the same
  int64_t rows, m;
};

namespace row_norm {

// Elements whose sums are kept in acc_t before they are added up in f64.
inline constexpr int64_t kPiece = 4096;

template <class T>
double sum_of_squares(const T* x, int64_t count) {
  using A = acc_t<T>;
  Lanes<A> sums[4] = {};
  for_each_lanes<A>(count, [&](int64_t i, auto lanes, int k) {
    const Lanes<A> v = load(x + i, lanes);
    sums[k] += v * v;
  });
  return sum_lanes<A>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <bool kMean, class T>
Moments row_moments(const T* x, int64_t m) {
  if (kMean && m <= kPiece) return moments_of(x, m);
  Moments moments;
  for (int64_t i = 0; i < m; i += kPiece) {
    const int64_t count = std::min(kPiece, m - i);
    if constexpr (kMean) {
      moments.merge(moments_of(x + i, count));
    } else {
      moments.m2 += sum_of_squares(x + i, count);
      moments.count += static_cast<double>(count);
    }
  }
  return moments;
}

template <bool kMean, class T>
[[gnu::flatten]] void forward_row(const RowNormForward<T>& f, int64_t row) {
  using A = acc_t<T>;
  const T* x = f.x + row * f.m;
  T* y = f.y + row * f.m;
  const Moments moments = row_moments<kMean>(x, f.m);  // 1 mean, var
  const double var = moments.m2 / moments.count;       // 2 rstd
  const A mean = static_cast<A>(norm_saved_mean(moments.mean, var));
  const A rstd = rstd_of<A>(var, f.eps);
  if constexpr (kMean) f.mean[row] = mean;
  f.rstd[row] = rstd;
  for_each_lanes<A>(f.m, [&](int64_t i, auto lanes, int) {  // 3 write
    Lanes<A> v = norm_xhat(load(x + i, lanes), mean, rstd);
    if (f.gamma != nullptr) v *= load(f.gamma + i, lanes);
    if (f.beta != nullptr) v += load(f.beta + i, lanes);
    store(y + i, v, lanes);
  });
}

// Σ d and Σ d·xhat of a row, d = dy·gamma.
struct Sums {
  double d = 0;
  double d_xhat = 0;
};

// 1: the sums of a row; its dy·xhat and dy are added to the parts of the parameters' gradients.
template <bool kMean, class T>
[[gnu::flatten]] Sums row_sums(const RowNormBackward<T>& f, int64_t row, acc_t<T>* dgamma,
                               acc_t<T>* dbeta) {
  using A = acc_t<T>;
  const T *x = f.x + row * f.m, *dy = f.dy + row * f.m;
  const A mean = kMean ? f.mean[row] : A(0), rstd = f.rstd[row];
  Sums sums;
  for (int64_t from = 0; from < f.m; from += kPiece) {
    Lanes<A> d_sums[4] = {}, d_xhat_sums[4] = {};
    for_each_lanes<A>(std::min(kPiece, f.m - from), [&](int64_t offset, auto lanes, int k) {
      const int64_t i = from + offset;
      const Lanes<A> v = load(dy + i, lanes);
      const Lanes<A> xhat = norm_xhat(load(x + i, lanes), mean, rstd);
      const Lanes<A> d = f.gamma != nullptr ? v * load(f.gamma + i, lanes) : v;
      d_sums[k] += d;
      d_xhat_sums[k] += keep<A>(d * xhat, lanes);
      if (dgamma != nullptr) store(dgamma + i, load(dgamma + i, lanes) + v * xhat, lanes);
      if (dbeta != nullptr) store(dbeta + i, load(dbeta + i, lanes) + v, lanes);
    });
    sums.d += sum_lanes<A>((d_sums[0] + d_sums[1]) + (d_sums[2] + d_sums[3]));
    sums.d_xhat +=
        sum_lanes<A>((d_xhat_sums[0] + d_xhat_sums[1]) + (d_xhat_sums[2] + d_xhat_sums[3]));
  }
  return sums;
}

// 3: dx of a row.
template <bool kMean, class T>
[[gnu::flatten]] void write_dx(const RowNormBackward<T>& f, int64_t row, const Sums& sums) {
  using A = acc_t<T>;
  const T *x = f.x + row * f.m, *dy = f.dy + row * f.m;
  T* dx = f.dx + row * f.m;
  const double m = static_cast<double>(f.m);
  const bool is_zero = kMean && f.m == 1;  // whatever d - m1 rounds to
  const A mean = kMean ? f.mean[row] : A(0), rstd = is_zero ? A(0) : f.rstd[row];
  const A m1 = kMean ? static_cast<A>(sums.d / m) : A(0), m2 = static_cast<A>(sums.d_xhat / m);
  for_each_lanes<A>(f.m, [&](int64_t i, auto lanes, int) {
    Lanes<A> d = load(dy + i, lanes);
    if (f.gamma != nullptr) d *= load(f.gamma + i, lanes);
    const Lanes<A> xhat = norm_xhat(load(x + i, lanes), mean, rstd);
    store(dx + i, norm_dx(d, xhat, rstd, m1, m2), lanes);
  });
}

// Rows whose part of dgamma and dbeta is summed by itself in acc_t: enough of them that the parts
// are small beside x, few enough that a serial sum keeps its digits.
inline int64_t rows_per_chunk(int64_t rows, int64_t m) {
  const int64_t least = std::clamp<int64_t>(kTile / m, 4, 256);
  return std::clamp<int64_t>((rows + 63) / 64, least, 256);
}

// gradient[i] = Σ parts[chunk, i], chunks in order.
template <class A>
void sum_parts(Cpu& cpu, A* gradient, const A* parts, int64_t chunks, int64_t step, int64_t m) {
  constexpr int64_t kColumns = 512;
  parallel_tiles(cpu, m, kColumns, [&](int64_t begin, int64_t end) {
    double sums[kColumns] = {};
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const A* part = parts + chunk * step;
      for (int64_t i = begin; i < end; ++i) sums[i - begin] += static_cast<double>(part[i]);
    }
    for (int64_t i = begin; i < end; ++i) gradient[i] = static_cast<A>(sums[i - begin]);
  });
}

}  // namespace row_norm

template <bool kMean, class T>
void run_forward(Cpu& cpu, const RowNormForward<T>& f) {
  if (f.rows == 0 || f.m == 0) return;
  parallel_tiles(cpu, f.rows, std::max<int64_t>(1, kTile / f.m), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) row_norm::forward_row<kMean>(f, row);
  });
}

template <bool kMean, class T>
void run_backward(Cpu& cpu, const RowNormBackward<T>& f) {
  using A = acc_t<T>;
  if (f.m == 0) return;
  const int64_t per_chunk = row_norm::rows_per_chunk(f.rows, f.m);
  const int64_t chunks = (f.rows + per_chunk - 1) / per_chunk;
  const int64_t planes = (f.dgamma != nullptr ? 1 : 0) + (f.dbeta != nullptr ? 1 : 0);
  const Workspace<A> parts(cpu, chunks * planes * f.m);
  parallel_tiles(cpu, f.rows, per_chunk, [&](int64_t begin, int64_t end) {
    A* part = planes > 0 ? parts.data() + begin / per_chunk * planes * f.m : nullptr;
    std::fill(part, part + planes * f.m, A(0));
    A* dgamma = f.dgamma != nullptr ? part : nullptr;
    A* dbeta = f.dbeta != nullptr ? part + (planes - 1) * f.m : nullptr;
    for (int64_t row = begin; row < end; ++row) {
      const row_norm::Sums sums = row_norm::row_sums<kMean>(f, row, dgamma, dbeta);
      if (f.dx != nullptr) row_norm::write_dx<kMean>(f, row, sums);
    }
  });
  const auto finish = [&](A* gradient, int64_t plane) {
    row_norm::sum_parts(cpu, gradient, parts.data() + plane * f.m, chunks, planes * f.m, f.m);
  };
  if (f.dgamma != nullptr) finish(f.dgamma, 0);
  if (f.dbeta != nullptr) finish(f.dbeta, planes - 1);
}

}  // namespace gradus::GRADUS_ISA
