#include "core/ops/sum.h"

#include "cpu/dispatch.h"
#include "cpu/reduce.h"

namespace gradus::GRADUS_ISA {

void run(Cpu& cpu, const Sum& args) {
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto sum_into = [&]<class To>(To* y) {
      if (args.x.numel() == 0) {
        std::fill_n(y, args.y.numel(), static_cast<To>(0.0 * args.scale));
        return;
      }
      using Part = Partial<acc_t<T>, 1>;
      reduce_all<reductions::Sum>(
          cpu, ReducePlan(args.x, args.y), args.x.as<T>(),
          [y, &args](int64_t at, const Part& part) {
            y[at] = static_cast<To>(static_cast<double>(part.v[0]) * args.scale);
          });
    };
    if (args.y.dtype == dtype_of<T>)
      sum_into(args.y.as<T>());
    else
      sum_into(args.y.as<acc_t<T>>());
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(Sum)
