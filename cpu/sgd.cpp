#include "core/ops/sgd.h"

#include "cpu/dispatch.h"
#include "cpu/loops.h"
#include "cpu/multi_tensor.h"

namespace gradus::GRADUS_ISA {
namespace {

template <class T>
void update(const SgdNumbers<acc_t<T>>& k, acc_t<T> lr, T* p, const T* dp, acc_t<T>* buf,
            bool first, int64_t count) {
  using A = acc_t<T>;
  if (buf == nullptr) {
    GRADUS_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) {
      p[i] = static_cast<T>(sgd_element<A>(k, lr, load(p[i]), load(dp[i]), nullptr, first));
    }
  } else {
    GRADUS_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) {
      p[i] = static_cast<T>(sgd_element<A>(k, lr, load(p[i]), load(dp[i]), buf + i, first));
    }
  }
}

}  // namespace

void run(Cpu& cpu, const SgdStep& args) {
  if (args.failed_step && *args.failed_step.as<int64_t>() >= 0) return;
  const double lr = *args.lr.as<double>();
  const int64_t step = *args.step.as<int64_t>();
  visit(Floating{}, args.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    const SgdNumbers<A> k = sgd_numbers<A>(args);
    const auto count = [](const SgdTensor& tensor) { return tensor.p.numel(); };
    for_each_tensor_tile(
        cpu, args.tensors, count, [&](size_t t, int64_t begin, int64_t end, int64_t) {
          const SgdTensor& tensor = args.tensors[t];
          A* buf = tensor.buf.as<A>();
          update<T>(k, static_cast<A>(lr), tensor.p.as<T>() + begin, tensor.dp.as<T>() + begin,
                    buf == nullptr ? nullptr : buf + begin, step == tensor.born + 1, end - begin);
        });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(SgdStep)
