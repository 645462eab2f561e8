// While alive nothing of this thread is recorded, as while launches are tried out.
#pragma once

namespace gradus {

class Trace;

class TracePause {
 public:
  TracePause();
  ~TracePause();
  TracePause(const TracePause&) = delete;
  TracePause& operator=(const TracePause&) = delete;

 private:
  Trace* outer_;
};

}  // namespace gradus
