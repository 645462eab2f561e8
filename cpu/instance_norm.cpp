#include "core/ops/instance_norm.h"

#include "cpu/dispatch.h"
#include "cpu/parallel.h"

namespace gradus::GRADUS_ISA {
namespace {

template <class A>
void update(Cpu& cpu, const InstanceNormUpdate& args) {
  const int64_t n = args.mean.shape[0], c = args.mean.shape[1];
  const double unbiased = static_cast<double>(args.s) / static_cast<double>(args.s - 1);
  const A *mean = args.mean.as<A>(), *var = args.var.as<A>();
  parallel_tiles(cpu, c, std::max<int64_t>(1, kTile / n), [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      double means = 0, vars = 0;
      for (int64_t i = 0; i < n; ++i) {
        means += mean[i * c + k];
        vars += var[i * c + k];
      }
      const double share = args.momentum / static_cast<double>(n);
      A& running_mean = args.running_mean.as<A>()[k * args.running_mean.strides[0]];
      A& running_var = args.running_var.as<A>()[k * args.running_var.strides[0]];
      running_mean = static_cast<A>((1 - args.momentum) * running_mean + share * means);
      running_var = static_cast<A>((1 - args.momentum) * running_var + share * vars * unbiased);
    }
  });
}

}  // namespace

void run(Cpu& cpu, const InstanceNormUpdate& args) {
  visit(TypeList<float, double>{}, args.mean.dtype,
        [&](auto type) { update<typename decltype(type)::type>(cpu, args); });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(InstanceNormUpdate)
