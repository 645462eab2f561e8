// Whether operations record history. Thread-local.
#pragma once

namespace gradus {

// True unless a NoGradGuard is alive on this thread.
bool grad_enabled();

namespace detail {
bool exchange_grad_enabled(bool enabled);
}

// While alive, operations of this thread record nothing and in-place writes are allowed everywhere.
class NoGradGuard {
 public:
  NoGradGuard() : before_(detail::exchange_grad_enabled(false)) {}
  ~NoGradGuard() { detail::exchange_grad_enabled(before_); }
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool before_;
};

}  // namespace gradus
