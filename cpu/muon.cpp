#include "core/ops/muon.h"

#include <cstring>

#include "cpu/dispatch.h"
#include "cpu/loops.h"
#include "cpu/multi_tensor.h"

namespace gradus::GRADUS_ISA {
namespace {

bool has_failed(const AnyView& failed_step) {
  return failed_step && *failed_step.as<int64_t>() >= 0;
}

int64_t count_of(const MuonTensor& tensor) { return tensor.dp.numel(); }

// Writes buf and u (to o) and returns Σ u².
template <class T>
double directions(const MuonNumbers<acc_t<T>>& k, const T* dp, acc_t<T>* buf, acc_t<T>* o,
                  int64_t count) {
  using A = acc_t<T>;
  GRADUS_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    A own = buf[i];
    o[i] = muon_direction<A>(k, load(dp[i]), own);
    buf[i] = own;
  }
  constexpr int64_t lanes = 8;
  double sums[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) {
      sums[j] += static_cast<double>(o[i + j]) * static_cast<double>(o[i + j]);
    }
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(o[i]) * static_cast<double>(o[i]);
  for (int64_t width = lanes / 2; width > 0; width /= 2) {
    for (int64_t j = 0; j < width; ++j) sums[j] += sums[j + width];
  }
  return sums[0];
}

}  // namespace

void run(Cpu& cpu, const MuonMomentum& args) {
  if (has_failed(args.failed_step)) {
    for (const MuonTensor& tensor : args.tensors) {  // so that what follows has something to read
      std::memset(tensor.o.data, 0, static_cast<size_t>(tensor.o.nbytes()));
    }
    return;
  }
  visit(Floating{}, args.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    const MuonNumbers<A> k = muon_numbers<A>(args.momentum, args.nesterov);
    const Workspace<double> squares(cpu, count_tensor_tiles(args.tensors, count_of));
    for_each_tensor_tile(
        cpu, args.tensors, count_of, [&](size_t t, int64_t begin, int64_t end, int64_t tile) {
          const MuonTensor& tensor = args.tensors[t];
          squares.data()[tile] =
              directions<T>(k, tensor.dp.as<T>() + begin, tensor.buf.as<A>() + begin,
                            tensor.o.as<A>() + begin, end - begin);
        });
    for_each_tensor_tile(cpu, args.tensors, count_of,
                         [&](size_t t, int64_t begin, int64_t end, int64_t tile) {
                           const MuonTensor& tensor = args.tensors[t];
                           const int64_t first = tile - begin / kTile;
                           const int64_t tiles = (count_of(tensor) + kTile - 1) / kTile;
                           double total = 0;
                           for (int64_t i = first; i < first + tiles; ++i)
                             total += squares.data()[i];
                           const A scale = muon_scale<A>(total, args.eps);
                           A* o = tensor.o.as<A>();
                           GRADUS_INDEPENDENT
                           for (int64_t i = begin; i < end; ++i) o[i] *= scale;
                         });
  });
}

void run(Cpu& cpu, const MuonPolynomial& args) {
  visit(TypeList<float, double>{}, args.dtype(), [&](auto type) {
    using A = typename decltype(type)::type;
    const int64_t k = args.p.shape[2];
    const A *product = args.product.as<A>(), *square = args.square.as<A>();
    const A identity = static_cast<A>(args.a), b = static_cast<A>(args.b);
    const A c = static_cast<A>(args.c);
    A* p = args.p.as<A>();
    const int64_t rows = args.p.shape[0] * k;
    parallel_tiles(cpu, rows, std::max<int64_t>(1, kTile / std::max<int64_t>(k, 1)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       A* to = p + row * k;
                       const A *one = product + row * k, *two = square + row * k;
                       GRADUS_INDEPENDENT
                       for (int64_t j = 0; j < k; ++j) to[j] = b * one[j] + c * two[j];
                       to[row % k] += identity;
                     }
                   });
  });
}

void run(Cpu& cpu, const MuonApply& args) {
  if (has_failed(args.failed_step)) return;
  const double lr = *args.lr.as<double>();
  visit(Floating{}, args.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    const A keep = static_cast<A>(1.0 - lr * args.weight_decay);
    for_each_tensor_tile(cpu, args.tensors, count_of,
                         [&](size_t t, int64_t begin, int64_t end, int64_t) {
                           const MuonTensor& tensor = args.tensors[t];
                           const A rate = static_cast<A>(lr * tensor.adjust);
                           T* p = tensor.p.as<T>();
                           const A* o = tensor.o.as<A>();
                           GRADUS_INDEPENDENT
                           for (int64_t i = begin; i < end; ++i) {
                             p[i] = static_cast<T>(load(p[i]) * keep - rate * o[i]);
                           }
                         });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(MuonMomentum)
GRADUS_DISPATCH(MuonPolynomial)
GRADUS_DISPATCH(MuonApply)
