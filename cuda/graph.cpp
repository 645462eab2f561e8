#include "cuda/graph.h"

#include <utility>

#include "core/backend.h"
#include "cuda/allocator.h"
#include "cuda/check.h"

namespace gradus {

CudaGraph::CudaGraph(Cuda& cuda)
    : cuda_(cuda), allocator_(cuda.caching_allocator().shared_from_this()) {}

CudaGraph::~CudaGraph() { release(); }

void CudaGraph::release() noexcept {
  if (executable_ != nullptr) {
    cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(std::exchange(executable_, nullptr)));
  }
  allocator_->free_arena(std::exchange(arena_, 0));
}

void CudaGraph::capture(const std::function<void()>& step) {
  if (is_capturing(cuda_.stream())) {
    fail(ErrorCode::invalid_argument, "graph", "a capture on this thread has not ended yet");
  }
  release();
  // Eager launches may write their workspace between replays, so the graph gets one of its own.
  auto workspace = cuda_.exchange_workspace(nullptr);
  arena_ = allocator_->begin_arena();
  try {
    record(step);
  } catch (...) {
    cuda_.exchange_workspace(std::move(workspace));
    release();
    throw;
  }
  cuda_.exchange_workspace(std::move(workspace));
  allocator_->end_arena(arena_);
}

void CudaGraph::record(const std::function<void()>& step) {
  begin_launch(cuda_, "graph");  // refuses after a sticky error
  end_launch(cuda_, "graph");
  cuda_check(cuda_, cudaStreamBeginCapture(cuda_.stream(), cudaStreamCaptureModeThreadLocal),
             "graph");
  cudaGraph_t graph = nullptr;
  try {
    step();
  } catch (...) {
    if (cudaStreamEndCapture(cuda_.stream(), &graph) == cudaSuccess) cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  cuda_check(cuda_, cudaStreamEndCapture(cuda_.stream(), &graph), "graph");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  cuda_check(cuda_, status, "graph");
  executable_ = executable;
  cuda_check(cuda_, cudaGraphUpload(executable, cuda_.stream()), "graph");
}

void CudaGraph::replay() {
  check(captured(), "graph", "replay() needs a captured step");
  begin_launch(cuda_, "graph");
  cuda_check(cuda_, cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), cuda_.stream()),
             "graph");
  end_launch(cuda_, "graph");
}

std::function<void()> record_step(Cuda& cuda, const std::function<void()>& step) {
  auto graph = std::make_shared<CudaGraph>(cuda);
  graph->capture(step);
  return [graph = std::move(graph)] { graph->replay(); };
}

}  // namespace gradus
