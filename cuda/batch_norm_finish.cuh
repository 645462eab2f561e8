// From a channel's moments or sums to what the second pass of batch normalization needs, to the
// saved and running statistics and to the parameters' gradients.
#pragma once

#include "core/ops/batch_norm.h"
#include "core/ops/normalization.h"
#include "cuda/batch_norm_parts.cuh"

namespace gradus {

// y = (x - mean)·scale + shift.
template <class A>
struct BatchNormForwardTerms {
  A mean, scale, shift;

  template <class T, int N>
  __device__ __forceinline__ Raw<T, N> operator()(const Raw<T, N>& x) const {
    A y[N];
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = (x[j] - mean) * scale + shift;
    return round_raw<T, N>(y);
  }
};

template <class T>
struct ForwardFinish {
  using A = acc_t<T>;
  using Terms = BatchNormForwardTerms<A>;
  MomentsOf<T> of;
  const Moments<A>* parts = nullptr;  // null: there are no chunks
  const A *gamma = nullptr, *beta = nullptr;
  A *mean = nullptr, *rstd = nullptr;
  A *running_mean = nullptr, *running_var = nullptr;  // null: not updated
  int64_t mean_stride = 1, var_stride = 1;
  const int64_t* batches = nullptr;  // this one counted
  A eps = 0, momentum = 0;
  bool cumulative = false;

  __device__ __forceinline__ Terms transform(int64_t c, A channel_mean, A channel_rstd) const {
    return {channel_mean, channel_rstd * (gamma != nullptr ? gamma[c] : A(1)),
            beta != nullptr ? beta[c] : A(0)};
  }

  // What finish() needs of a channel beside its moments, to be loaded while they are on their way.
  struct Channel {
    A pivot = A(0), gamma = A(1), beta = A(0), average = A(0), spread = A(0);
  };
  __device__ __forceinline__ Channel channel(int64_t c, bool writes) const {
    Channel of_c{.pivot = of.pivot(c)};
    if (gamma != nullptr) of_c.gamma = gamma[c];
    if (beta != nullptr) of_c.beta = beta[c];
    if (writes && running_mean != nullptr) {
      of_c.average = running_mean[c * mean_stride];
      of_c.spread = running_var[c * var_stride];
    }
    return of_c;
  }

  // Training; `writes` is true for one caller per channel.
  __device__ __forceinline__ Terms finish(int64_t c, const Channel& of_c, const Moments<A>& moments,
                                          bool writes) const {
    const A var = moments.m2 / moments.count, channel_rstd = A(1) / sqrt(var + eps);
    const A channel_mean = norm_saved_mean(of_c.pivot + moments.mean, var);
    if (writes) {
      mean[c] = channel_mean;
      rstd[c] = channel_rstd;
      if (running_mean != nullptr) {
        const A factor = cumulative ? A(1) / static_cast<A>(*batches) : momentum;
        const A unbiased = moments.m2 / (moments.count - A(1));
        running_mean[c * mean_stride] = (A(1) - factor) * of_c.average + factor * channel_mean;
        running_var[c * var_stride] = (A(1) - factor) * of_c.spread + factor * unbiased;
      }
    }
    return {channel_mean, channel_rstd * of_c.gamma, of_c.beta};
  }
  __device__ __forceinline__ Terms finish(int64_t c, const Moments<A>& moments, bool writes) const {
    return finish(c, channel(c, writes), moments, writes);
  }

  // Evaluation.
  __device__ __forceinline__ Terms use_running(int64_t c, bool writes) const {
    const A channel_mean = running_mean[c * mean_stride];
    const A channel_rstd = A(1) / sqrt(running_var[c * var_stride] + eps);
    if (writes) {
      mean[c] = channel_mean;
      rstd[c] = channel_rstd;
    }
    return transform(c, channel_mean, channel_rstd);
  }
};

// dx = scale·(dy - m1 - (x - mean)·m2r), with scale = gamma·rstd and m2r = rstd·m2; in evaluation
// m1 and m2r are 0 and x is not read.
template <class A>
struct BatchNormBackwardTerms {
  A mean, scale, m1, m2r;

  template <class T, int N>
  __device__ __forceinline__ Raw<T, N> operator()(const RawPair<T, N>& in) const {
    A dx[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A moved = m1 + (in.x[j] - mean) * m2r;
      dx[j] = scale * (in.dy[j] - moved);
    }
    return round_raw<T, N>(dx);
  }
};

template <class A>
struct BackwardFinish {
  using Terms = BatchNormBackwardTerms<A>;
  const BatchNormSums<A>* parts = nullptr;
  const A *gamma = nullptr, *mean = nullptr, *rstd = nullptr;
  A *dgamma = nullptr, *dbeta = nullptr;  // null: not wanted
  A *m1 = nullptr, *m2r = nullptr;        // channels-last only, where dx is wanted
  A m = 1;

  __device__ __forceinline__ A scale(int64_t c) const {
    return rstd[c] * (gamma != nullptr ? gamma[c] : A(1));
  }
  // As in ForwardFinish.
  struct Channel {
    A mean, rstd, scale;
  };
  __device__ __forceinline__ Channel channel(int64_t c, bool) const {
    return {mean[c], rstd[c], scale(c)};
  }
  __device__ __forceinline__ Terms finish(int64_t c, const Channel& of_c,
                                          const BatchNormSums<A>& sums, bool writes) const {
    if (writes && dgamma != nullptr) dgamma[c] = sums.dy_x * of_c.rstd;
    if (writes && dbeta != nullptr) dbeta[c] = sums.dy;
    const Terms result{of_c.mean, of_c.scale, sums.dy / m, sums.dy_x * of_c.rstd / m * of_c.rstd};
    if (writes && m1 != nullptr) {
      m1[c] = result.m1;
      m2r[c] = result.m2r;
    }
    return result;
  }
  __device__ __forceinline__ Terms finish(int64_t c, const BatchNormSums<A>& sums,
                                          bool writes) const {
    return finish(c, channel(c, writes), sums, writes);
  }
};

template <class T>
ForwardFinish<T> forward_finish(const BatchNormForward& args, const BatchNormGeometry& g) {
  using A = acc_t<T>;
  ForwardFinish<T> finish{.of = {args.x.as<T>(), g.channels_last ? 1 : g.s},
                          .gamma = args.gamma.as<A>(),
                          .beta = args.beta.as<A>(),
                          .mean = args.mean.as<A>(),
                          .rstd = args.rstd.as<A>(),
                          .running_mean = args.running_mean.as<A>(),
                          .running_var = args.running_var.as<A>(),
                          .batches = args.batches.as<int64_t>(),
                          .eps = static_cast<A>(norm_eps<A>(args.eps)),
                          .momentum = static_cast<A>(args.momentum),
                          .cumulative = args.cumulative};
  if (args.running_mean) {
    finish.mean_stride = args.running_mean.strides[0];
    finish.var_stride = args.running_var.strides[0];
  }
  return finish;
}

template <class A>
BackwardFinish<A> backward_finish(const BatchNormBackward& args, const BatchNormGeometry& g) {
  return {.gamma = args.gamma.as<A>(),
          .mean = args.mean.as<A>(),
          .rstd = args.rstd.as<A>(),
          .dgamma = args.dgamma.as<A>(),
          .dbeta = args.dbeta.as<A>(),
          .m = static_cast<A>(g.m())};
}

}  // namespace gradus
