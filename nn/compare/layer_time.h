// Times of a layer's calls, forward and backward apart.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "nn/compare/timer.h"

namespace gradus {

struct TimedLayer {
  std::function<std::vector<Tensor>(std::span<const Tensor>)> forward;
  // Of each call; they take turns. Results are kept until all have had theirs, as a buffer that is
  // free is used again at once.
  std::vector<std::vector<Tensor>> operands;
  // The gradients that come for these outputs, undefined where none does; none: no backward.
  std::function<std::vector<Tensor>(std::span<const Tensor> outputs)> upstream;
};

struct Timing {
  double seconds = 0;                      // of one call; 0 where nothing was timed
  int64_t bytes = 0, flops = 0;            // the fewest bytes that the launches can move
  std::vector<std::string_view> launches;  // the names of their argument structs
};

struct LayerTiming {
  Timing forward;
  std::optional<Timing> backward;
};

// Medians over `repeats` blocks of at least `block_seconds`; with 0 repeats each direction runs
// just once.
LayerTiming time_layer(TimedLayer layer, Device device, int repeats,
                       double block_seconds = kBlockSeconds);

}  // namespace gradus
