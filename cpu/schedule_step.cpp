#include "core/ops/schedule_step.h"

#include <algorithm>

#include "cpu/dispatch.h"

namespace gradus::GRADUS_ISA {

void run(Cpu&, const ScheduleStep& args) {
  int64_t& step = *args.step.as<int64_t>();
  if (args.table) {
    const int64_t last = args.table.numel() - 1;
    *args.lr.as<double>() = args.table.as<double>()[step < last ? step : last];
  }
  ++step;
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(ScheduleStep)
