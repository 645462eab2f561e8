// Asking a table of measured choices (core/autotune.h) on a device. Host-only.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "core/autotune.h"
#include "cuda/context.h"

namespace gradus {

// What choices are kept apart by: "NVIDIA H100 80GB HBM3, compute 9.0, 132 multiprocessors".
std::string autotune_card(const CudaDeviceInfo& info);

// The index of the way that `table` has for `key` on this device; where it measures, run_way(i)
// launches the i-th way to be timed, with the operands of the launch being made. Nothing is timed
// while a graph is recorded.
size_t choose_measured(Cuda& cuda, Autotune& table, const std::string& key,
                       std::span<const std::string> ways,
                       const std::function<void(size_t)>& run_way);

}  // namespace gradus
