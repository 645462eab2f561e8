// The backend trait. A backend is a concrete context type that owns what has state (allocator,
// stream or thread team, library handles). Compute is an overload set beside it:
//
//   void run(Cpu&, const BatchNormForward&);
//   void run(Cuda&, const BatchNormForward&);
//
// one argument struct per kernel-sized step, declared in core/ops/. The struct is the op: it says
// its name, the dtypes it has on each backend, the fewest bytes it can move and its operations.
#pragma once

#include <array>
#include <concepts>
#include <functional>
#include <memory>
#include <string_view>

#include "core/build_config.h"
#include "core/storage.h"
#include "core/view.h"

namespace gradus {

class Cpu;   // cpu/context.h
class Cuda;  // cuda/context.h

// The calling thread's context. A context is used by one thread at a time. cuda() throws `cuda`
// when there is no such GPU.
Cpu& cpu();
Cuda& cuda(int index = 0);

// What the rest of core needs of a backend. Each of these is a free function, so that core names no
// member of a context.
Device device_of(const Cpu&);
Device device_of(const Cuda&);
std::shared_ptr<Allocator> allocator_of(Cpu&);
std::shared_ptr<Allocator> allocator_of(Cuda&);
// Puts another allocator in its place, for tests.
void set_allocator(Cpu&, std::shared_ptr<Allocator>);
void set_allocator(Cuda&, std::shared_ptr<Allocator>);
void synchronize(Cpu&);
void synchronize(Cuda&);
// Around each launch: refuse after a sticky error and open a profiler range; close it and report a
// failed launch.
void begin_launch(Cpu&, std::string_view op);
void begin_launch(Cuda&, std::string_view op);
void end_launch(Cpu&, std::string_view op);
void end_launch(Cuda&, std::string_view op);
// Copies bytes between the host and the device, or within it; the source may be reused on return.
void copy_bytes(Cpu&, void* to, const void* from, size_t bytes);
void copy_bytes(Cuda&, void* to, const void* from, size_t bytes);
// Records what `step` launches, without running it, and returns what runs it again, to be called on
// this thread. Empty where the backend records nothing: the step was not called then.
std::function<void()> record_step(Cpu&, const std::function<void()>& step);
std::function<void()> record_step(Cuda&, const std::function<void()>& step);

// Runs task(0) ... task(count - 1), each once, on the context's threads: for work on values of the
// host that is no op.
void run_parallel(Cpu&, int64_t count, const std::function<void(int64_t)>& task);

template <class B>
concept Backend = requires(B& backend, void* to, const void* from,
                           const std::function<void()>& step) {
  { device_of(backend) } -> std::same_as<Device>;
  { allocator_of(backend) } -> std::same_as<std::shared_ptr<Allocator>>;
  synchronize(backend);
  begin_launch(backend, std::string_view());
  end_launch(backend, std::string_view());
  copy_bytes(backend, to, from, size_t());
  { record_step(backend, step) } -> std::same_as<std::function<void()>>;
};
static_assert(Backend<Cpu> && Backend<Cuda>);

// The dtypes an op has on each backend: the one source for "unsupported" and the coverage table.
struct Support {
  DTypeSet cpu;
  DTypeSet cuda;
};

// What an op promises about its arithmetic, for the coverage table.
struct Guarantee {
  std::string_view accumulator = "acc_t";  // f32 for f16, bf16 and f32; f64 for f64
  bool deterministic = true;               // same bits again, same device, any thread count
};

// The views of an argument struct, in declaration order.
template <class... Views>
std::array<const AnyView*, sizeof...(Views)> list_views(const Views&... views) {
  return {&views...};
}

// What launch() asks of an argument struct.
template <class Args>
concept KernelArgs = requires(const Args& args) {
  { Args::name } -> std::convertible_to<std::string_view>;
  { Args::support } -> std::convertible_to<Support>;
  { args.dtype() } -> std::same_as<DType>;
  { args.views().size() } -> std::convertible_to<size_t>;
  { args.bytes() } -> std::same_as<int64_t>;
  { args.flops() } -> std::same_as<int64_t>;
  { Args::guarantee() } -> std::same_as<Guarantee>;
};

}  // namespace gradus
