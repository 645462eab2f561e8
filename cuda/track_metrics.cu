#include "core/ops/track_metrics.h"
#include "cuda/context.h"

namespace gradus {
namespace {

constexpr int kThreads = 256;

template <class T, class Loss>
struct MetricPointers {
  const Loss* loss;
  const T* logits;
  const int64_t* labels;
  double* totals;
  const int64_t* step;
  int64_t* failed_step;
};

// math   core/ops/track_metrics.h
// grid   one block; a thread takes every 256th row
// order  the right answers are integers, so their order does not matter
template <class T, class Loss>
__global__ void __launch_bounds__(kThreads)
    track_metrics_one_block(MetricPointers<T, Loss> p, int64_t batch, int64_t classes) {
  __shared__ int right;
  if (threadIdx.x == 0) right = 0;
  __syncthreads();
  int own = 0;
  for (int64_t i = threadIdx.x; i < batch; i += kThreads) {
    own += is_right(p.logits + i * classes, classes, p.labels[i]);
  }
  atomicAdd(&right, own);
  __syncthreads();
  if (threadIdx.x != 0) return;
  const double loss = static_cast<double>(*p.loss);
  p.totals[0] += loss * static_cast<double>(batch);
  p.totals[1] += static_cast<double>(right);
  p.totals[2] += static_cast<double>(batch);
  const bool is_finite = loss - loss == 0;
  if (p.failed_step != nullptr && !is_finite && *p.failed_step < 0) {
    *p.failed_step = p.step == nullptr ? 0 : *p.step;
  }
}

}  // namespace

void run(Cuda& cuda, const TrackMetrics& args) {
  visit(Floating{}, args.dtype(), [&](auto type) {
    visit(Floating{}, args.loss.dtype, [&](auto loss_type) {
      using T = typename decltype(type)::type;
      using Loss = typename decltype(loss_type)::type;
      const MetricPointers<T, Loss> pointers{
          args.loss.as<Loss>(),     args.logits.as<T>(),     args.labels.as<int64_t>(),
          args.totals.as<double>(), args.step.as<int64_t>(), args.failed_step.as<int64_t>()};
      track_metrics_one_block<T, Loss>
          <<<1, kThreads, 0, cuda.stream()>>>(pointers, args.logits.shape[0], args.logits.shape[1]);
    });
  });
}

}  // namespace gradus
