#include "core/ops/clip_grad.h"

#include "cpu/dispatch.h"
#include "cpu/loops.h"
#include "cpu/multi_tensor.h"

namespace gradus::GRADUS_ISA {
namespace {

int64_t count_of(const AnyView& grad) { return grad.numel(); }

// Of one tile, in 8 lanes.
template <class T>
double norm_part(GradNorm kind, const T* g, int64_t count) {
  constexpr int64_t lanes = 8;
  double parts[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) {
      const double term = grad_norm_term(kind, static_cast<double>(load(g[i + j])));
      parts[j] = grad_norm_combine(kind, parts[j], term);
    }
  }
  for (; i < count; ++i) {
    parts[0] =
        grad_norm_combine(kind, parts[0], grad_norm_term(kind, static_cast<double>(load(g[i]))));
  }
  for (int64_t width = lanes / 2; width > 0; width /= 2) {
    for (int64_t j = 0; j < width; ++j) {
      parts[j] = grad_norm_combine(kind, parts[j], parts[j + width]);
    }
  }
  return parts[0];
}

template <class T>
void multiply(T* g, acc_t<T> scale, int64_t count) {
  GRADUS_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) g[i] = static_cast<T>(load(g[i]) * scale);
}

template <class T>
void limit_values(T* g, acc_t<T> limit, int64_t count) {
  GRADUS_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) g[i] = static_cast<T>(clip_value(load(g[i]), limit));
}

}  // namespace

void run(Cpu& cpu, const ClipGradNorm& args) {
  const int64_t tiles = count_tensor_tiles(args.grads, count_of);
  const Workspace<double> parts(cpu, tiles);
  for_each_tensor_tile(
      cpu, args.grads, count_of, [&](size_t t, int64_t begin, int64_t end, int64_t tile) {
        visit(Floating{}, args.grads[t].dtype, [&](auto type) {
          using T = typename decltype(type)::type;
          parts.data()[tile] = norm_part(args.kind, args.grads[t].as<T>() + begin, end - begin);
        });
      });
  double total = 0;
  for (int64_t i = 0; i < tiles; ++i) {
    total = grad_norm_combine(args.kind, total, parts.data()[i]);
  }
  const double norm = grad_norm_of(args.kind, total);
  *args.norm.as<double>() = norm;
  const double scale = grad_scale(norm, args.max_norm);
  if (scale == 1.0) return;
  for_each_tensor_tile(
      cpu, args.grads, count_of, [&](size_t t, int64_t begin, int64_t end, int64_t) {
        visit(Floating{}, args.grads[t].dtype, [&](auto type) {
          using T = typename decltype(type)::type;
          multiply(args.grads[t].as<T>() + begin, static_cast<acc_t<T>>(scale), end - begin);
        });
      });
}

void run(Cpu& cpu, const ClipGradValue& args) {
  for_each_tensor_tile(cpu, args.grads, count_of,
                       [&](size_t t, int64_t begin, int64_t end, int64_t) {
                         visit(Floating{}, args.grads[t].dtype, [&](auto type) {
                           using T = typename decltype(type)::type;
                           limit_values(args.grads[t].as<T>() + begin,
                                        static_cast<acc_t<T>>(args.limit), end - begin);
                         });
                       });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(ClipGradNorm)
GRADUS_DISPATCH(ClipGradValue)
