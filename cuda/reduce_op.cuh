// Both directions of one reduction, to be instantiated in a file of its own: there are many
// kernels.
#pragma once

#include "core/ops/reduce.h"
#include "cuda/reduce_backward.cuh"
#include "cuda/reduce_held.cuh"
#include "cuda/reduce_op.h"

namespace gradus {

template <class F>
void reduce_op(Cuda& cuda, const ReduceForward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    reduce_forward<F, T>(cuda, args.x, args.y,
                         {.y = args.y.as<T>(),
                          .stat0 = args.stat0.as<A>(),
                          .stat1 = args.stat1.as<A>(),
                          .parameter = args.divisor()},
                         F::name);
  });
}

template <class F>
void reduce_op(Cuda& cuda, const ReduceBackward& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    if (!args.stat0) return launch_reduce_held<F, T>(cuda, args);
    const bool exact = args.stat0.dtype == args.x.dtype;
    launch_reduce_backward<F, T>(cuda, args,
                                 {.dy = args.dy.as<T>(),
                                  .exact = exact ? args.stat0.as<T>() : nullptr,
                                  .stat0 = exact ? nullptr : args.stat0.as<A>(),
                                  .stat1 = args.stat1.as<A>(),
                                  .divisor = args.divisor()});
  });
}

}  // namespace gradus
