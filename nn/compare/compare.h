// The layers of a network on a real batch, each by itself: what the CPU and CUDA give for the same
// bits, forward and backward, against f64.
//
//   const CompareReport report = compare(net, {x, labels});
//   for (const CompareRow& row : report.rows) print(row.path, row.layer, row.ok());
//
// The model runs once on the CPU, forward and backward; what went into each module, its parameters
// and the gradient that arrived for what it gave are kept. Each module then runs by itself on those
// bits: on the CPU, on CUDA where there is a GPU, and on the CPU in f64, which is the reference
// (the tests hold it against naive loops). So no error of one layer reaches another. In f64 the
// gradient is also held against finite differences of the forward, which finds a backward that is
// wrong on all devices alike.
//
// Tolerances are tolerance() of core/tolerance.h for the longest sum that the module says
// (Module::sum_lengths), at the size of the largest terms, which is measured in f64 by moving all
// inputs a little.
#pragma once

#include <functional>

#include "nn/compare/report.h"
#include "nn/data/loader.h"
#include "nn/module.h"

namespace gradus {

struct CompareOptions {
  std::vector<DType> dtypes{DType::f32};  // of activations and weights; one row each
  // Makes the loss of one element of what the model gives. Not given: the cross entropy with the
  // batch's labels, which is a row of its own; without labels, a random upstream gradient.
  std::function<Tensor(const Tensor& y)> loss = {};
  double tolerance = 0;     // of a tensor's largest value or term, for all; 0: computed
  uint64_t seed = 0;        // of a random upstream gradient
  int repeats = 3;          // of each time; 0: no times
  bool differences = true;  // gradients against finite differences, in the first dtype
};

// model: in training or evaluation mode as it is; its tensors, gradients and buffers are left as
// they were. batch.x [n, ...], on any device. Throws what the model throws, naming the module, and
// invalid_argument under autocast.
CompareReport compare(nn::Module& model, const nn::Batch& batch,
                      const CompareOptions& options = {});

// The devices to compare: the CPU, then the first GPU; else a sentence in `missing` says why not,
// and what is done instead. Throws invalid_argument under autocast.
std::vector<Device> compared_devices(std::vector<std::string>& missing, std::string_view instead);

}  // namespace gradus
