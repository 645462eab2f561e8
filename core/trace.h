// A record of every launch of the calling thread while a Trace is alive:
//
//   Trace trace;
//   model(x);
//   for (const TraceRecord& r : trace.records()) print(r.name, r.seconds, r.bytes);
//
// While tracing, each launch waits for the device, so that its time is its own.
#pragma once

#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"

namespace gradus {

struct TraceRecord {
  std::string_view name;  // of the argument struct
  Device device;
  DType dtype;
  int64_t bytes;       // the fewest bytes that the step can move
  int64_t flops;       // its floating-point operations
  double seconds = 0;  // wall clock, the wait for the device included, its parts not
  bool part = false;   // of the launch that is recorded next: not among the fewest bytes of that
};

class Trace {
 public:
  Trace();  // starts recording; an outer Trace of this thread pauses until this one ends
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  const std::vector<TraceRecord>& records() const { return records_; }
  void add(const TraceRecord& record) { records_.push_back(record); }

  // The recording trace of this thread, or null.
  static Trace* current();

 private:
  std::vector<TraceRecord> records_;
  Trace* outer_;
};

}  // namespace gradus
