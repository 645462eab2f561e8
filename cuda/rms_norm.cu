#include "core/ops/rms_norm.h"

#include "cuda/row_norm_forward.cuh"
#include "cuda/row_norm_split_backward.cuh"

namespace gradus {

void run(Cuda& cuda, const RmsNormForward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    run_forward<false>(cuda, RowNormForward<T>{.x = args.x.as<T>(),
                                               .gamma = args.gamma.as<A>(),
                                               .beta = nullptr,
                                               .y = args.y.as<T>(),
                                               .mean = nullptr,
                                               .rstd = args.rstd.as<A>(),
                                               .rows = args.x.shape[0],
                                               .m = args.x.shape[1],
                                               .eps = static_cast<A>(norm_eps<A>(args.eps))});
  });
}

void run(Cuda& cuda, const RmsNormBackward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    run_backward<false>(cuda, RowNormBackward<T>{.x = args.x.as<T>(),
                                                 .dy = args.dy.as<T>(),
                                                 .gamma = args.gamma.as<A>(),
                                                 .mean = nullptr,
                                                 .rstd = args.rstd.as<A>(),
                                                 .dx = args.dx.as<T>(),
                                                 .dgamma = args.dgamma.as<A>(),
                                                 .dbeta = nullptr,
                                                 .rows = args.x.shape[0],
                                                 .m = args.x.shape[1]});
  });
}

}  // namespace gradus
