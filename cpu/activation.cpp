// Activations on the CPU. Elements pass through vector registers in runs that fit the first cache:
// widened from a 16-bit type or gathered where they are strided, computed, and stored.
#include "core/ops/activation.h"

#include "cpu/activation_pack.h"
#include "cpu/dispatch.h"
#include "cpu/lanes.h"
#include "cpu/strided.h"

namespace gradus::GRADUS_ISA {
namespace {

constexpr int64_t kRun = 1024;      // elements
constexpr int64_t kMaskChunk = 16;  // elements of a step with a mask: whole bytes, whole vectors
static_assert(kTile % kRun == 0 && kRun % kMaskChunk == 0);

// The next `count` elements in acc_t: in place where they lie so, else in `buffer`.
template <class T>
const acc_t<T>* read_run(const T* x, int64_t step, int64_t count, acc_t<T>* buffer) {
  using A = acc_t<T>;
  if (step != 1) {
    for (int64_t i = 0; i < count; ++i) buffer[i] = static_cast<A>(x[i * step]);
    return buffer;
  }
  if constexpr (std::is_same_v<T, A>) {
    return x;
  } else {
    convert_run(x, count, buffer);
    return buffer;
  }
}

// Where a run of results is computed, and its way from there to y.
template <class T>
acc_t<T>* result_run(T* y, int64_t step, acc_t<T>* buffer) {
  if constexpr (std::is_same_v<T, acc_t<T>>) return step == 1 ? y : buffer;
  return buffer;
}
template <class T>
void write_run(const acc_t<T>* from, int64_t count, T* y, int64_t step) {
  if (step != 1) {
    for (int64_t i = 0; i < count; ++i) y[i * step] = static_cast<T>(from[i]);
  } else if constexpr (!std::is_same_v<T, acc_t<T>>) {
    convert_run(from, count, y);
  }
}

// y = f(x); y may be x.
template <class A>
void compute_values(const Activation& activation, const A* x, int64_t count, A* y) {
  using V = ActivationPack<A>;
  visit_activation(activation, [&](auto function) {
    for (int64_t i = 0; i < count; i += kLanes<A>)
      store_lanes(y + i, function.f(V(load_lanes(x + i, count - i))).v, count - i);
  });
}

// dx = df(x, dy); dx may be x or dy.
template <class A>
void compute_gradients(const Activation& activation, const A* x, const A* dy, int64_t count,
                       A* dx) {
  using V = ActivationPack<A>;
  visit_activation(activation, [&](auto function) {
    if constexpr (decltype(function)::saves == Saves::x) {
      for (int64_t i = 0; i < count; i += kLanes<A>) {
        const V v(load_lanes(x + i, count - i)), upstream(load_lanes(dy + i, count - i));
        store_lanes(dx + i, function.df(v, upstream).v, count - i);
      }
    }
  });
}

// The bits of whole vectors are put together, and those beyond `count` cleared.
template <class A>
void compute_mask(const Activation& activation, const A* x, int64_t count, uint8_t* mask) {
  using V = ActivationPack<A>;
  visit_activation(activation, [&](auto function) {
    if constexpr (decltype(function)::saves == Saves::mask) {
      for (int64_t i = 0; i < count; i += kMaskChunk) {
        uint32_t bits = 0;
        for (int64_t k = 0; k < kMaskChunk && i + k < count; k += kLanes<A>) {
          const V v(load_lanes(x + i + k, count - i - k));
          bits |= mask_bits<A>(function.passes(v)) << k;
        }
        const int64_t left = count - i;
        if (left < kMaskChunk) bits &= (1u << left) - 1;
        mask[i / 8] = static_cast<uint8_t>(bits);
        if (left > 8) mask[i / 8 + 1] = static_cast<uint8_t>(bits >> 8);
      }
    }
  });
}

template <class A>
void compute_masked(const Activation& activation, const uint8_t* mask, const A* dy, int64_t count,
                    A* dx) {
  using V = ActivationPack<A>;
  visit_activation(activation, [&](auto function) {
    if constexpr (decltype(function)::saves == Saves::mask) {
      for (int64_t i = 0; i < count; i += kMaskChunk) {
        uint32_t bits = mask[i / 8];
        if (count - i > 8) bits |= static_cast<uint32_t>(mask[i / 8 + 1]) << 8;
        for (int64_t k = 0; k < kMaskChunk && i + k < count; k += kLanes<A>) {
          const V upstream(load_lanes(dy + i + k, count - i - k));
          const V result = function.df(mask_of_bits<A>(bits >> k), upstream);
          store_lanes(dx + i + k, result.v, count - i - k);
        }
      }
    }
  });
}

}  // namespace

void run(Cpu& cpu, const ActivationForward& args) {
  const Rows<2> rows(args.y.shape, {args.y.strides, args.x.strides});
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    T* y = args.y.as<T>();
    const T* x = args.x.as<T>();
    uint8_t* mask = args.mask.as<uint8_t>();
    const int64_t y_step = rows.inner_strides[0], x_step = rows.inner_strides[1];
    for_each_row(cpu, rows, [&](const RowOffsets<2>& at, int64_t count) {
      acc_t<T> in[kRun], out[kRun];
      for (int64_t first = 0; first < count; first += kRun) {
        const int64_t n = std::min(kRun, count - first);
        T* to = y + at[0] + first * y_step;
        const acc_t<T>* from = read_run(x + at[1] + first * x_step, x_step, n, in);
        acc_t<T>* result = result_run(to, y_step, out);
        if (mask != nullptr) compute_mask(args.activation, from, n, mask + (at[0] + first) / 8);
        compute_values(args.activation, from, n, result);
        write_run(result, n, to, y_step);
      }
    });
  });
}

void run(Cpu& cpu, const ActivationBackward& args) {
  const bool masked = args.saved.dtype == DType::u8;
  const Strides& saved = masked ? args.dx.strides : args.saved.strides;
  const Rows<3> rows(args.dx.shape, {args.dx.strides, saved, args.dy.strides});
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    T* dx = args.dx.as<T>();
    const T *x = masked ? nullptr : args.saved.as<T>(), *dy = args.dy.as<T>();
    const uint8_t* mask = masked ? args.saved.as<uint8_t>() : nullptr;
    const std::array<int64_t, 3> steps = rows.inner_strides;
    for_each_row(cpu, rows, [&](const RowOffsets<3>& at, int64_t count) {
      acc_t<T> in[kRun], upstream[kRun], out[kRun];
      for (int64_t first = 0; first < count; first += kRun) {
        const int64_t n = std::min(kRun, count - first);
        T* to = dx + at[0] + first * steps[0];
        const acc_t<T>* d = read_run(dy + at[2] + first * steps[2], steps[2], n, upstream);
        acc_t<T>* result = result_run(to, steps[0], out);
        if (masked) {
          compute_masked(args.activation, mask + (at[0] + first) / 8, d, n, result);
        } else {
          const acc_t<T>* v = read_run(x + at[1] + first * steps[1], steps[1], n, in);
          compute_gradients(args.activation, v, d, n, result);
        }
        write_run(result, n, to, steps[0]);
      }
    });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(ActivationForward)
GRADUS_DISPATCH(ActivationBackward)
