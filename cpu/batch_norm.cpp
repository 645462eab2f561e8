#include "core/ops/batch_norm.h"
#include "core/ops/normalization.h"

#include "cpu/dispatch.h"
#include "cpu/moments.h"
#include "cpu/parallel.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {
namespace {

// Elements of one row that are summed in acc_t before a merge in f64; half the first-level cache.
constexpr int64_t kChunk = 4096;

// Σ dy and Σ dy·(x - mean) over part of a set.
struct Sums {
  double dy = 0;
  double dy_x = 0;
};

// What turns x into y: y = (x - mean)·scale + shift.
template <class A>
struct Transform {
  A mean, scale, shift;
};

template <class A>
A element(const AnyView& view, int64_t i, A otherwise) {
  return view ? view.as<A>()[i * view.strides[0]] : otherwise;
}

// The running average's weight of this batch, and the count of batches, updated once per launch.
double running_factor(const Cpu& cpu, const BatchNormForward& args) {
  cpu.threads();  // makes the team, which may throw: nothing has changed then
  if (!args.batches) return args.momentum;
  int64_t& batches = *args.batches.as<int64_t>();
  ++batches;
  return args.cumulative ? 1.0 / static_cast<double>(batches) : args.momentum;
}

// 2: from the moments of a channel to its saved statistics and running averages.
template <class A>
void finish_channel(const BatchNormForward& args, int64_t c, const Moments& moments,
                    double factor) {
  const double var = moments.m2 / moments.count, mean = norm_saved_mean(moments.mean, var);
  args.mean.as<A>()[c] = static_cast<A>(mean);
  args.rstd.as<A>()[c] = rstd_of<A>(var, norm_eps<A>(args.eps));
  if (!args.running_mean) return;
  A& running_mean = args.running_mean.as<A>()[c * args.running_mean.strides[0]];
  A& running_var = args.running_var.as<A>()[c * args.running_var.strides[0]];
  const double unbiased = moments.m2 / (moments.count - 1);
  running_mean = static_cast<A>((1 - factor) * running_mean + factor * mean);
  running_var = static_cast<A>((1 - factor) * running_var + factor * unbiased);
}

template <class A>
void use_running_statistics(const BatchNormForward& args, int64_t c) {
  const double var = element<A>(args.running_var, c, 1);
  args.mean.as<A>()[c] = element<A>(args.running_mean, c, 0);
  args.rstd.as<A>()[c] = rstd_of<A>(var, norm_eps<A>(args.eps));
}

template <class A>
Transform<A> transform_of(const BatchNormForward& args, int64_t c) {
  return {args.mean.as<A>()[c], args.rstd.as<A>()[c] * element<A>(args.gamma, c, 1),
          element<A>(args.beta, c, 0)};
}

// ---- contiguous: a channel is n rows of s neighbours -------------------------------------------

template <class T>
void forward_contiguous(Cpu& cpu, const BatchNormForward& args, const BatchNormGeometry& g) {
  using A = acc_t<T>;
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  const double factor = running_factor(cpu, args);
  cpu.parallel(g.c, [&](int64_t c) {
    if (args.training) {
      Moments moments;  // 1 mean, var
      for (int64_t n = 0; n < g.n; ++n) {
        const T* row = x + (n * g.c + c) * g.s;
        for (int64_t i = 0; i < g.s; i += kChunk)
          moments.merge(moments_of(row + i, std::min(kChunk, g.s - i)));
      }
      finish_channel<A>(args, c, moments, factor);
    } else {
      use_running_statistics<A>(args, c);
    }
    const Transform<A> t = transform_of<A>(args, c);  // 3 write
    for (int64_t n = 0; n < g.n; ++n) {
      const int64_t at = (n * g.c + c) * g.s;
      for_each_lanes<A>(g.s, [&](int64_t i, auto lanes, int) {
        store(y + at + i, (load(x + at + i, lanes) - t.mean) * t.scale + t.shift, lanes);
      });
    }
  });
}

template <class T>
Sums sums_of(const T* x, const T* dy, acc_t<T> mean, int64_t count) {
  using A = acc_t<T>;
  Lanes<A> dy_sums[4] = {}, dy_x_sums[4] = {};
  for_each_lanes<A>(count, [&](int64_t i, auto lanes, int k) {
    const Lanes<A> d = load(dy + i, lanes);
    dy_sums[k] += d;
    dy_x_sums[k] += keep<A>(d * (load(x + i, lanes) - mean), lanes);
  });
  return {sum_lanes<A>((dy_sums[0] + dy_sums[1]) + (dy_sums[2] + dy_sums[3])),
          sum_lanes<A>((dy_x_sums[0] + dy_x_sums[1]) + (dy_x_sums[2] + dy_x_sums[3]))};
}

// dx = scale·(dy - m1 - (x - mean)·m2r), with scale = gamma·rstd and m2r = rstd·m2.
template <class A>
struct Gradient {
  A mean, scale, m1, m2r;
};

// 2: from a channel's sums to its parameter gradients and the terms of dx.
template <class A>
Gradient<A> finish_gradient(const BatchNormBackward& args, int64_t c, const Sums& sums, int64_t m) {
  const double rstd = args.rstd.as<A>()[c];
  if (args.dgamma) args.dgamma.as<A>()[c] = static_cast<A>(sums.dy_x * rstd);
  if (args.dbeta) args.dbeta.as<A>()[c] = static_cast<A>(sums.dy);
  Gradient<A> result{args.mean.as<A>()[c], static_cast<A>(rstd * element<A>(args.gamma, c, 1)), 0,
                     0};
  if (args.training && m > 0) {
    result.m1 = static_cast<A>(sums.dy / static_cast<double>(m));
    result.m2r = static_cast<A>(sums.dy_x * rstd / static_cast<double>(m) * rstd);
  }
  return result;
}

bool needs_sums(const BatchNormBackward& args) {
  return args.dgamma || args.dbeta || (args.dx && args.training);
}

template <class T>
void backward_contiguous(Cpu& cpu, const BatchNormBackward& args, const BatchNormGeometry& g) {
  using A = acc_t<T>;
  const T* x = args.x.as<T>();
  const T* dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  cpu.parallel(g.c, [&](int64_t c) {
    Sums sums;  // 1 sums
    for (int64_t n = 0; n < g.n && needs_sums(args); ++n) {
      const int64_t at = (n * g.c + c) * g.s;
      for (int64_t i = 0; i < g.s; i += kChunk) {
        const Sums part =
            sums_of(x + at + i, dy + at + i, args.mean.as<A>()[c], std::min(kChunk, g.s - i));
        sums.dy += part.dy;
        sums.dy_x += part.dy_x;
      }
    }
    const Gradient<A> t = finish_gradient<A>(args, c, sums, g.m());
    for (int64_t n = 0; n < g.n && args.dx; ++n) {  // 3 write
      const int64_t at = (n * g.c + c) * g.s;
      for_each_lanes<A>(g.s, [&](int64_t i, auto lanes, int) {
        Lanes<A> terms = load(dy + at + i, lanes);
        if (args.training) terms -= t.m1 + (load(x + at + i, lanes) - t.mean) * t.m2r;
        store(dx + at + i, t.scale * terms, lanes);
      });
    }
  });
}

// ---- channels-last: m rows of c neighbours, cut into tiles of rows ------------------------------

// Few enough that a serial sum keeps its digits.
int64_t rows_per_tile(const BatchNormGeometry& g) {
  return std::clamp<int64_t>(kTile / std::max<int64_t>(g.c, 1), 1, 256);
}

// The value of a per-channel array, kLaneCount channels at a time.
template <class A, class Count>
Lanes<A> channels(const A* values, int64_t c, Count lanes) {
  return load(values + c, lanes);
}

// Moments of each channel over rows [begin, end), in two passes as in moments_of().
template <class T>
void tile_moments(const T* x, int64_t channels, int64_t begin, int64_t end, Moments* result) {
  using A = acc_t<T>;
  const A count = static_cast<A>(end - begin);
  for_each_lanes<A>(channels, [&](int64_t c, auto lanes, int) {
    Lanes<A> total{};
    for (int64_t row = begin; row < end; ++row) total += load(x + row * channels + c, lanes);
    const Lanes<A> mean = total / count;
    Lanes<A> residual{}, square{};
    for (int64_t row = begin; row < end; ++row) {
      const Lanes<A> d = load(x + row * channels + c, lanes) - mean;
      residual += d;
      square += d * d;
    }
    for (int64_t i = 0; i < lanes; ++i) {
      const double n = static_cast<double>(count), r = residual[i];
      result[c + i] = {n, static_cast<double>(mean[i]) + r / n,
                       static_cast<double>(square[i]) - r * (r / n)};
    }
  });
}

template <class T>
void forward_channels_last(Cpu& cpu, const BatchNormForward& args, const BatchNormGeometry& g) {
  using A = acc_t<T>;
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  const int64_t rows = rows_per_tile(g), tiles = (g.m() + rows - 1) / rows;
  // All memory is taken before the running statistics change.
  const Workspace<Moments> parts(cpu, args.training ? tiles * g.c : 0);
  const Workspace<A> terms(cpu, 3 * g.c);
  const double factor = running_factor(cpu, args);
  if (args.training) {
    parallel_tiles(cpu, g.m(), rows, [&](int64_t begin, int64_t end) {  // 1 mean, var
      tile_moments(x, g.c, begin, end, parts.data() + begin / rows * g.c);
    });
    parallel_tiles(cpu, g.c, 64, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        Moments moments;
        for (int64_t tile = 0; tile < tiles; ++tile) moments.merge(parts.data()[tile * g.c + c]);
        finish_channel<A>(args, c, moments, factor);
      }
    });
  } else {
    for (int64_t c = 0; c < g.c; ++c) use_running_statistics<A>(args, c);
  }
  A *mean = terms.data(), *scale = mean + g.c, *shift = scale + g.c;
  for (int64_t c = 0; c < g.c; ++c) {
    const Transform<A> t = transform_of<A>(args, c);
    mean[c] = t.mean, scale[c] = t.scale, shift[c] = t.shift;
  }
  parallel_tiles(cpu, g.m(), rows, [&](int64_t begin, int64_t end) {  // 3 write
    for (int64_t row = begin; row < end; ++row) {
      for_each_lanes<A>(g.c, [&](int64_t c, auto lanes, int) {
        const Lanes<A> centred = load(x + row * g.c + c, lanes) - channels(mean, c, lanes);
        store(y + row * g.c + c, centred * channels(scale, c, lanes) + channels(shift, c, lanes),
              lanes);
      });
    }
  });
}

