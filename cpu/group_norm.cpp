#include "core/ops/group_norm.h"

#include "cpu/dispatch.h"
#include "cpu/moments.h"
#include "cpu/parallel.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {
namespace {

// Elements that are summed in acc_t before they are added in f64; half the first-level cache.
constexpr int64_t kChunk = 4096;

template <class A>
A element(const AnyView& view, int64_t i, A otherwise) {
  return view ? view.as<A>()[i] : otherwise;
}

// The statistics of one set, saved and in the type that its elements are normalized in.
template <class A>
struct Statistics {
  A mean, rstd;
};

template <class A>
Statistics<A> save_statistics(const GroupNormForward& args, int64_t set, double mean, double var) {
  const Statistics<A> result{static_cast<A>(norm_saved_mean(mean, var)),
                             rstd_of<A>(var, norm_eps<A>(args.eps))};
  args.mean.as<A>()[set] = result.mean;
  args.rstd.as<A>()[set] = result.rstd;
  if (args.var) args.var.as<A>()[set] = static_cast<A>(var);
  return result;
}

// Σ dy and Σ dy·xhat of one channel of one sample.
struct Sums {
  double dy = 0, dy_xhat = 0;
};

// What the backward pass keeps per sample and channel for dgamma and dbeta: [n, c], or nothing.
class ParameterParts {
 public:
  ParameterParts(Cpu& cpu, const GroupNormBackward& args, const GroupNormGeometry& g)
      : wanted_(args.dgamma || args.dbeta), parts_(cpu, wanted_ ? 2 * g.n * g.c : 0) {}

  void keep(int64_t n, int64_t channels, int64_t c, const Sums& sums) {
    if (!wanted_) return;
    parts_.data()[2 * (n * channels + c)] = sums.dy;
    parts_.data()[2 * (n * channels + c) + 1] = sums.dy_xhat;
  }

  // 4: the sums over the samples, in order.
  template <class A>
  void add_up(Cpu& cpu, const GroupNormBackward& args, const GroupNormGeometry& g) {
    if (!wanted_) return;
    Workspace<double> totals(cpu, 2 * g.c);
    std::fill_n(totals.data(), 2 * g.c, 0.0);
    for (int64_t n = 0; n < g.n; ++n) {
      for (int64_t i = 0; i < 2 * g.c; ++i) totals.data()[i] += parts_.data()[2 * n * g.c + i];
    }
    for (int64_t c = 0; c < g.c; ++c) {
      if (args.dbeta) args.dbeta.as<A>()[c] = static_cast<A>(totals.data()[2 * c]);
      if (args.dgamma) args.dgamma.as<A>()[c] = static_cast<A>(totals.data()[2 * c + 1]);
    }
  }

