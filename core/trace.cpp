#include "core/trace.h"

#include <utility>

#include "core/trace_pause.h"

namespace gradus {
namespace {
thread_local Trace* g_current = nullptr;
}

Trace::Trace() : outer_(std::exchange(g_current, this)) {}
Trace::~Trace() { g_current = outer_; }
Trace* Trace::current() { return g_current; }

TracePause::TracePause() : outer_(std::exchange(g_current, nullptr)) {}
TracePause::~TracePause() { g_current = outer_; }

}  // namespace gradus
