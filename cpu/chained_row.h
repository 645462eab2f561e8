// Many sums side by side that keep their digits however many terms each of them has.
#pragma once

#include <algorithm>

#include "cpu/lanes.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {

// to += from.
template <class T>
void add(const T* from, int64_t count, acc_t<T>* to) {
  using A = acc_t<T>;
  for_each_lanes<A>(count, [&](int64_t i, auto lanes, int) {
    store(to + i, load(to + i, lanes) + load(from + i, lanes), lanes);
  });
}

// Rows of sums in up to three steps, so that long ones keep their digits: the terms go to `part`,
// which step() adds to the next row when it has had kChain of them, and that one likewise.
template <class A>
class ChainedRow {
 public:
  static constexpr int64_t kChain = 256;

  // terms: of a sum, at most.
  ChainedRow(Cpu& cpu, int64_t width, int64_t terms)
      : width_(width),
        middle_(cpu, terms > kChain ? width : 0),
        total_(cpu, terms > kChain * kChain ? width : 0) {}

  void start(A* part) {
    part_ = part;
    for (A* sums : {part_, middle_.data(), total_.data()})
      if (sums != nullptr) std::fill(sums, sums + width_, A(0));
    terms_ = parts_ = 0;
  }
  // After `count` more terms, of the sums [begin, end) only.
  void step(int64_t count, int64_t begin, int64_t end) {
    if (middle_.data() == nullptr) return;
    begin_ = terms_ == 0 ? begin : std::min(begin, begin_);
    end_ = terms_ == 0 ? end : std::max(end, end_);
    terms_ += count;
    if (terms_ < kChain) return;
    move(part_, middle_.data(), begin_, end_);
    terms_ = 0;
    if (++parts_ < kChain || total_.data() == nullptr) return;
    move(middle_.data(), total_.data(), 0, width_);
    parts_ = 0;
  }
  void step(int64_t count) { step(count, 0, width_); }
  // All of it in `part`.
  void finish() {
    for (const A* sums : {middle_.data(), total_.data()})
      if (sums != nullptr) add(sums, width_, part_);
  }

 private:
  static void move(A* from, A* to, int64_t begin, int64_t end) {
    add(from + begin, end - begin, to + begin);
    std::fill(from + begin, from + end, A(0));
  }

  int64_t width_, terms_ = 0, parts_ = 0, begin_ = 0, end_ = 0;
  A* part_ = nullptr;
  Workspace<A> middle_, total_;
};

}  // namespace gradus::GRADUS_ISA
