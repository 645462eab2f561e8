#include "cuda/allocator.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "cuda/check.h"

namespace gradus {
namespace {

// Every live allocator, so that one that runs out can empty the caches of the others. Never
// destroyed: allocators may end after all static objects.
struct Registry {
  std::mutex mutex;
  std::vector<CudaAllocator*> allocators;
};
Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

void free_quietly(void* data) noexcept {
  const RelaxedCapture relaxed;
  if (cudaFree(data) != cudaSuccess) (void)cudaGetLastError();  // such as a driver shut down
}

}  // namespace

int size_class_of(size_t bytes) {
  if (bytes <= 8192) return static_cast<int>((std::max<size_t>(bytes, 1) + 511) / 512) - 1;
  const int power = std::bit_width(bytes - 1) - 1;  // 2^power < bytes <= 2^(power + 1)
  const size_t step = size_t(1) << (power - 3);
  const int steps = static_cast<int>((bytes - (size_t(1) << power) + step - 1) / step);  // 1 to 8
  return 15 + (power - 13) * 8 + steps;
}

size_t size_class_bytes(int size_class) {
  if (size_class < 16) return static_cast<size_t>(size_class + 1) * 512;
  const int power = 13 + (size_class - 16) / 8;
  const int steps = (size_class - 16) % 8 + 1;
  return (size_t(1) << power) + (static_cast<size_t>(steps) << (power - 3));
}

CudaAllocator::CudaAllocator(int device, CUstream_st* stream) : device_(device), stream_(stream) {
  const std::lock_guard lock(registry().mutex);
  registry().allocators.push_back(this);
}

CudaAllocator::~CudaAllocator() {
  {
    const std::lock_guard lock(registry().mutex);
    std::erase(registry().allocators, this);
  }
  close();
}

void* CudaAllocator::allocate(size_t bytes) {
  const int size_class = size_class_of(std::min(bytes, kLargestAllocation));
  {
    const std::lock_guard lock(mutex_);
    if (Block* block = take(size_class)) {
      count_in(*block, bytes);
      return block->data;
    }
  }
  void* data = system_allocate(size_class, bytes);
  const std::lock_guard lock(mutex_);
  Block& block = blocks_[data];
  block = {.data = data, .size_class = size_class, .arena = arena_};
  stats_.bytes_held += static_cast<int64_t>(size_class_bytes(size_class));
  ++stats_.system_allocations;
  count_in(block, bytes);
  return data;
}

void CudaAllocator::count_in(Block& block, size_t bytes) {
  block.requested = bytes;
  stats_.bytes_in_use += static_cast<int64_t>(bytes);
  stats_.peak_bytes_in_use = std::max(stats_.peak_bytes_in_use, stats_.bytes_in_use);
  ++stats_.blocks_in_use;
}

// A free block of the class, taken off its list: from the arena while one is on, else from the
// cache, which an arena may take blocks from for good.
CudaAllocator::Block* CudaAllocator::take(int size_class) {
  Block* block = nullptr;
  if (arena_ != 0) block = take_from(lists_of(arena_), size_class);
  if (block == nullptr) block = take_from(free_, size_class);
  if (block != nullptr) block->arena = arena_;
  return block;
}

CudaAllocator::Block* CudaAllocator::take_from(FreeLists& lists, int size_class) {
  for (Block** at = &lists[size_class]; *at != nullptr; at = &(*at)->next) {
    Block* block = *at;
    if (block->event != nullptr) {
      if (arena_ != 0) continue;  // a graph cannot wait for what happened outside it
      wait_for_event(*block);
    }
    *at = std::exchange(block->next, nullptr);
    return block;
  }
  return nullptr;
}

void CudaAllocator::wait_for_event(Block& block) {
  cuda_check(cudaStreamWaitEvent(stream_, block.event, 0), "cuda");
  cudaEventDestroy(std::exchange(block.event, nullptr));
}

bool CudaAllocator::record_event(Block& block, CUstream_st* stream) noexcept {
  int current = device_;
  cudaGetDevice(&current);
  cudaSetDevice(device_);  // an event belongs to the device it is created on
  const bool recorded =
      cudaEventCreateWithFlags(&block.event, cudaEventDisableTiming) == cudaSuccess &&
      cudaEventRecord(block.event, stream) == cudaSuccess;
  cudaSetDevice(current);
  if (!recorded) (void)cudaGetLastError();
  return recorded;
}

void CudaAllocator::deallocate(void* data, size_t) noexcept {
  CUstream_st* caller = detail::thread_stream(device_);
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(data);
  if (found == blocks_.end()) fail(ErrorCode::internal, "cuda", "freed memory it did not hand out");
  Block& block = found->second;
  stats_.bytes_in_use -= static_cast<int64_t>(block.requested);
  --stats_.blocks_in_use;
  if (closed_) return release(&block);
  Block** list = nullptr;
  if (caller == nullptr || caller == stream_) {
    // What a capture has freed may be written by the graph, so it becomes the graph's; memory of
    // another graph, which either may write, nobody's.
    const bool captured = caller != nullptr && arena_ != 0;
    if (captured && block.arena == 0) block.arena = arena_;
    list = captured && block.arena != arena_ ? &parked_ : &lists_of(block.arena)[block.size_class];
  } else if (!is_capturing(caller) && record_event(block, caller)) {
    list = &lists_of(block.arena)[block.size_class];
  } else {
    list = &parked_;
  }
  block.next = std::exchange(*list, &block);
}

CudaAllocator::FreeLists& CudaAllocator::lists_of(int arena) {
  const auto found = arenas_.find(arena);
  return found == arenas_.end() ? free_ : found->second;
}

AllocatorStats CudaAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void* CudaAllocator::system_allocate(int size_class, size_t requested) {
  cuda_check(cudaSetDevice(device_), "cuda");
  const RelaxedCapture relaxed;
  if (requested <= kLargestAllocation) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      void* data = nullptr;
      const cudaError_t status = cudaMalloc(&data, size_class_bytes(size_class));
      if (status == cudaSuccess) return data;
      if (status != cudaErrorMemoryAllocation) cuda_check(status, "cuda");
      (void)cudaGetLastError();
      if (attempt == 0) empty_caches_of(device_);
    }
  }
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "cuda");
  const AllocatorStats now = stats();
  fail(ErrorCode::out_of_memory, "out of memory", "asked for ", requested,
       " bytes on cuda:", device_, ", holding ", now.bytes_held, " (", now.bytes_in_use,
       " in use), and ", free, " of ", total, " are free");
}

