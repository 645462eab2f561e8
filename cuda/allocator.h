// The caching allocator of one CUDA context, in the order of its stream.
//
// A block that is freed goes to the free list of its size class and is handed out again at once:
// whatever still uses it was launched earlier on the same stream. A block freed by a thread that
// works on another stream is used again only after that stream's work so far. Launches of third
// threads are not known here: whoever lends a tensor to another thread keeps it until that thread
// has synchronized.
//
// Size classes: multiples of 512 bytes up to 8 KiB, then eight steps per power of two, so that at
// most an eighth is wasted. A block keeps its class; nothing is split or merged.
//
// Arenas: while a graph is captured, blocks come from and go to the graph's own arena, which may
// adopt cached ones. Nothing of it is handed out after the capture until the graph frees it.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/storage.h"

struct CUstream_st;
struct CUevent_st;

namespace gradus {

// The number of the size class of an allocation of `bytes`, and the bytes of a block of a class.
int size_class_of(size_t bytes);
size_t size_class_bytes(int size_class);
inline constexpr size_t kLargestAllocation = size_t(1) << 46;
inline constexpr int kSizeClasses = 280;

class CudaAllocator final : public Allocator, public std::enable_shared_from_this<CudaAllocator> {
 public:
  CudaAllocator(int device, CUstream_st* stream);
  ~CudaAllocator() override;
  CudaAllocator(const CudaAllocator&) = delete;
  CudaAllocator& operator=(const CudaAllocator&) = delete;

  void* allocate(size_t bytes) override;
  void deallocate(void* data, size_t bytes) noexcept override;
  AllocatorStats stats() const override;

  // Gives the cached blocks back to the system.
  void empty_cache();

  // From begin to end the owner's allocations and frees use the arena returned; arenas do not nest.
  int begin_arena();
  void end_arena(int arena) noexcept;
  // Makes an arena's blocks ordinary ones: the free ones now, those that tensors hold when they
  // die.
  void free_arena(int arena) noexcept;

  // Called before the stream is destroyed, with its work finished. Blocks that are still held are
  // given back to the system when they are freed.
  void close() noexcept;

 private:
  struct Block {
    void* data = nullptr;
    int size_class = 0;
    int arena = 0;                // 0: none
    size_t requested = 0;         // bytes asked for by the present holder
    CUevent_st* event = nullptr;  // to wait for before the next use
    Block* next = nullptr;        // in a free list
  };
  using FreeLists = std::array<Block*, kSizeClasses>;

  Block* take(int size_class);
  Block* take_from(FreeLists& lists, int size_class);
  void wait_for_event(Block& block);
  bool record_event(Block& block, CUstream_st* stream) noexcept;
  FreeLists& lists_of(int arena);
  void count_in(Block& block, size_t bytes);
  void* system_allocate(int size_class, size_t requested);
  void release(Block* block) noexcept;
  void release_all(FreeLists& lists) noexcept;
  static void empty_caches_of(int device);

  const int device_;
  CUstream_st* const stream_;
  mutable std::mutex mutex_;  // over everything below
  AllocatorStats stats_;
  std::unordered_map<void*, Block> blocks_;  // all that are held, in use or free
  FreeLists free_{};
  std::unordered_map<int, FreeLists> arenas_;
  Block* parked_ = nullptr;  // freed while a graph was captured that may use them: until close()
  int arena_ = 0;            // the one in use, or 0
  int last_arena_ = 0;
  bool closed_ = false;
};

namespace detail {
// The compute stream of the calling thread's context on a device, or null when it has none.
CUstream_st* thread_stream(int device);
}  // namespace detail

}  // namespace gradus