 private:
  bool wanted_;
  Workspace<double> parts_;
};

// ---- contiguous: a set is c/g rows of s neighbours, and one run of memory -----------------------

template <class T>
void forward_contiguous(Cpu& cpu, const GroupNormForward& args, const GroupNormGeometry& g) {
  using A = acc_t<T>;
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  const int64_t sets = std::max<int64_t>(1, kTile / g.m());
  parallel_tiles(cpu, g.sets(), sets, [&](int64_t begin, int64_t end) {
    for (int64_t set = begin; set < end; ++set) {
      Moments moments;  // 1 mean, var
      for (int64_t i = 0; i < g.m(); i += kChunk)
        moments.merge(moments_of(x + set * g.m() + i, std::min(kChunk, g.m() - i)));
      const auto [mean, rstd] =
          save_statistics<A>(args, set, moments.mean, moments.m2 / moments.count);
      for (int64_t k = 0; k < g.channels(); ++k) {  // 2 write
        const int64_t c = set % g.g * g.channels() + k, at = set * g.m() + k * g.s;
        const A gamma = element<A>(args.gamma, c, 1), beta = element<A>(args.beta, c, 0);
        for_each_lanes<A>(g.s, [&, mean = mean, rstd = rstd](int64_t i, auto lanes, int) {
          store(y + at + i, norm_xhat(load(x + at + i, lanes), mean, rstd) * gamma + beta, lanes);
        });
      }
    }
  });
}

template <class T>
Sums sums_of(const T* x, const T* dy, acc_t<T> mean, acc_t<T> rstd, int64_t count) {
  using A = acc_t<T>;
  Sums sums;
  for (int64_t from = 0; from < count; from += kChunk) {
    Lanes<A> dy_sums[4] = {}, dy_x_sums[4] = {};
    for_each_lanes<A>(std::min(kChunk, count - from), [&](int64_t i, auto lanes, int k) {
      const Lanes<A> d = load(dy + from + i, lanes);
      dy_sums[k] += d;
      dy_x_sums[k] += keep<A>(d * (load(x + from + i, lanes) - mean), lanes);
    });
    sums.dy += sum_lanes<A>((dy_sums[0] + dy_sums[1]) + (dy_sums[2] + dy_sums[3]));
    sums.dy_xhat += sum_lanes<A>((dy_x_sums[0] + dy_x_sums[1]) + (dy_x_sums[2] + dy_x_sums[3]));
  }
  sums.dy_xhat *= rstd;
  return sums;
}

template <class T>
void backward_contiguous(Cpu& cpu, const GroupNormBackward& args, const GroupNormGeometry& g) {
  using A = acc_t<T>;
  const T *x = args.x.as<T>(), *dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  ParameterParts parts(cpu, args, g);
  const int64_t sets = std::max<int64_t>(1, kTile / g.m());
  parallel_tiles(cpu, g.sets(), sets, [&](int64_t begin, int64_t end) {
    for (int64_t set = begin; set < end; ++set) {
      const A mean = args.mean.as<A>()[set], rstd = args.rstd.as<A>()[set];
      const int64_t first = set % g.g * g.channels();
      double d_sum = 0, d_xhat_sum = 0;
      for (int64_t k = 0; k < g.channels(); ++k) {  // 1 sums
        const int64_t at = set * g.m() + k * g.s;
        const Sums sums = sums_of(x + at, dy + at, mean, rstd, g.s);
        parts.keep(set / g.g, g.c, first + k, sums);
        d_sum += sums.dy * element<A>(args.gamma, first + k, 1);
        d_xhat_sum += sums.dy_xhat * element<A>(args.gamma, first + k, 1);
      }
      if (!args.dx) continue;
      const A m1 = static_cast<A>(d_sum / static_cast<double>(g.m()));  // 2 m1, m2
      const A m2 = static_cast<A>(d_xhat_sum / static_cast<double>(g.m()));
      for (int64_t k = 0; k < g.channels(); ++k) {  // 3 write
        const int64_t at = set * g.m() + k * g.s;
        const A gamma = element<A>(args.gamma, first + k, 1);
        for_each_lanes<A>(g.s, [&](int64_t i, auto lanes, int) {
          const Lanes<A> xhat = norm_xhat(load(x + at + i, lanes), mean, rstd);
          store(dx + at + i, norm_dx(load(dy + at + i, lanes) * gamma, xhat, rstd, m1, m2), lanes);
        });
      }
    }
  });
  parts.add_up<A>(cpu, args, g);
}

// ---- channels-last: a sample is s rows of c neighbours; tasks have whole samples ----------------

// Calls f(c, valid lanes, row, k) for every row and every vector of channels, tile by tile of rows,
// and after each tile fold(c, valid lanes); k = 0..3 for four independent sums. Tiles of all
// `tensors` stay in the first-level cache.
template <class A, class F, class Fold>
void for_each_column(const GroupNormGeometry& g, int64_t tensors, F&& f, Fold&& fold) {
  const int64_t rows = std::clamp<int64_t>(kTile / 2 / tensors / g.c, 4, 1024);
  for (int64_t begin = 0; begin < g.s; begin += rows) {
    const int64_t end = std::min(g.s, begin + rows);
    for_each_lanes<A>(g.c, [&](int64_t c, auto lanes, int) {
      int64_t row = begin;
      for (; row + 4 <= end; row += 4) {
        f(c, lanes, row, 0);
        f(c, lanes, row + 1, 1);
        f(c, lanes, row + 2, 2);
        f(c, lanes, row + 3, 3);
      }
      for (; row < end; ++row) f(c, lanes, row, 0);
      fold(c, lanes);
    });
  }
}

// Adds four sums of each lane to one f64 per channel and clears them.
template <class A>
void fold_sums(Lanes<A> (&sums)[4], double* to, int64_t lanes) {
  const Lanes<A> total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (int64_t i = 0; i < lanes; ++i) to[i] += total[i];
  for (Lanes<A>& sum : sums) sum = Lanes<A>{};
}

// Per-channel numbers of one sample.
template <class A>
struct Columns {
  Workspace<double> sums;  // [2, c]
  Workspace<A> values;     // [kValues, c]
  int64_t c;
  static constexpr int64_t kValues = 5;
  Columns(Cpu& cpu, int64_t c) : sums(cpu, 2 * c), values(cpu, kValues * c), c(c) {}
  void clear() { std::fill_n(sums.data(), 2 * c, 0.0); }
  double* sum(int64_t i) { return sums.data() + i * c; }
  A* value(int64_t i) { return values.data() + i * c; }
};

// Σ over the channels of group k.
double group_sum(const double* per_channel, const GroupNormGeometry& g, int64_t k) {
  double total = 0;
  for (int64_t c = k * g.channels(); c < (k + 1) * g.channels(); ++c) total += per_channel[c];
  return total;
}

template <class T>
void forward_sample(Columns<acc_t<T>>& columns, const GroupNormForward& args,
                    const GroupNormGeometry& g, int64_t n) {
  using A = acc_t<T>;
  const T* x = args.x.as<T>() + n * g.c * g.s;
  T* y = args.y.as<T>() + n * g.c * g.s;
  columns.clear();
  A *mean = columns.value(0), *rstd = columns.value(1), *gamma = columns.value(2),
    *beta = columns.value(3);
  double *total = columns.sum(0), *square = columns.sum(1);
  const double m = static_cast<double>(g.m());
  Lanes<A> sums[4] = {}, squares[4] = {};
  for_each_column<A>(  // 1 mean
      g, 1,
      [&](int64_t c, auto lanes, int64_t row, int k) { sums[k] += load(x + row * g.c + c, lanes); },
      [&](int64_t c, auto lanes) { fold_sums<A>(sums, total + c, lanes); });
  for (int64_t k = 0; k < g.g; ++k)
    std::fill_n(mean + k * g.channels(), g.channels(), static_cast<A>(group_sum(total, g, k) / m));
  std::fill_n(total, g.c, 0.0);
  for_each_column<A>(  // 2 var; Σ (x - mean) corrects the rounding of the mean
      g, 1,
      [&](int64_t c, auto lanes, int64_t row, int k) {
        const Lanes<A> d = load(x + row * g.c + c, lanes) - load(mean + c, lanes);
        sums[k] += d;
        squares[k] += d * d;
      },
      [&](int64_t c, auto lanes) {
        fold_sums<A>(sums, total + c, lanes);
        fold_sums<A>(squares, square + c, lanes);
      });
  for (int64_t k = 0; k < g.g; ++k) {
    const int64_t first = k * g.channels();
    const double residual = group_sum(total, g, k) / m;
    const double var = group_sum(square, g, k) / m - residual * residual;
    const auto statistics =
        save_statistics<A>(args, n * g.g + k, static_cast<double>(mean[first]) + residual, var);
    for (int64_t c = first; c < first + g.channels(); ++c) {
      mean[c] = statistics.mean, rstd[c] = statistics.rstd;
      gamma[c] = element<A>(args.gamma, c, 1), beta[c] = element<A>(args.beta, c, 0);
    }
  }
  for (int64_t row = 0; row < g.s; ++row) {  // 3 write
    for_each_lanes<A>(g.c, [&](int64_t c, auto lanes, int) {
      const Lanes<A> xhat =
          norm_xhat(load(x + row * g.c + c, lanes), load(mean + c, lanes), load(rstd + c, lanes));
      store(y + row * g.c + c, xhat * load(gamma + c, lanes) + load(beta + c, lanes), lanes);
    });
  }
}

template <class T>
void backward_sample(Columns<acc_t<T>>& columns, const GroupNormBackward& args,
                     const GroupNormGeometry& g, int64_t n, ParameterParts& parts) {
  using A = acc_t<T>;
  const T *x = args.x.as<T>() + n * g.c * g.s, *dy = args.dy.as<T>() + n * g.c * g.s;
  T* dx = args.dx ? args.dx.as<T>() + n * g.c * g.s : nullptr;
  columns.clear();
  A *mean = columns.value(0), *rstd = columns.value(1), *gamma = columns.value(2),
    *m1 = columns.value(3), *m2 = columns.value(4);
  double *dy_sum = columns.sum(0), *dy_xhat = columns.sum(1);
  for (int64_t c = 0; c < g.c; ++c) {
    const int64_t set = n * g.g + c / g.channels();
    mean[c] = args.mean.as<A>()[set], rstd[c] = args.rstd.as<A>()[set];
    gamma[c] = element<A>(args.gamma, c, 1);
  }
  Lanes<A> sums[4] = {}, products[4] = {};
  for_each_column<A>(  // 1 sums
      g, 2,
      [&](int64_t c, auto lanes, int64_t row, int k) {
        const Lanes<A> d = load(dy + row * g.c + c, lanes);
        sums[k] += d;
        products[k] += d * (load(x + row * g.c + c, lanes) - load(mean + c, lanes));
      },
      [&](int64_t c, auto lanes) {
        fold_sums<A>(sums, dy_sum + c, lanes);
        fold_sums<A>(products, dy_xhat + c, lanes);
      });
  for (int64_t c = 0; c < g.c; ++c) {
    dy_xhat[c] *= rstd[c];
    parts.keep(n, g.c, c, {dy_sum[c], dy_xhat[c]});
    dy_sum[c] *= gamma[c], dy_xhat[c] *= gamma[c];
  }
  if (dx == nullptr) return;
  for (int64_t k = 0; k < g.g; ++k) {  // 2 m1, m2
    const int64_t first = k * g.channels();
    const double m = static_cast<double>(g.m());
    std::fill_n(m1 + first, g.channels(), static_cast<A>(group_sum(dy_sum, g, k) / m));
    std::fill_n(m2 + first, g.channels(), static_cast<A>(group_sum(dy_xhat, g, k) / m));
  }
  if (g.m() == 1) std::fill_n(rstd, g.c, A(0));  // dx is 0, whatever d - m1 rounds to
  for (int64_t row = 0; row < g.s; ++row) {      // 3 write
    for_each_lanes<A>(g.c, [&](int64_t c, auto lanes, int) {
      const int64_t at = row * g.c + c;
      const Lanes<A> of_row = load(rstd + c, lanes);
      const Lanes<A> xhat = norm_xhat(load(x + at, lanes), load(mean + c, lanes), of_row);
      const Lanes<A> d = load(dy + at, lanes) * load(gamma + c, lanes);
      store(dx + at, norm_dx(d, xhat, of_row, load(m1 + c, lanes), load(m2 + c, lanes)), lanes);
    });
  }
}

// Whether the columns of a sample are walked: its channels are neighbours then.
bool by_columns(const GroupNormGeometry& g) { return g.channels_last || g.s == 1; }

}  // namespace

