// The CPU backend's context: an allocator, a team of threads and the instruction set in use.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "core/backend.h"

namespace gradus {

// Instruction sets that cpu/ is compiled for, weakest first.
enum class Isa : uint8_t { baseline, avx2, avx512 };

std::string_view to_string(Isa isa);

class Cpu {
 public:
  Cpu();
  ~Cpu();
  Cpu(const Cpu&) = delete;
  Cpu& operator=(const Cpu&) = delete;

  // The strongest set that this processor has, or what the environment variable GRADUS_ISA names
  // (baseline, avx2, avx512); throws when the processor lacks it.
  Isa isa() const { return isa_; }
  void set_isa(Isa isa);

  // Threads that work on one kernel, the caller included; by default the hardware's, or the
  // environment variable GRADUS_THREADS, which is read, and throws, where they are first needed and
  // none were set. Results do not depend on it, bit for bit.
  int threads() const;
  void set_threads(int count);  // 1 to 256

  // Runs task(0) ... task(count - 1), each once, in any order and on any thread of the team. The
  // first exception is thrown here when all have ended that began; others may not run then. Tasks
  // must not start another parallel run.
  void parallel(int64_t count, const std::function<void(int64_t)>& task);

  const std::shared_ptr<Allocator>& allocator() const { return allocator_; }
  void set_allocator(std::shared_ptr<Allocator> allocator) { allocator_ = std::move(allocator); }

 private:
  class Team;
  Team& team() const;

  Isa isa_;
  std::shared_ptr<Allocator> allocator_;
  mutable std::unique_ptr<Team> team_;  // made on first use
};

}  // namespace gradus
