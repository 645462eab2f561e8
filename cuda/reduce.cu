#include "core/ops/reduce.h"

#include "cuda/reduce_op.h"

namespace gradus {

void run(Cuda& cuda, const ReduceForward& args) {
  visit_reduction(args.kind, [&](auto reduction) {
    reduce_op<typename decltype(reduction)::type>(cuda, args);
  });
}

void run(Cuda& cuda, const ReduceBackward& args) {
  visit_reduction(args.kind, [&](auto reduction) {
    reduce_op<typename decltype(reduction)::type>(cuda, args);
  });
}

}  // namespace gradus