void CudaAllocator::empty_caches_of(int device) {
  const std::lock_guard lock(registry().mutex);
  for (CudaAllocator* allocator : registry().allocators) {
    if (allocator->device_ == device) allocator->empty_cache();
  }
}

void CudaAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  release_all(free_);
}

// cudaFree waits for the device, so that no launch still uses what it frees.
void CudaAllocator::release(Block* block) noexcept {
  if (block->event != nullptr) cudaEventDestroy(block->event);
  void* data = block->data;
  free_quietly(data);
  stats_.bytes_held -= static_cast<int64_t>(size_class_bytes(block->size_class));
  blocks_.erase(data);
}

void CudaAllocator::release_all(FreeLists& lists) noexcept {
  for (Block*& head : lists) {
    while (head != nullptr) release(std::exchange(head, head->next));
  }
}

int CudaAllocator::begin_arena() {
  const std::lock_guard lock(mutex_);
  if (arena_ != 0) fail(ErrorCode::internal, "cuda", "an arena is already in use");
  arenas_[++last_arena_] = {};
  return arena_ = last_arena_;
}

void CudaAllocator::end_arena(int arena) noexcept {
  const std::lock_guard lock(mutex_);
  if (arena_ == arena) arena_ = 0;
}

void CudaAllocator::free_arena(int arena) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = arenas_.find(arena);
  if (found == arenas_.end()) return;
  for (int size_class = 0; size_class < kSizeClasses; ++size_class) {
    Block*& head = found->second[size_class];
    while (head != nullptr) {
      Block* block = std::exchange(head, head->next);
      block->arena = 0;
      block->next = std::exchange(free_[size_class], block);
    }
  }
  // Blocks that tensors still hold become ordinary ones too: a later capture may free them.
  for (auto& [data, block] : blocks_) {
    if (block.arena == arena) block.arena = 0;
  }
  arenas_.erase(found);
  if (arena_ == arena) arena_ = 0;
}

void CudaAllocator::close() noexcept {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  release_all(free_);
  for (auto& [arena, lists] : arenas_) release_all(lists);
  arenas_.clear();
  while (parked_ != nullptr) release(std::exchange(parked_, parked_->next));
}

}  // namespace gradus
