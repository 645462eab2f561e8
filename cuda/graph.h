// CUDA graphs: a step recorded once and replayed without host work.
//
//   CudaGraph graph(cuda());
//   graph.capture([&] { step(); });  // records; runs nothing
//   for (...) graph.replay();
//
// A replay changes tensors without raising their versions: do not run a backward across one.
// Memory that the step allocates comes from an arena of the graph's own and stays reserved for it,
// so that replays find it unchanged; tensors of outside that the step uses must outlive the graph.
// Whatever changes from step to step must be read by the kernels from device memory.
#pragma once

#include <functional>
#include <memory>

#include "cuda/context.h"

namespace gradus {

class CudaGraph {
 public:
  explicit CudaGraph(Cuda& cuda);
  ~CudaGraph();  // frees the arena
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Records what `step` launches on this thread's context, in place of an earlier recording. A
  // throw inside ends the capture, frees the arena and passes on. Tensors made inside keep their
  // memory as long as the graph lives. Inside, nothing may wait for the device or copy from the
  // host.
  void capture(const std::function<void()>& step);
  bool captured() const { return executable_ != nullptr; }
  void replay();  // enqueues one run; does not wait

 private:
  void record(const std::function<void()>& step);
  void release() noexcept;

  Cuda& cuda_;
  std::shared_ptr<CudaAllocator> allocator_;
  void* executable_ = nullptr;  // cudaGraphExec_t
  int arena_ = 0;               // number of the allocator's arena
};

}  // namespace gradus
