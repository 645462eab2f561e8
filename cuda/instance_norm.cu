#include "core/ops/instance_norm.h"

#include "cuda/context.h"
#include "cuda/device/reduce.cuh"
#include "cuda/plan.h"

namespace gradus {
namespace {

template <class A>
struct RunningUpdate {
  const A *mean, *var;  // [n, c]
  A *running_mean, *running_var;
  int64_t mean_stride, var_stride;
  int64_t n, c;
  double momentum, unbiased;
};

// math    core/ops/instance_norm.h
// grid    a warp per channel: lanes take samples in turn, then fold
// order   samples of a lane, then lanes: fixed by the shape; in f64, since samples may be many
template <class A>
__global__ void __launch_bounds__(256)
    instance_norm_update_warp_per_channel(const RunningUpdate<A> u) {
  const int64_t c = int64_t{blockIdx.x} * 8 + threadIdx.x / kWarp;
  if (c >= u.c) return;
  double mean = 0, var = 0;
  for (int64_t n = threadIdx.x % kWarp; n < u.n; n += kWarp) {
    mean += u.mean[n * u.c + c];
    var += u.var[n * u.c + c];
  }
  mean = warp_sum(mean);
  var = warp_sum(var);
  if (threadIdx.x % kWarp != 0) return;
  const double share = u.momentum / static_cast<double>(u.n);
  A& running_mean = u.running_mean[c * u.mean_stride];
  A& running_var = u.running_var[c * u.var_stride];
  running_mean = static_cast<A>((1 - u.momentum) * running_mean + share * mean);
  running_var = static_cast<A>((1 - u.momentum) * running_var + share * var * u.unbiased);
}

}  // namespace

void run(Cuda& cuda, const InstanceNormUpdate& args) {
  visit(TypeList<float, double>{}, args.mean.dtype, [&](auto type) {
    using A = typename decltype(type)::type;
    const double s = static_cast<double>(args.s);
    const RunningUpdate<A> update{.mean = args.mean.as<A>(),
                                  .var = args.var.as<A>(),
                                  .running_mean = args.running_mean.as<A>(),
                                  .running_var = args.running_var.as<A>(),
                                  .mean_stride = args.running_mean.strides[0],
                                  .var_stride = args.running_var.strides[0],
                                  .n = args.mean.shape[0],
                                  .c = args.mean.shape[1],
                                  .momentum = args.momentum,
                                  .unbiased = s / (s - 1)};
    instance_norm_update_warp_per_channel<A>
        <<<exact_blocks(ceil_div(update.c, 8), "instance_norm"), 256, 0, cuda.stream()>>>(update);
  });
}

}  // namespace gradus
