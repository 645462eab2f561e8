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

  void add(const Sums& b) {
    dy += b.dy;
    dy_x += b.dy_x;
  }
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

// A task takes so many channels side by side that memory is read in runs, short as rows may be.
constexpr int64_t kRun = 1024, kMostChannels = 64, kLeastTasks = 16;
int64_t channels_per_task(const BatchNormGeometry& g) {
  return std::clamp<int64_t>(std::min(kRun / std::max<int64_t>(g.s, 1), g.c / kLeastTasks), 1,
                             kMostChannels);
}

// Calls f(c, first) for the rows of channels [begin, end), which begin at element `first`.
template <class F>
void for_each_row_of(const BatchNormGeometry& g, int64_t begin, int64_t end, F&& f) {
  for (int64_t n = 0; n < g.n; ++n) {
    for (int64_t c = begin; c < end; ++c) f(c, (n * g.c + c) * g.s);
  }
}

template <class T>
void forward_contiguous(Cpu& cpu, const BatchNormForward& args, const BatchNormGeometry& g) {
  using A = acc_t<T>;
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  const double factor = running_factor(cpu, args);
  parallel_tiles(cpu, g.c, channels_per_task(g), [&](int64_t begin, int64_t end) {
    Moments moments[kMostChannels];
    Transform<A> terms[kMostChannels];
    if (args.training) {
      for_each_row_of(g, begin, end, [&](int64_t c, int64_t at) {  // 1 mean, var
        for (int64_t i = 0; i < g.s; i += kChunk) {
          moments[c - begin].merge(moments_of(x + at + i, std::min(kChunk, g.s - i)));
        }
      });
    }
    for (int64_t c = begin; c < end; ++c) {
      if (args.training) {
        finish_channel<A>(args, c, moments[c - begin], factor);
      } else {
        use_running_statistics<A>(args, c);
      }
      terms[c - begin] = transform_of<A>(args, c);
    }
    for_each_row_of(g, begin, end, [&](int64_t c, int64_t at) {  // 3 write
      const Transform<A> t = terms[c - begin];
      for_each_lanes<A>(g.s, [&](int64_t i, auto lanes, int) {
        store(y + at + i, (load(x + at + i, lanes) - t.mean) * t.scale + t.shift, lanes);
      });
    });
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
  parallel_tiles(cpu, g.c, channels_per_task(g), [&](int64_t begin, int64_t end) {
    Sums sums[kMostChannels];
    Gradient<A> gradients[kMostChannels];
    if (needs_sums(args)) {
      for_each_row_of(g, begin, end, [&](int64_t c, int64_t at) {  // 1 sums
        for (int64_t i = 0; i < g.s; i += kChunk) {
          sums[c - begin].add(
              sums_of(x + at + i, dy + at + i, args.mean.as<A>()[c], std::min(kChunk, g.s - i)));
        }
      });
    }
    for (int64_t c = begin; c < end; ++c) {
      gradients[c - begin] = finish_gradient<A>(args, c, sums[c - begin], g.m());
    }
    if (!args.dx) return;
    for_each_row_of(g, begin, end, [&](int64_t c, int64_t at) {  // 3 write
      const Gradient<A> t = gradients[c - begin];
      for_each_lanes<A>(g.s, [&](int64_t i, auto lanes, int) {
        Lanes<A> terms = load(dy + at + i, lanes);
        if (args.training) terms -= t.m1 + (load(x + at + i, lanes) - t.mean) * t.m2r;
        store(dx + at + i, t.scale * terms, lanes);
      });
    });
  });
}

// ---- channels-last: m rows of c neighbours, cut into tiles --------------------------------------

// Rows of a tile: few enough that a serial sum keeps its digits; and channels, in runs of memory.
constexpr int64_t kTileRows = 128, kTileChannels = 256;

// Tiles above each other.
int64_t tiles_down(const BatchNormGeometry& g) { return (g.m() + kTileRows - 1) / kTileRows; }

// Calls f(row_begin, row_end, c_begin, c_end) for the tiles.
template <class F>
void parallel_blocks(Cpu& cpu, const BatchNormGeometry& g, F&& f) {
  const int64_t across = (g.c + kTileChannels - 1) / kTileChannels;
  cpu.parallel(across * tiles_down(g), [&](int64_t i) {
    const int64_t row = i / across * kTileRows, c = i % across * kTileChannels;
    f(row, std::min(g.m(), row + kTileRows), c, std::min(g.c, c + kTileChannels));
  });
}

int64_t rows_per_write(const BatchNormGeometry& g) {
  return std::max<int64_t>(kTile / std::max<int64_t>(g.c, 1), 1);
}

// The value of a per-channel array, kLaneCount channels at a time.
template <class A, class Count>
Lanes<A> channels(const A* values, int64_t c, Count lanes) {
  return load(values + c, lanes);
}

// Adds lanes to those of an accumulator in the first cache.
template <class A, class Count>
void add_to(A* sum, Lanes<A> term, Count lanes) {
  store(sum, load(sum, lanes) + term, lanes);
}

// Moments of each of so many channels over `rows` rows, in two passes as in moments_of().
template <class T>
void tile_moments(const T* x, int64_t channels, int64_t rows, int64_t row_step, Moments* result) {
  using A = acc_t<T>;
  alignas(64) A mean[kTileChannels] = {}, residual[kTileChannels] = {}, square[kTileChannels] = {};
  for (int64_t row = 0; row < rows; ++row) {
    for_each_lanes<A>(channels, [&](int64_t c, auto lanes, int) {
      add_to(mean + c, load(x + row * row_step + c, lanes), lanes);
    });
  }
  for (int64_t c = 0; c < channels; ++c) mean[c] /= static_cast<A>(rows);
  for (int64_t row = 0; row < rows; ++row) {
    for_each_lanes<A>(channels, [&](int64_t c, auto lanes, int) {
      const Lanes<A> d = load(x + row * row_step + c, lanes) - load(mean + c, lanes);
      add_to(residual + c, d, lanes);
      add_to(square + c, d * d, lanes);
    });
  }
  for (int64_t c = 0; c < channels; ++c) {
    const double n = static_cast<double>(rows), r = residual[c];
    result[c] = {n, mean[c] + r / n, square[c] - r * (r / n)};
  }
}

template <class T>
void forward_channels_last(Cpu& cpu, const BatchNormForward& args, const BatchNormGeometry& g) {
  using A = acc_t<T>;
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  const int64_t tiles = tiles_down(g);
  // All memory is taken before the running statistics change.
  const Workspace<Moments> parts(cpu, args.training ? tiles * g.c : 0);
  const Workspace<A> terms(cpu, 3 * g.c);
  const double factor = running_factor(cpu, args);
  if (args.training) {
    parallel_blocks(cpu, g, [&](int64_t row, int64_t row_end, int64_t c, int64_t c_end) {
      tile_moments(x + row * g.c + c, c_end - c, row_end - row, g.c,  // 1 mean, var
                   parts.data() + row / kTileRows * g.c + c);
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
  parallel_tiles(cpu, g.m(), rows_per_write(g), [&](int64_t begin, int64_t end) {  // 3 write
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
void tile_sums(const T* x, const T* dy, const acc_t<T>* mean, int64_t channels, int64_t rows,
               int64_t row_step, Sums* result) {
  using A = acc_t<T>;
  alignas(64) A dy_sum[kTileChannels] = {}, dy_x_sum[kTileChannels] = {};
  for (int64_t row = 0; row < rows; ++row) {
    for_each_lanes<A>(channels, [&](int64_t c, auto lanes, int) {
      const Lanes<A> d = load(dy + row * row_step + c, lanes);
      add_to(dy_sum + c, d, lanes);
      add_to(dy_x_sum + c, d * (load(x + row * row_step + c, lanes) - load(mean + c, lanes)),
             lanes);
    });
  }
  for (int64_t c = 0; c < channels; ++c) result[c] = {dy_sum[c], dy_x_sum[c]};
}

template <class T>
void backward_channels_last(Cpu& cpu, const BatchNormBackward& args, const BatchNormGeometry& g) {
  using A = acc_t<T>;
  const T* x = args.x.as<T>();
  const T* dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  const int64_t tiles = needs_sums(args) ? tiles_down(g) : 0;
  const Workspace<Sums> parts(cpu, tiles * g.c);
  const Workspace<A> terms(cpu, 4 * g.c);
  if (tiles > 0) {
    parallel_blocks(cpu, g, [&](int64_t row, int64_t row_end, int64_t c, int64_t c_end) {  // 1 sums
      const int64_t first = row * g.c + c;
      tile_sums(x + first, dy + first, args.mean.as<A>() + c, c_end - c, row_end - row, g.c,
                parts.data() + row / kTileRows * g.c + c);
    });
  }
  A *mean = terms.data(), *scale = mean + g.c, *m1 = scale + g.c, *m2r = m1 + g.c;
  parallel_tiles(cpu, g.c, 64, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      Sums sums;
      for (int64_t tile = 0; tile < tiles; ++tile) sums.add(parts.data()[tile * g.c + c]);
      const Gradient<A> t = finish_gradient<A>(args, c, sums, g.m());
      mean[c] = t.mean, scale[c] = t.scale, m1[c] = t.m1, m2r[c] = t.m2r;
    }
  });
  if (!args.dx) return;
  parallel_tiles(cpu, g.m(), rows_per_write(g), [&](int64_t begin, int64_t end) {  // 3 write
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
