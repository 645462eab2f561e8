#include "cuda/autotune.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/trace_pause.h"
#include "cuda/check.h"

namespace gradus {
namespace {

constexpr int kCalls = 10;   // in one graph, so that the host's share does not count
constexpr int kRepeats = 7;  // of which the median counts

class Event {
 public:
  Event() { cuda_check(cudaEventCreate(&event_), "autotune"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Cuda& cuda) { cuda_check(cuda, cudaEventRecord(event_, cuda.stream()), "autotune"); }
  double ms_since(Cuda& cuda, const Event& start) const {
    float ms = 0;
    cuda_check(cuda, cudaEventSynchronize(event_), "autotune");
    cuda_check(cuda, cudaEventElapsedTime(&ms, start.event_, event_), "autotune");
    return ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Microseconds of a call of `launch`, caches as warm as it leaves them; infinite where it cannot
// run, for want of memory or because the grid has no room.
double time_us(Cuda& cuda, const std::function<void()>& launch) {
  const TracePause pause;
  std::function<void()> replay;
  try {
    launch();  // outside a graph: what is set up once
    replay = record_step(cuda, [&] {
      for (int i = 0; i < kCalls; ++i) launch();
    });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cuda) throw;
    return INFINITY;
  }
  replay();
  Event start, end;
  std::array<double, kRepeats> times;
  for (double& time : times) {
    start.record(cuda);
    replay();
    end.record(cuda);
    time = 1e3 * end.ms_since(cuda, start) / kCalls;
  }
  std::ranges::nth_element(times, times.begin() + kRepeats / 2);
  return times[kRepeats / 2];
}

}  // namespace

std::string autotune_card(const CudaDeviceInfo& info) {
  return concat(info.name, ", compute ", info.compute_major, ".", info.compute_minor, ", ",
                info.multiprocessors, " multiprocessors");
}

size_t choose_measured(Cuda& cuda, Autotune& table, const std::string& key,
                       std::span<const std::string> ways,
                       const std::function<void(size_t)>& run_way) {
  Autotune::TimeWay time_way;
  if (!is_capturing(cuda.stream())) {
    time_way = [&](size_t way) { return time_us(cuda, [&] { run_way(way); }); };
  }
  return table.choose(autotune_card(cuda.info()), key, ways, time_way);
}

}  // namespace gradus
