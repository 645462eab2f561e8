#include "core/ops/sum.h"

#include "core/ops/copy.h"
#include "cuda/reduce.cuh"

namespace gradus {

void run(Cuda& cuda, const Sum& args) {
  if (args.x.numel() == 0) return run(cuda, Fill{.y = args.y, .value = 0.0 * args.scale});
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool wide = args.y.dtype != args.x.dtype;
    void* y = wide ? static_cast<void*>(args.y.as<acc_t<T>>()) : static_cast<void*>(args.y.as<T>());
    reduce_forward<reductions::Sum, T>(cuda, args.x, args.y,
                                       {.y = y, .wide = wide, .parameter = args.scale}, "sum");
  });
}

}  // namespace gradus