template <class T>
void tile_sums(const T* x, const T* dy, const acc_t<T>* mean, int64_t channels, int64_t begin,
               int64_t end, Sums* result) {
  using A = acc_t<T>;
  for_each_lanes<A>(channels, [&](int64_t c, auto lanes, int) {
    const Lanes<A> centre = load(mean + c, lanes);
    Lanes<A> dy_sum{}, dy_x_sum{};
    for (int64_t row = begin; row < end; ++row) {
      const Lanes<A> d = load(dy + row * channels + c, lanes);
      dy_sum += d;
      dy_x_sum += d * (load(x + row * channels + c, lanes) - centre);
    }
    for (int64_t i = 0; i < lanes; ++i) result[c + i] = {dy_sum[i], dy_x_sum[i]};
  });
}

template <class T>
void backward_channels_last(Cpu& cpu, const BatchNormBackward& args, const BatchNormGeometry& g) {
  using A = acc_t<T>;
  const T* x = args.x.as<T>();
  const T* dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  const int64_t rows = rows_per_tile(g), tiles = needs_sums(args) ? (g.m() + rows - 1) / rows : 0;
  const Workspace<Sums> parts(cpu, tiles * g.c);
  const Workspace<A> terms(cpu, 4 * g.c);
  if (tiles > 0) {
    parallel_tiles(cpu, g.m(), rows, [&](int64_t begin, int64_t end) {  // 1 sums
      tile_sums(x, dy, args.mean.as<A>(), g.c, begin, end, parts.data() + begin / rows * g.c);
    });
  }
  A *mean = terms.data(), *scale = mean + g.c, *m1 = scale + g.c, *m2r = m1 + g.c;
  for (int64_t c = 0; c < g.c; ++c) {
    Sums sums;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      sums.dy += parts.data()[tile * g.c + c].dy;
      sums.dy_x += parts.data()[tile * g.c + c].dy_x;
    }
    const Gradient<A> t = finish_gradient<A>(args, c, sums, g.m());
    mean[c] = t.mean, scale[c] = t.scale, m1[c] = t.m1, m2r[c] = t.m2r;
  }
  if (!args.dx) return;
  parallel_tiles(cpu, g.m(), rows, [&](int64_t begin, int64_t end) {  // 3 write
    for (int64_t row = begin; row < end; ++row) {
      for_each_lanes<A>(g.c, [&](int64_t c, auto lanes, int) {
        const int64_t at = row * g.c + c;
        Lanes<A> terms = load(dy + at, lanes);
        if (args.training) {
          const Lanes<A> centred = load(x + at, lanes) - channels(mean, c, lanes);
          terms -= channels(m1, c, lanes) + centred * channels(m2r, c, lanes);
        }
        store(dx + at, channels(scale, c, lanes) * terms, lanes);
      });
    }
  });
}

}  // namespace

void run(Cpu& cpu, const BatchNormForward& args) {
  const BatchNormGeometry g = batch_norm_geometry(args.x);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (g.channels_last) {
      forward_channels_last<T>(cpu, args, g);
    } else {
      forward_contiguous<T>(cpu, args, g);
    }
  });
}

void run(Cpu& cpu, const BatchNormBackward& args) {
  const BatchNormGeometry g = batch_norm_geometry(args.x);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (g.channels_last) {
      backward_channels_last<T>(cpu, args, g);
    } else {
      backward_contiguous<T>(cpu, args, g);
    }
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(BatchNormForward)
GRADUS_DISPATCH(BatchNormBackward)
