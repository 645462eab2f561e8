#include "core/ops/schedule_step.h"
#include "cuda/context.h"

namespace gradus {
namespace {

// math   lr = table[min(step, length - 1)]; step += 1
// grid   one thread
__global__ void schedule_step_one_thread(const double* table, int64_t length, int64_t* step,
                                         double* lr) {
  const int64_t now = *step;
  if (table != nullptr) *lr = table[now < length - 1 ? now : length - 1];
  *step = now + 1;
}

}  // namespace

void run(Cuda& cuda, const ScheduleStep& args) {
  schedule_step_one_thread<<<1, 1, 0, cuda.stream()>>>(
      args.table.as<double>(), args.table.numel(), args.step.as<int64_t>(), args.lr.as<double>());
}

}  // namespace gradus
