#include "core/ops/adam.h"

#include "cpu/dispatch.h"
#include "cpu/loops.h"
#include "cpu/multi_tensor.h"

namespace gradus::GRADUS_ISA {
namespace {

template <class T>
void update(const AdamNumbers<acc_t<T>>& k, T* p, const T* dp, acc_t<T>* exp_avg,
            acc_t<T>* exp_avg_sq, int64_t count) {
  using A = acc_t<T>;
  GRADUS_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    A first = exp_avg[i], second = exp_avg_sq[i];
    p[i] = static_cast<T>(adam_element<A>(k, load(p[i]), load(dp[i]), first, second));
    exp_avg[i] = first;
    exp_avg_sq[i] = second;
  }
}

}  // namespace

void run(Cpu& cpu, const AdamStep& args) {
  if (args.failed_step && *args.failed_step.as<int64_t>() >= 0) return;
  const double lr = *args.lr.as<double>();
  const int64_t step = *args.step.as<int64_t>();
  visit(Floating{}, args.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    const auto count = [](const AdamTensor& tensor) { return tensor.p.numel(); };
    for_each_tensor_tile(
        cpu, args.tensors, count, [&](size_t t, int64_t begin, int64_t end, int64_t) {
          const AdamTensor& tensor = args.tensors[t];
          update<T>(adam_numbers<A>(args.settings, lr, step - tensor.born),
                    tensor.p.as<T>() + begin, tensor.dp.as<T>() + begin,
                    tensor.exp_avg.as<A>() + begin, tensor.exp_avg_sq.as<A>() + begin, end - begin);
        });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(AdamStep)
