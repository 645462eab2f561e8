#include "core/ops/rms_norm.h"

#include "cpu/dispatch.h"
#include "cpu/row_norm.h"

namespace gradus::GRADUS_ISA {

void run(Cpu& cpu, const RmsNormForward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    run_forward<false>(cpu, RowNormForward<T>{.x = args.x.as<T>(),
                                              .gamma = args.gamma.as<A>(),
                                              .beta = nullptr,
                                              .y = args.y.as<T>(),
                                              .mean = nullptr,
                                              .rstd = args.rstd.as<A>(),
                                              .rows = args.x.shape[0],
                                              .m = args.x.shape[1],
                                              .eps = norm_eps<A>(args.eps)});
  });
}

void run(Cpu& cpu, const RmsNormBackward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    run_backward<false>(cpu, RowNormBackward<T>{.x = args.x.as<T>(),
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

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(RmsNormForward)
GRADUS_DISPATCH(RmsNormBackward)
