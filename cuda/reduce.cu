#include "core/ops/reduce.h"

#include "cuda/fits_l2.h"
#include "cuda/reduce_column_packs.h"
#include "cuda/reduce_op.h"

namespace gradus {

// Of what fits the cache, blocks wait longer for all of their rows than statistics take to save.
bool finds_statistics(const Cuda& cuda, ReduceKind kind, const AnyView& x, const AnyView& y) {
  bool finds = false;
  visit_reduction(kind, [&](auto reduction) {
    visit(Floating{}, x.dtype, [&](auto type) {
      finds = kFindsStatistics<typename decltype(reduction)::type, typename decltype(type)::type>;
    });
  });
  return finds && x.is_dense() && !fits_l2(cuda, x.nbytes()) &&
         holds_sets(plan_reduce(x, y), reduce_pack(size_of(x.dtype)));
}

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
