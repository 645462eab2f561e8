// Begins an optimizer step: takes the learning rate of the step from a table on the device.
#pragma once

#include "core/backend.h"

namespace gradus {

//   lr   = table[min(step, length - 1)]     (kept where there is no table)
//   step ← step + 1
//
// Counter, table and result live on the device, so that a captured step needs no host input, and
// the host evaluates every schedule, so that both devices see the same bits.
struct ScheduleStep {
  static constexpr std::string_view name = "schedule_step";
  static constexpr DTypeSet kRate = dtype_set(TypeList<double>{});
  static constexpr Support support{.cpu = kRate, .cuda = kRate};

  AnyView table;  // [steps], f64, contiguous, at least one; may be not given
  AnyView step;   // [1], i64: steps begun so far
  AnyView lr;     // [1], f64

  DType dtype() const { return lr.dtype; }
  auto views() const { return list_views(table, step, lr); }
  int64_t bytes() const { return 2 * step.nbytes() + 2 * lr.nbytes(); }
  int64_t flops() const { return 0; }
  static Guarantee guarantee() { return {.accumulator = "none"}; }
};

void run(Cpu&, const ScheduleStep&);
void run(Cuda&, const ScheduleStep&);

}  // namespace gradus
