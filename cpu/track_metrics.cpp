#include "core/ops/track_metrics.h"

#include "cpu/dispatch.h"

namespace gradus::GRADUS_ISA {

void run(Cpu&, const TrackMetrics& args) {
  const int64_t batch = args.logits.shape[0], classes = args.logits.shape[1];
  double loss = 0;
  visit(Floating{}, args.loss.dtype, [&](auto type) {
    loss = static_cast<double>(*args.loss.as<typename decltype(type)::type>());
  });
  int64_t right = 0;
  visit(Floating{}, args.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    for (int64_t i = 0; i < batch; ++i) {
      right +=
          is_right<T>(args.logits.as<T>() + i * classes, classes, args.labels.as<int64_t>()[i]);
    }
  });
  double* totals = args.totals.as<double>();
  totals[0] += loss * static_cast<double>(batch);
  totals[1] += static_cast<double>(right);
  totals[2] += static_cast<double>(batch);
  // inf - inf and NaN - NaN are NaN, which equals nothing.
  const bool is_finite = loss - loss == 0;
  if (args.failed_step && !is_finite && *args.failed_step.as<int64_t>() < 0) {
    *args.failed_step.as<int64_t>() = args.step ? *args.step.as<int64_t>() : 0;
  }
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(TrackMetrics)
