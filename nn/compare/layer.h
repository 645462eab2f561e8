// One layer as a function of tensors whose bits are the same on every device: how it is run, and
// how its values are judged. A module of a network and a case of an op both become one.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/generator.h"
#include "core/tensor.h"
#include "core/tolerance.h"
#include "nn/compare/report.h"
#include "nn/module.h"

namespace gradus {

// The thread's generator of a device, started anew so that all runs draw the same, and put back
// afterwards.
class FixedDraws {
 public:
  explicit FixedDraws(Device device)
      : state_(default_generator(device).tensor()), before_(state_.clone()) {
    default_generator(device).manual_seed(0);
  }
  ~FixedDraws() {
    try {
      state_.copy_(before_);  // needs no memory
    } catch (const Error&) {  // the device is lost: the first error says why
    }
  }
  FixedDraws(const FixedDraws&) = delete;
  FixedDraws& operator=(const FixedDraws&) = delete;

 private:
  Tensor state_, before_;
};

struct ComparedLayer {
  struct Input {
    enum class Kind : uint8_t {
      x,          // its gradient is one of values: `lengths.dx`
      parameter,  // `lengths.parameters`
      buffer,     // forward writes it, which is compared as well
      value,      // has no gradient: a gradient that an optimizer takes
      constant,   // labels, counters, rates: never moved
    };
    std::string name;  // its gradient is called "d" + name
    Tensor value;      // on the CPU, in the dtype compared
    Kind kind = Kind::x;
    bool wants_grad() const { return kind <= Kind::parameter && is_floating(value.dtype()); }
  };
  struct Output {
    std::string name;
    Tensor dy;  // on the CPU; undefined: no gradient comes
  };

  std::string layer, path, case_name, function;
  DType dtype = DType::f32;
  std::vector<Input> inputs;  // the first is x
  std::vector<Output> outputs;
  // Tensors like `inputs` in, the outputs out. Called again and again; writes to buffers only.
  std::function<std::vector<Tensor>(std::span<const Tensor>)> forward;

  nn::SumLengths lengths;
  bool for_itself = false;       // a value of y comes from one of x: its ulp is at its own size
  double scale = 0;              // at least this large are the terms that cancel in its values
  double gradient_absolute = 0;  // more for gradients: what rounding of a stored y does to them
};

// What one run gave.
struct LayerRun {
  std::vector<Tensor> outputs;
  std::vector<Tensor> buffers;   // after forward, in the order of inputs
  std::vector<Tensor> grads;     // of the inputs that want one; undefined where none arrived
  std::vector<Tensor> upstream;  // the dy of each output; undefined where none comes
};

// `value` for a run on the device, in f64 if it is floating and `wide`; a leaf of its own memory.
Tensor operand(const Tensor& value, Device device, bool wide);
std::vector<Tensor> operands_of(const ComparedLayer& layer, Device device, bool wide);
// The layer's own upstream gradients for these outputs; undefined where none comes.
std::vector<Tensor> upstream_of(const ComparedLayer& layer, std::span<const Tensor> outputs);
// Forward, and backward from every upstream gradient: those given, or the layer's own. `between` is
// called between the two.
LayerRun run_layer(const ComparedLayer& layer, const std::vector<Tensor>& operands,
                   const std::vector<Tensor>& upstream = {},
                   const std::function<void()>& between = {});
LayerRun run_layer(const ComparedLayer& layer, Device device, bool wide);

struct JudgeOptions {
  std::vector<Device> devices{kCpu};
  double tolerance = 0;     // 0: computed
  bool differences = true;  // gradients against finite differences of the forward as well
};

// Every value of the layer on each device against the CPU in f64. Without times.
CompareRow judge_layer(const ComparedLayer& layer, const JudgeOptions& options);

}  // namespace gradus
