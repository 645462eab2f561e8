// The one door from host code to a kernel, and the one switch over devices.
//
//   launch(BatchNormForward{.x = x.raw(), .y = y.raw(), ...});
//
// checks that all views share a device and that the backend has the dtype, records the launch when
// a Trace is alive, calls the backend's run() and checks it.
#pragma once

#include <chrono>
#include <span>

#include "core/backend.h"
#include "core/trace.h"

namespace gradus {

// Calls f(Cpu&) or f(Cuda&) with the calling thread's context on `device`.
template <class F>
decltype(auto) with_backend(Device device, F&& f) {
  switch (device.type) {
    case DeviceType::cpu:
      return f(cpu());
    case DeviceType::cuda:
#if GRADUS_HAS_CUDA
      return f(cuda(device.index));
#else
      fail(ErrorCode::unsupported, "cuda", "this build of gradus has no CUDA backend");
#endif
  }
  fail(ErrorCode::internal, "with_backend", "unknown device");
}

namespace detail {
// The device that all given views share; throws invalid_argument naming the two that differ.
Device common_device(std::string_view op, std::span<const AnyView* const> views);
void require_support(std::string_view op, const Support& support, Device device, DType dtype);
}  // namespace detail

// Calls `step`, a launch or a part of one that is to be seen by itself. While a Trace is alive it
// is recorded, as describe() says, with its own time: without that of the parts recorded inside,
// which come before it.
template <Backend B, class Describe, class F>
void trace_step(B& backend, const Describe& describe, F&& step) {
  Trace* trace = Trace::current();
  if (trace == nullptr) return step();
  using Clock = std::chrono::steady_clock;
  const size_t before = trace->records().size();
  synchronize(backend);
  const Clock::time_point start = Clock::now();
  step();
  synchronize(backend);
  const Clock::time_point end = Clock::now();
  TraceRecord record = describe();
  record.seconds = std::chrono::duration<double>(end - start).count();
  for (size_t i = before; i < trace->records().size(); ++i) {
    record.seconds -= trace->records()[i].seconds;
  }
  trace->add(record);
}

template <KernelArgs Args>
void launch(const Args& args) {
  const Device device = detail::common_device(Args::name, args.views());
  detail::require_support(Args::name, Args::support, device, args.dtype());
  with_backend(device, [&](auto& backend) {
    const auto describe = [&] {
      return TraceRecord{Args::name, device, args.dtype(), args.bytes(), args.flops()};
    };
    trace_step(backend, describe, [&] {
      begin_launch(backend, Args::name);
      run(backend, args);
      end_launch(backend, Args::name);
    });
  });
}

}  // namespace gradus
