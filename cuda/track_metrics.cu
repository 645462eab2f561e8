#include "core/ops/track_metrics.h"

#include "cuda/device/reduce.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/plan.h"

namespace gradus {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = kThreads;  // whose numbers one block adds up

template <class Loss>
struct MetricPointers {
  const Loss* loss;
  double* totals;
  const int64_t* step;
  int64_t* failed_step;
  int64_t batch;

  // Adds a batch with so many right answers; called by one thread.
  __device__ void add(int64_t right) const {
    const double value = static_cast<double>(*loss), rows = static_cast<double>(batch);
    totals[0] += value * rows;
    totals[1] += static_cast<double>(right);
    totals[2] += rows;
    const bool is_finite = value - value == 0;
    if (failed_step != nullptr && !is_finite && *failed_step < 0) {
      *failed_step = step == nullptr ? 0 : *step;
    }
  }
};

// math   core/ops/track_metrics.h; of more blocks than one, each leaves its right answers
// grid   1-D, one block per chunk of rows; a group of Lanes lanes per row
// order  the right answers are integers, so their order does not matter
template <int Lanes, class T, class Loss>
__global__ void __launch_bounds__(kThreads)
    track_metrics_group_per_row(MetricPointers<Loss> p, const T* logits, const int64_t* labels,
                                int64_t classes, int64_t chunk, int64_t* right_of_block) {
  const int lane = static_cast<int>(threadIdx.x) % Lanes;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk;
  const int64_t end = min(begin + chunk, p.batch);
  wait_for_previous_kernel();
  start_next_kernel();
  int64_t right = 0;
  // A warp has one row, or each of its threads has: all are together where they vote.
  for (int64_t i = begin + threadIdx.x / Lanes; i < end; i += kThreads / Lanes) {
    bool is_own = is_right(logits + i * classes, classes, labels[i], lane, Lanes);
    if constexpr (Lanes == kWarp) is_own = __all_sync(kAllLanes, is_own);
    right += is_own && lane == 0;
  }
  right = block_sum(right);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) {
    p.add(right);
  } else {
    right_of_block[blockIdx.x] = right;
  }
}

// grid   one block
template <class Loss>
__global__ void __launch_bounds__(kThreads)
    track_metrics_finish(MetricPointers<Loss> p, const int64_t* right_of_block, int blocks) {
  wait_for_previous_kernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t right = block_sum(thread < blocks ? right_of_block[thread] : int64_t{0});
  if (thread == 0) p.add(right);
}

template <int Lanes, class T, class Loss>
void track(Cuda& cuda, const TrackMetrics& args) {
  const MetricPointers<Loss> pointers{args.loss.as<Loss>(), args.totals.as<double>(),
                                      args.step.as<int64_t>(), args.failed_step.as<int64_t>(),
                                      args.logits.shape[0]};
  constexpr int64_t kGroups = kThreads / Lanes;
  // A second launch takes as long as another turn of short rows.
  const Chunks chunks =
      plan_chunks(pointers.batch, Lanes == 1 ? 2 * kGroups : kGroups, kMostBlocks, kGroups);
  const int64_t blocks = std::max<int64_t>(chunks.count, 1);
  int64_t* right_of_block = nullptr;
  if (blocks > 1) {
    right_of_block =
        static_cast<int64_t*>(cuda.workspace(static_cast<size_t>(blocks) * sizeof(int64_t)));
  }
  launch_overlapping(cuda, {.grid = exact_blocks(blocks, args.name), .threads = kThreads},
                     track_metrics_group_per_row<Lanes, T, Loss>, pointers,
                     args.logits.as<const T>(), args.labels.as<const int64_t>(),
                     args.logits.shape[1], chunks.size, right_of_block);
  if (blocks > 1) {
    launch_overlapping(cuda, {.grid = 1, .threads = kThreads}, track_metrics_finish<Loss>, pointers,
                       right_of_block, static_cast<int>(blocks));
  }
}

}  // namespace

void run(Cuda& cuda, const TrackMetrics& args) {
  visit(Floating{}, args.dtype(), [&](auto type) {
    visit(Floating{}, args.loss.dtype, [&](auto loss_type) {
      using T = typename decltype(type)::type;
      using Loss = typename decltype(loss_type)::type;
      if (args.logits.shape[1] <= 16) return track<1, T, Loss>(cuda, args);
      track<kWarp, T, Loss>(cuda, args);
    });
  });
}

}  // namespace gradus
