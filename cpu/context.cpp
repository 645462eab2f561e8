#include "cpu/context.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <ranges>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "core/error.h"
#include "cpu/host_allocator.h"

namespace gradus {
namespace {

#ifdef __x86_64__
// Clang 14's __builtin_cpu_supports() lacks this name; AVX2 tells that the system saves registers.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

constexpr Isa kBuilt[] = {GRADUS_BUILT_ISAS};  // weakest first, as the build says

bool processor_has(Isa isa) {
#ifdef __x86_64__
  switch (isa) {
    case Isa::baseline:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case Isa::avx512:
      return processor_has(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl");
  }
#endif
  return isa == Isa::baseline;
}

void require_isa(Isa isa) {
  if (std::ranges::find(kBuilt, isa) == std::end(kBuilt)) {
    fail(ErrorCode::unsupported, "cpu", "gradus was built without ", isa);
  }
  if (!processor_has(isa)) fail(ErrorCode::unsupported, "cpu", "this processor has no ", isa);
}

Isa strongest_isa() {
  for (const Isa isa : kBuilt | std::views::reverse) {
    if (processor_has(isa)) return isa;
  }
  fail(ErrorCode::unsupported, "cpu", "gradus was built for no instruction set of this processor");
}

Isa default_isa() {
  const char* name = std::getenv("GRADUS_ISA");
  if (name == nullptr) return strongest_isa();
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
    if (name != to_string(isa)) continue;
    require_isa(isa);
    return isa;
  }
  fail(ErrorCode::invalid_argument, "GRADUS_ISA", "expected baseline, avx2 or avx512, got '", name,
       "'");
}

int default_threads() {
  const char* text = std::getenv("GRADUS_THREADS");
  if (text == nullptr) {
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 256);
  }
  const std::string_view digits = text;
  int count = 0;
  const auto parsed = std::from_chars(digits.begin(), digits.end(), count);
  check(parsed.ec == std::errc() && parsed.ptr == digits.end() && count >= 1 && count <= 256,
        "GRADUS_THREADS", "expected 1 to 256, got '", digits, "'");
  return count;
}

}  // namespace

std::string_view to_string(Isa isa) {
  constexpr std::string_view names[] = {"baseline", "avx2", "avx512"};
  return names[static_cast<int>(isa)];
}

// Threads that sleep between runs; the caller works as one of them. A run offers as many places as
// it has tasks for other threads, and takes back those that nobody has come to when the tasks are
// used up: it waits for threads that work, never for one to wake.
class Cpu::Team {
 public:
  explicit Team(int size) {
    try {
      for (int i = 1; i < size; ++i) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& error) {
      const size_t started = threads_.size() + 1;
      stop();
      fail(ErrorCode::internal, "cpu", "the system gives ", started, " of ", size,
           " threads: ", error.what());
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Team() { stop(); }

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  void run(int64_t count, const std::function<void(int64_t)>& task) {
    if (count <= 1 || threads_.empty()) {
      for (int64_t i = 0; i < count; ++i) task(i);
      return;
    }
    const int64_t helpers = std::min(count - 1, std::ssize(threads_));
    {
      const std::lock_guard lock(mutex_);
      task_ = &task;
      count_ = count;
      next_.store(0, std::memory_order_relaxed);
      places_ = helpers;
    }
    if (helpers == std::ssize(threads_)) {
      wake_.notify_all();
    } else {
      for (int64_t i = 0; i < helpers; ++i) wake_.notify_one();
    }
    work();
    std::unique_lock lock(mutex_);
    places_ = 0;
    done_.wait(lock, [this] { return busy_ == 0; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || places_ > 0; });
      if (stopping_) return;
      --places_, ++busy_;
      lock.unlock();
      work();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  void work() {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
      try {
        (*task_)(i);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t)>* task_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  int64_t places_ = 0;  // for threads that have not come yet
  int64_t busy_ = 0;    // threads that work
  bool stopping_ = false;
  std::exception_ptr error_;
};

Cpu::Cpu() : isa_(default_isa()), allocator_(host_allocator()) {}
Cpu::~Cpu() = default;

void Cpu::set_isa(Isa isa) {
  require_isa(isa);
  isa_ = isa;
}

Cpu::Team& Cpu::team() const {
  if (!team_) team_ = std::make_unique<Team>(default_threads());
  return *team_;
}

int Cpu::threads() const { return team().size(); }

void Cpu::set_threads(int count) {
  check(count >= 1 && count <= 256, "threads", "expected 1 to 256, got ", count);
  if (!team_ || count != threads()) team_ = std::make_unique<Team>(count);
}

void Cpu::parallel(int64_t count, const std::function<void(int64_t)>& task) {
  team().run(count, task);
}

Cpu& cpu() {
  thread_local Cpu context;
  return context;
}

Device device_of(const Cpu&) { return kCpu; }
std::shared_ptr<Allocator> allocator_of(Cpu& context) { return context.allocator(); }
void set_allocator(Cpu& context, std::shared_ptr<Allocator> allocator) {
  context.set_allocator(std::move(allocator));
}
void synchronize(Cpu&) {}
void begin_launch(Cpu&, std::string_view) {}
void end_launch(Cpu&, std::string_view) {}
void copy_bytes(Cpu&, void* to, const void* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
std::function<void()> record_step(Cpu&, const std::function<void()>&) { return {}; }
void run_parallel(Cpu& context, int64_t count, const std::function<void(int64_t)>& task) {
  context.parallel(count, task);
}

}  // namespace gradus