void run(Cpu& cpu, const GroupNormForward& args) {
  const GroupNormGeometry g = group_norm_geometry(args.x, args.groups);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    if (args.x.numel() == 0) {
      for (const AnyView* view : {&args.mean, &args.rstd, &args.var}) {
        if (*view) std::fill_n(view->as<A>(), view->numel(), A(0));
      }
    } else if (by_columns(g)) {
      const int64_t samples = std::max<int64_t>(1, kTile / (g.c * g.s));
      parallel_tiles(cpu, g.n, samples, [&](int64_t begin, int64_t end) {
        Columns<A> columns(cpu, g.c);
        for (int64_t n = begin; n < end; ++n) forward_sample<T>(columns, args, g, n);
      });
    } else {
      forward_contiguous<T>(cpu, args, g);
    }
  });
}

void run(Cpu& cpu, const GroupNormBackward& args) {
  const GroupNormGeometry g = group_norm_geometry(args.x, args.groups);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    if (args.x.numel() == 0) {
      for (const AnyView* view : {&args.dgamma, &args.dbeta}) {
        if (*view) std::fill_n(view->as<A>(), view->numel(), A(0));
      }
    } else if (by_columns(g)) {
      ParameterParts parts(cpu, args, g);
      const int64_t samples = std::max<int64_t>(1, kTile / (g.c * g.s));
      parallel_tiles(cpu, g.n, samples, [&](int64_t begin, int64_t end) {
        Columns<A> columns(cpu, g.c);
        for (int64_t n = begin; n < end; ++n) backward_sample<T>(columns, args, g, n, parts);
      });
      parts.add_up<A>(cpu, args, g);
    } else {
      backward_contiguous<T>(cpu, args, g);
    }
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(GroupNormForward)
GRADUS_DISPATCH(GroupNormBackward)
