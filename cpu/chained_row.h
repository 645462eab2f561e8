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

// Rows of sums in three steps, so that long ones keep their digits: the terms go to `part`, which
// step() adds to the next row when it has had kChain of them.
template <class A>
class ChainedRow {
 public:
  static constexpr int64_t kChain = 256;

  // terms: of a sum, at most.
  ChainedRow(Cpu& cpu, int64_t width, int64_t terms)
      : width_(width), further_(cpu, terms > kChain ? 2 * width : 0) {}

  void start(A* part) {
    part_ = part;
    std::fill(part_, part_ + width_, A(0));
    if (further_.data() == nullptr) return;
    std::fill(middle(), total() + width_, A(0));
    terms_ = parts_ = 0;
  }
  void step(int64_t count) {
    terms_ += count;
    if (terms_ < kChain || further_.data() == nullptr) return;
    move(part_, middle());
    terms_ = 0;
    if (++parts_ < kChain) return;
    move(middle(), total());
    parts_ = 0;
  }
  // All of it in `part`.
  void finish() {
    if (further_.data() == nullptr) return;
    move(middle(), total());
    add(total(), width_, part_);
  }

 private:
  A* middle() const { return further_.data(); }
  A* total() const { return further_.data() + width_; }
  void move(A* from, A* to) const {
    add(from, width_, to);
    std::fill(from, from + width_, A(0));
  }

  int64_t width_, terms_ = 0, parts_ = 0;
  A* part_ = nullptr;
  Workspace<A> further_;
};

}  // namespace gradus::GRADUS_ISA
