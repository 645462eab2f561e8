#include "core/ops/sgd.h"

#include "cpu/dispatch.h"
#include "cpu/loops.h"
#include "cpu/parallel.h"

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
    for (const SgdTensor& tensor : args.tensors) {
      T* p = tensor.p.as<T>();
      const T* dp = tensor.dp.as<T>();
      A* buf = tensor.buf.as<A>();
      const bool first = step == tensor.born + 1;
      parallel_tiles(cpu, tensor.p.numel(), kTile, [&](int64_t begin, int64_t end) {
        A* tile_buf = buf == nullptr ? nullptr : buf + begin;
        update<T>(k, static_cast<A>(lr), p + begin, dp + begin, tile_buf, first, end - begin);
      });
    }
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(SgdStep)
